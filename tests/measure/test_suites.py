"""The suites hold what they promise, on every device."""

from __future__ import annotations

import msgspec
import pytest

from torchmark.errors import UnknownName
from torchmark.measure.suites import SUITES, suite
from torchmark.workloads import find_workload, names


def test_each_suite_contains_the_one_before_it_on_every_device() -> None:
    quick, standard, full = (suite(name, ["cpu", "cuda:0"]) for name in ("quick", "standard", "full"))
    assert set(map(str, quick)) < set(map(str, standard)) < set(map(str, full))
    devices = [case.device for case in quick]
    assert devices == sorted(devices)
    assert {"null/infer@cpu/float32", "mlp/infer@cpu/float32+per-step", "matmul/infer@cpu/bfloat16"} <= {
        case.text for case in quick
    }
    with pytest.raises(UnknownName, match="Did you mean 'quick'"):
        suite("quik")


@pytest.mark.parametrize("name", SUITES)
def test_a_tiny_suite_has_no_large_case(name: str) -> None:
    for case in suite(name, tiny=True):
        tiny = msgspec.structs.asdict(find_workload(case.workload).tiny)
        assert all(value == tiny[key] for key, value in case.params.items() if isinstance(value, int))


def test_every_workload_is_in_the_quick_suite() -> None:
    quick = {case.workload for case in suite("quick", ["cpu", "cuda:0"])}
    assert quick == set(names()) - {"all-reduce"}  # a part of every training that workers share


def test_what_only_one_kind_of_device_can_do_is_left_out_elsewhere() -> None:
    assert not [case for case in suite("quick", ["cpu"]) if case.workload == "copy"]
    assert not [case for case in suite("quick", ["cuda:0"]) if case.workload in ("dataloader", "mnist-ddp-mlp")]
