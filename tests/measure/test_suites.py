"""The suites hold what they promise, on every device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from torchmark.errors import UnknownName
from torchmark.measure.cases import SUITES, expand_suite, place
from torchmark.records import Case
from torchmark.workloads import find_workload, names


def suite(name: str, devices: Sequence[str] = ("cpu",), tiny: bool = False) -> tuple[Case, ...]:
    return place(expand_suite(name, tiny), devices)


def test_each_suite_contains_the_one_before_it_on_every_device() -> None:
    quick, standard, full = (suite(name, ["cpu", "cuda:0"]) for name in ("quick", "standard", "full"))
    assert set(map(str, quick)) < set(map(str, standard)) < set(map(str, full))
    devices = [case.device for case in quick]
    assert devices == sorted(devices)
    published = {"mlp/infer:outputs=512@cpu/float32", "bert-classify/infer@cpu/float32", "matmul/infer@cpu/bfloat16"}
    assert published <= {case.text for case in quick}
    with pytest.raises(UnknownName, match="Did you mean 'quick'"):
        suite("quik")


@pytest.mark.parametrize("name", SUITES)
def test_a_tiny_suite_has_no_large_case(name: str) -> None:
    for case in suite(name, tiny=True):
        tiny = msgspec.structs.asdict(find_workload(case.workload).tiny)
        assert all(value == tiny[key] for key, value in case.params.items() if isinstance(value, int))


def test_the_standard_suite_has_all_areas_and_diagnostics_are_not_on_the_first_screen() -> None:
    standard = {case.workload for case in suite("standard", ["cpu", "cuda:0"])}
    assert standard <= set(names())
    assert len(standard) >= 21
    quick = {case.workload for case in suite("quick", ["cpu", "cuda:0"])}
    assert not quick & {"null", "launch", "bandwidth", "lstm", "dataloader", "copy"}


def test_the_cases_that_lead_an_area_come_first() -> None:
    leads = [case.text.partition("@")[0] for case in suite("quick")][:6]
    assert leads == [
        "mlp/infer:outputs=512", "resnet50/infer", "bert-encode/infer:batch=4", "llm-decode/infer",
        "tensor-add/infer:variant=as-run", "mnist-cnn/train",
    ]  # fmt: skip


def test_what_only_one_kind_of_device_can_do_is_left_out_elsewhere() -> None:
    assert not [case for case in suite("standard", ["cpu"]) if case.workload == "copy"]
    assert not [case for case in suite("standard", ["cuda:0"]) if case.workload in ("dataloader", "mnist-ddp-mlp")]
