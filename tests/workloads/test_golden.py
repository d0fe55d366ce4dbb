"""The work itself never changes within a version, so that results stay comparable: change both or neither."""

from __future__ import annotations

import pytest

from torchmark.workloads import find_workload, names
from torchmark.workloads.contract import Setting
from torchmark.workloads.mlp import Params as MlpParams
from torchmark.workloads.mlp import parameter_count
from torchmark.workloads.tensor_add import Params as AddParams

# Workload, mode -> version, FLOPs and bytes of a default float32 step, the tiny step's outputs: the sum
# of their mean absolute values.
GOLDEN = {
    ("matmul", "infer"): (1, 17_179_869_184, 50_331_648, 3.807321),
    ("mlp", "infer"): (1, 268_697_600, 4_729_864, 0.07654941),
    ("mlp", "train"): (1, 671_875_072, 8_934_416, 3.020818),
    ("null", "infer"): (1, 0, 0, 0.0),
    ("tensor-add", "infer"): (1, 150_994_944, 1_811_939_328, 0.9405229),
}


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name in names() for mode in find_workload(name).modes])
def test_the_work_is_what_this_version_says(name: str, mode: str) -> None:
    workload = find_workload(name)
    step = workload.prepare(workload.tiny, Setting(mode=mode))
    checksum = sum(float(output.double().abs().mean()) for output in step.outputs()) if step.outputs else 0.0
    work = workload.work(workload.params(), Setting(mode=mode))
    assert work is not None
    version, flops, byte_count, expected = GOLDEN[name, mode]
    assert (workload.version, work.flops, work.bytes) == (version, flops, byte_count)
    assert checksum == pytest.approx(expected, rel=1e-4)


def test_parameter_counts_are_those_of_the_publication() -> None:
    assert parameter_count(MlpParams(outputs=512)) == 1_312_768
    assert parameter_count(MlpParams()) == 1_051_138


@pytest.mark.parametrize("name", ["mlp", "matmul"])
def test_flops_agree_with_what_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    workload = find_workload(name)
    for mode in workload.modes:
        step = workload.prepare(workload.tiny, Setting(mode=mode))
        with FlopCounterMode(display=False) as counter:
            step.run()
        assert step.work.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize(("variant", "gigabytes"), [("resident", 1.81), ("as-run", 1.21), ("as-written", 3.62)])
def test_traffic_of_tensor_add_is_that_of_its_variant(variant: str, gigabytes: float) -> None:
    work = find_workload("tensor-add").work(AddParams(variant=variant), Setting(mode="infer"))  # type: ignore[arg-type]
    assert work is not None
    assert work.bytes == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_training_learns_and_stays_finite() -> None:
    workload = find_workload("mlp")
    step = workload.prepare(MlpParams(batch=8), Setting(mode="train"))
    losses = [float(step.run()) for _ in range(100)]  # type: ignore[arg-type]
    assert losses[-1] < 0.2 * losses[0]


def test_doubling_goes_on_after_its_values_are_infinite() -> None:
    from torchmark.measure.check import check_step

    step = find_workload("tensor-add").prepare(AddParams(size=8, variant="as-run"), Setting(mode="infer"))
    last = [step.run() for _ in range(140)][-1]
    assert bool(last.isinf().all())  # type: ignore[attr-defined]
    assert check_step(step, "float32") is not None
