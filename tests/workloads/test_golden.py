"""The work itself never changes within a version, so that results stay comparable: change both or neither."""

from __future__ import annotations

import pytest

from torchmark.workloads import find_workload, names
from torchmark.workloads.contract import Setting
from torchmark.workloads.copy import prepare_copy
from torchmark.workloads.mlp import Mlp
from torchmark.workloads.mlp import Params as MlpParams
from torchmark.workloads.tensor_add import Params as AddParams

# Workload, mode -> version, FLOPs and bytes of a default float32 step (of the tiny one if only `prepare` knows them),
# and the sum of the mean absolute values of the tiny step's outputs.
GOLDEN: dict[tuple[str, str], tuple[int, float | None, float | None, float]] = {
    ("all-reduce", "infer"): (1, 0, 0, 0.4702420),
    ("bandwidth", "infer"): (1, 134_217_728, 805_306_368, 0.7610063),
    ("launch", "infer"): (1, None, None, 1.264478),
    ("bert-classify", "train"): (1, 1_072_724_852_736, 2_599_516_464, 0.8798612),
    ("bert-classify", "infer"): (1, 357_574_950_912, 433_280_264, 0.6931649),
    ("bert-encode", "infer"): (1, 22_348_431_360, 343_383_040, 0.8221395),
    ("resnet50", "infer"): (1, 261_707_792_384, 121_623_712, 0.9653006),
    ("resnet50", "train"): (1, 777_570_484_224, 428_180_224, 10.37884),
    ("vit-train", "train"): (1, 841_214_066_688, 2_082_440_704, 9.285385),
    ("llm-decode", "infer"): (1, 223_776_768, 447_633_408, 0.9046181),
    ("llm-prefill", "infer"): (1, 22_096_773_120, 447_949_824, 2.509090),
    ("stable-diffusion", "infer"): (1, 1_606_546_882_560, 3_438_688_016, 5.370836),
    ("copy", "infer"): (1, 0, 67_108_864, 0.4774771),
    ("lstm", "infer"): (1, 19_327_352_832, 44_105_728, 0.02316365),
    ("lstm", "train"): (1, 53_687_091_200, 81_920_000, 2.402700),
    ("venv-ppo", "train"): (1, 460_596_445_184, 28_713_392, 10.73505),
    ("cifar-cnn", "train"): (1, 12_818_880, 1_041_280, 2.526129),
    ("dataloader", "infer"): (1, 100_352, 250_880, 0.6252909),
    ("mnist-cnn", "train"): (1, 166_080_000, 550_656, 2.802132),
    ("matmul", "infer"): (1, 17_179_869_184, 50_331_648, 3.807321),
    ("mlp", "infer"): (1, 268_697_600, 4_729_864, 0.07654941),
    ("mlp", "train"): (1, 671_875_072, 8_934_416, 4.030992),
    ("mnist-ddp-mlp", "train"): (1, 52_363_264, 3_457_696, 5.665110),
    ("mnist-ddp-sigmoid", "train"): (1, 104_730_368, 6_714_192, 7.607021),
    ("null", "infer"): (1, 0, 0, 0.0),
    ("tensor-add", "infer"): (1, 150_994_944, 1_811_939_328, 0.9405229),
}


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name in names() for mode in find_workload(name).modes])
def test_the_work_is_what_this_version_says(name: str, mode: str) -> None:
    workload = find_workload(name)
    prepare = prepare_copy if name == "copy" else workload.prepare  # refused on the CPU by its workload
    step = prepare(workload.tiny, Setting(mode=mode))
    checksum = sum(float(output.double().abs().mean()) for output in step.outputs()) if step.outputs else 0.0
    work = workload.work(workload.params(), Setting(mode=mode)) or step.work
    if (name, mode) not in GOLDEN:
        line = f'("{name}", "{mode}"): ({workload.version}, {work.flops:_.0f}, {work.bytes:_.0f}, {checksum:.7g}),'
        pytest.fail(f"Add this line to GOLDEN in tests/workloads/test_golden.py:\n    {line}", pytrace=False)
    version, flops, byte_count, expected = GOLDEN[name, mode]
    assert (workload.version, work.flops, work.bytes) == (version, flops, byte_count)
    assert checksum == pytest.approx(expected, rel=1e-4)


def test_parameter_counts_are_those_of_the_publication() -> None:
    for params, published in ((MlpParams(outputs=512), 1_312_768), (MlpParams(), 1_051_138)):
        made = Mlp().made(params, Setting(mode="infer"))
        assert sum(weight.numel() for weight in made.module.parameters()) == published


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
