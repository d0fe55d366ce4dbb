"""A sweep becomes the cases that were asked for, and what cannot be is refused with a cause and a fix."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmark.case import AXES
from torchmark.errors import UnknownName, UsageError
from torchmark.measure.cases import expand, full_params, split_settings, split_values
from torchmark.meters.process import allowed_cores
from torchmark.records import Case, parse_case
from torchmark.workloads import find_workload


def sweep(*workloads: str, **changes: Any) -> tuple[Case, ...]:
    """All names but these are axes."""
    axes = {name: changes.pop(name) for name in [*changes] if name not in ("params", "nodes", "tiny")}
    return expand(workloads, axes, **changes)


def texts(*workloads: str, **changes: Any) -> list[str]:
    return [case.text for case in sweep(*workloads, **changes)]


def some(values: Any) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3)


numbers = st.integers(1, 4096).map(str)
OTHERS = {
    "device": some(["cpu", "cuda:1", "mps"]),
    "mode": some(["infer", "train", "infer,train"]),
    "threads": st.lists(st.sampled_from(["1", "2", "1..3"]), max_size=2),
}
mlp_sweeps = st.builds(
    dict,
    workloads=st.just(["mlp"]),
    axes=st.fixed_dictionaries({axis.name: some(axis.values) for axis in AXES if axis.values and axis.help} | OTHERS),
    params=st.dictionaries(st.sampled_from(["batch", "outputs"]), st.lists(numbers, min_size=1, max_size=3)),
)


@settings(max_examples=50)
@given(mlp_sweeps)
def test_every_case_is_unique_and_is_what_its_text_says(asked: dict[str, Any]) -> None:
    cases = expand(**asked)
    written = [case.text for case in cases]
    assert len(set(written)) == len(written) > 0
    assert expand(**asked) == cases
    assert tuple(parse_case(text) for text in written) == cases
    assert expand(written) == cases
    for case in cases:
        filled = msgspec.structs.asdict(full_params(case))
        assert {**msgspec.structs.asdict(find_workload("mlp").params()), **case.params} == filled


@given(st.integers(1, 500), st.integers(0, 500), st.integers(2, 9))
def test_ranges_are_what_they_say(first: int, more: int, by: int) -> None:
    last = first + more
    assert split_values([f"{first}..{last}"]) == tuple(map(str, range(first, last + 1)))
    assert split_values([f"{first}..{last}+{by}"]) == tuple(map(str, range(first, last + 1, by)))
    multiplied = [int(value) for value in split_values([f"{first}..{last}x{by}"])]
    assert multiplied == [first * by**power for power in range(len(multiplied))]
    assert multiplied[-1] <= last < multiplied[-1] * by


@given(st.text(max_size=30))
def test_no_value_that_can_be_typed_ends_in_a_traceback(text: str) -> None:
    for changes in ({"params": {"batch": [text]}}, {"dtype": [text]}, {"threads": [text]}, {"device": [text]}):
        with suppress(UsageError):
            assert all(parse_case(case.text) == case for case in sweep("mlp", **changes))


def test_the_last_part_changes_fastest() -> None:
    assert texts("mlp", mode=["train,infer"], params={"batch": ["16,64"]}, dtype=["float32"]) == [
        "mlp/train:batch=16@cpu/float32",
        "mlp/train:batch=64@cpu/float32",
        "mlp/infer:batch=16@cpu/float32",
        "mlp/infer:batch=64@cpu/float32",
    ]


def test_defaults_are_left_out_and_no_case_comes_twice() -> None:
    assert texts("mlp") == ["mlp/infer@cpu/float32"]
    assert texts("mlp", params={"batch": ["128", "128,64..128x2"]}) == [
        "mlp/infer@cpu/float32",
        "mlp/infer:batch=64@cpu/float32",
    ]
    assert texts("mlp/infer:batch=128@cpu/float32", "mlp") == ["mlp/infer@cpu/float32"]


def test_a_case_that_is_written_out_is_taken_as_it_is() -> None:
    written = "mlp/train:batch=64@cpu/float32+compile+per-step+threads=2"
    assert texts(written, "null", dtype=["bfloat16"]) == [written, "null/infer@cpu/bfloat16"]


def test_tiny_cases_are_small_unless_a_size_is_given() -> None:
    assert texts("matmul", tiny=True) == ["matmul/infer:size=24@cpu/float32"]
    assert texts("matmul", tiny=True, params={"size": ["64"]}) == ["matmul/infer:size=64@cpu/float32"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ["mpl"]}, "unknown workload 'mpl'. Did you mean 'mlp'"),
        ({"mode": ["trian"]}, "unknown mode of mlp 'trian'. Did you mean 'train'"),
        ({"params": {"bach": ["1"]}}, "unknown parameter of mlp 'bach'. Did you mean 'batch'"),
        ({"workloads": ["tensor-add"], "params": {"variant": ["as-runn"]}}, "'as-runn'. Did you mean 'as-run'"),
        ({"layout": ["sideways"]}, "unknown option of mlp/infer 'layout'"),
        ({"speed": ["fast"]}, "unknown option 'speed'"),
        ({"dtype": ["flot32"]}, "unknown dtype 'flot32'. Did you mean 'float32'"),
        ({"device": ["cuba"]}, "unknown device 'cuba'. Did you mean 'cuda'"),
        ({"transfer": ["per-stp"]}, "unknown transfer 'per-stp'. Did you mean 'per-step'"),
        ({"compile": ["max-autotun"]}, "Did you mean 'max-autotune'"),
        ({"workloads": ["mpl/infer@cpu/float32"]}, "Did you mean 'mlp'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        sweep(*changes.pop("workloads", ["mlp"]), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": {"batch": ["0"]}}, "batch=0 is not possible for mlp: it takes a whole number from 1"),
        ({"params": {"batch": ["x"]}}, "batch=x is not possible"),
        ({"params": {"batch": ["1.5"]}}, "batch=1.5 is not possible"),
        ({"params": {"batch": ["-1"]}}, "batch=-1 is not possible"),
        ({"params": {"batch": ["9" * 6000]}}, "."),
        ({"params": {"batch": ["64..16"]}}, "is empty or endless"),
        ({"params": {"batch": ["1..64x1"]}}, "is empty or endless"),
        ({"params": {"batch": ["1..99999999"]}}, "more than 1000 values"),
        ({"params": {"batch": ["1..999"], "outputs": ["1..999"]}}, "more than 10000 cases"),
        ({"params": {"batch": ["1,,2"]}}, "a value is empty"),
        ({"threads": ["0"]}, "threads cannot be 0"),
        ({"threads": ["two"]}, "'two' is not a number of threads"),
        ({"workloads": ["matmul"], "workers": ["2"]}, "matmul runs in one worker only"),
        ({"workers": ["1,two"]}, "'two' is not a number of workers"),
        ({"device": ["cuda:one"]}, "does not say which cuda device"),
        ({"workloads": []}, "no workload is named"),
        ({"workloads": ["mlp/infer@cpu"]}, "is not a case"),
        ({"workloads": ["mlp/infer@cpu/float32"], "params": {"batch": ["1"]}}, "do not change a case"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_a_fix(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        sweep(*changes.pop("workloads", ["mlp"]), **changes)
    assert caught.value.fix


def test_without_workers_it_is_the_published_count() -> None:
    assert texts("mnist-ddp-mlp") == ["mnist-ddp-mlp/train@cpu/float32+workers=4"]
    assert texts("mnist-ddp-sigmoid", workers=["1"]) == ["mnist-ddp-sigmoid/train@cpu/float32"]
    assert texts("mlp", mode=["train"]) == ["mlp/train@cpu/float32"]


def test_counts_of_workers_are_compared_with_equal_threads() -> None:
    cores = len(allowed_cores())
    for most, nodes in ((2, 1), (cores, 1), (4 * cores, 1), (2 * cores, 2)):
        cases = sweep("mlp", mode=["train"], workers=[f"1,{most}"], nodes=nodes)
        assert {case.threads for case in cases} == {max(1, cores * nodes // most)} or most == 1
        given = sweep("mlp", mode=["train"], workers=[f"1,{most}"], threads=["3"])
        assert {case.threads for case in given} == {3}
    assert [case.threads for case in sweep("mlp", mode=["train"], workers=["2"])] == [None]


def test_settings_are_gathered_by_name() -> None:
    assert split_settings(["batch=16,64", "outputs=2", "batch=1..3"]) == {"batch": ("16,64", "1..3"), "outputs": ("2",)}
    for text in ("batch", "=4", "batch="):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            split_settings([text])
