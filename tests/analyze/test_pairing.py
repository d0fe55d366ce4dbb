"""Only equal work is paired, none twice, and what has no partner says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.pairing import differences_of, join_machines, pair_runs, pair_within
from torchmark.errors import UnknownName
from torchmark.records import Case, Machine, Remark, Result, Run, RunHeader, Work, parse_case

MACHINE = Machine("cpu", 2, 2, 8, "Linux", "3.11", torch="2.12.0")
MLP = "mlp/infer:batch=64@cpu/float32"

cases = st.builds(
    Case,
    workload=st.sampled_from(["mlp", "lstm"]),
    mode=st.sampled_from(["infer", "train"]),
    params=st.sampled_from([{}, {"batch": 16}, {"batch": 64}]),
    device=st.sampled_from(["cpu", "mps", "cuda", "cuda:0", "cuda:1"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.sampled_from([None, 1]),
    protocol=st.sampled_from(["steady", "as-published"]),
)
case_lists = st.lists(cases, max_size=12, unique_by=lambda case: case.text)
axes = st.sampled_from([None, "dtype", "mode", "threads"])


def run_of(*results: Result | str | Case) -> Run:
    made = tuple(
        each if isinstance(each, Result) else Result(each if isinstance(each, Case) else parse_case(each), "ok")
        for each in results
    )
    return Run(RunHeader("x", "2026", MACHINE, (), "torchmark run", "0"), made)


def texts(a: Run, b: Run, axis: str | None = None) -> list[tuple[str, str]]:
    return [(first.case.text, second.case.text) for first, second in pair_runs(a, b, axis).matches]


def reason(a: Run, b: Run) -> str:
    (only,) = {each.reason for each in pair_runs(a, b).unpaired if each.a}
    return only


@given(case_lists, case_lists, axes)
def test_pairing_is_a_matching_and_leaves_none_out(first, second, axis) -> None:
    pairing = pair_runs(run_of(*first), run_of(*second), axis)
    for side, given_cases in ((0, first), (1, second)):
        rows = [*pairing.matches, *((each.a, each.b) for each in pairing.unpaired)]
        seen = [row[side].case.text for row in rows if row[side]]
        assert sorted(seen) == sorted(case.text for case in given_cases)


@given(case_lists, case_lists, axes)
def test_swapping_the_runs_swaps_the_pairs(first, second, axis) -> None:
    there = texts(run_of(*first), run_of(*second), axis)
    back = texts(run_of(*second), run_of(*first), axis)
    assert sorted(there) == sorted((a, b) for b, a in back)


@given(case_lists, case_lists)
def test_equal_cases_are_partners_and_unequal_work_never_is(first, second) -> None:
    paired = texts(run_of(*first), run_of(*second))
    equal = {case.text for case in first} & {case.text for case in second}
    assert {a for a, b in paired if a == b} == equal
    for a, b in paired:
        one, other = parse_case(a), parse_case(b)
        assert (one.task, one.dtype) == (other.task, other.dtype)


def test_a_partner_may_run_elsewhere_and_as_published_if_it_is_the_only_one() -> None:
    mine = run_of(MLP, "mlp/infer:batch=64@mps/float32")
    published = run_of("mlp/infer:batch=64@mps/float32+as-published")
    assert texts(mine, published) == [("mlp/infer:batch=64@mps/float32", published.results[0].case.text)]
    elsewhere = run_of("mlp/infer:batch=64@cuda/float32+as-published")
    assert texts(mine, elsewhere) == []
    assert "several there could be its partner" in pair_runs(elsewhere, mine).unpaired[0].reason
    assert texts(run_of("mlp/infer@cuda:0/float32", "mlp/infer@cpu/float32"), run_of("mlp/infer@cuda/float32")) == [
        ("mlp/infer@cuda:0/float32", "mlp/infer@cuda/float32")
    ]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("lstm/infer@cpu/float32", "not in the second run"),
        ("mlp/train:batch=64@cpu/float32", "has mode train instead of infer (--by mode compares them)"),
        ("mlp/infer:batch=16@cpu/float32", "has batch 16 instead of 64 (--by batch compares them)"),
        ("mlp/infer:batch=64@cpu/bfloat16", "has dtype bfloat16 instead of float32 (--by dtype compares them)"),
        ("mlp/infer:batch=64@cpu/float32+compile", "has compile on instead of off (--by compile compares them)"),
        ("mlp/infer:batch=64@cpu/float32+per-step", "has transfer per-step instead of resident"),
    ],
)
def test_other_work_is_refused_with_the_reason(other: str, words: str) -> None:
    assert texts(run_of(MLP), run_of(other)) == []
    assert words in reason(run_of(MLP), run_of(other))


def test_by_names_what_partners_may_differ_in() -> None:
    other = "mlp/infer:batch=64@cpu/bfloat16"
    assert texts(run_of(MLP), run_of(other), "dtype") == [(MLP, other)]
    assert texts(run_of(MLP), run_of("mlp/infer:batch=16@cpu/float32"), "batch")
    with pytest.raises(UnknownName, match="Did you mean 'batch'"):
        pair_runs(run_of(MLP), run_of(MLP), "bacth")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "the work changed: version 1 in the first run, 2 in the second run"),
        ({"params": {"batch": 64, "outputs": 512}}, "another outputs: 2 in the first run, 512"),
        ({"work": Work(64, "row")}, "another unit: sample in the first run, row in"),
        ({"work": Work(32, "sample")}, "another amount of work in a step: 64 sample in the first run, 32"),
        ({"cautions": (Remark("not-comparable", "other code", ""),)}, "not comparable: other code"),
        ({"status": "oom"}, "oom in the second run"),
    ],
)
def test_equal_cases_that_did_not_do_the_same_are_refused(changes: dict[str, object], words: str) -> None:
    result = Result(parse_case(MLP), "ok", params={"batch": 64, "outputs": 2}, work=Work(64, "sample"))
    assert words in reason(run_of(result), run_of(replace(result, **changes)))


def test_two_figures_that_only_they_are_comparable_with_are_compared() -> None:
    caution = Remark("not-comparable", "other code", "")
    revive = Result(parse_case("venv-ppo/train@cpu/float32+as-published"), "ok", cautions=(caution,))
    assert texts(run_of(revive), run_of(revive))


def test_inside_a_run_everything_is_held_against_the_baseline() -> None:
    run = run_of("mlp/infer@mps/float32", "mlp/infer@cpu/float32", "mlp/infer@cuda:0/float32", "lstm/infer@mps/float32")
    pairing = pair_within(run, "device")
    devices = [(first.case.device, second.case.device) for first, second in pairing.matches]
    assert devices == [("cpu", "mps"), ("cpu", "cuda:0")]
    assert [(each.case, each.reason) for each in pairing.unpaired] == [
        ("lstm/infer@mps/float32", "only one value of device was measured")
    ]
    sweep = run_of(*(f"mlp/infer:batch={batch}@cpu/float32" for batch in (64, 256, 16)))
    assert [first.case.params["batch"] for first, _ in pair_within(sweep, "batch").matches] == [16, 16]


def test_cpu_and_gpu_of_a_published_machine_are_one() -> None:
    def published(name: str, device: str) -> Run:
        run = run_of(f"mlp/infer@{device}/float32+as-published")
        return replace(run, header=replace(run.header, id=name, label=name))

    runs = [published("p/M1 CPU", "cpu"), published("p/M1 GPU", "mps"), published("p/T4", "cuda")]
    assert [(run.header.label, len(run.results)) for run in join_machines(runs)] == [("p/M1", 2), ("p/T4", 1)]
    measured = run_of(MLP)
    assert len(join_machines([measured, measured])) == 2


def test_for_any_is_known_to_differ_is_named() -> None:
    a = Result(parse_case(MLP), "ok", settings={"threads": 2, "attention": "sdpa", "onednn": True, "cores": None})
    b = Result(
        parse_case(MLP.replace("cpu", "mps") + "+as-published"),
        "ok",
        settings={"threads": 4, "attention": "eager", "onednn": False, "cores": 3},
    )
    first = run_of(a).header
    second = replace(first, machine=replace(MACHINE, torch="2.13.0", power_mode="saver", on_battery=True), version="1")
    first = replace(first, machine=replace(MACHINE, power_mode="balanced", on_battery=False))
    assert [each.text for each in differences_of(a, b, first, second)] == [
        "device cpu → mps",
        "protocol steady → as-published",
        "threads 2 → 4",
        "attention sdpa → eager",
        "onednn on → off",
        "torch 2.12.0 → 2.13.0",
        "power mode balanced → saver",
        "power mains → battery",
        "torchmark 0 → 1",
    ]
    assert differences_of(a, a, first, first) == ()
