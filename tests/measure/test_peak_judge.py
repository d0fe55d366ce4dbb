"""A run doubts a ceiling before it doubts a result, and catches work that was never done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchmark.analyze.efficiency import NONE, Ceiling, Ceilings, DeviceCeilings
from torchmark.measure.session import PeakJudge
from torchmark.records import Case, Result, Work, parse_case

INJECTION = Path(__file__).parents[2] / "benchmarks" / "injection"
MATMUL = "matmul/infer:size=1024@cpu/float32"
KNOWN = Ceilings(
    {
        "cpu": DeviceCeilings(
            flops={"float32": Ceiling(100e9, MATMUL)}, paths={"memory": (Ceiling(20e9, "bandwidth/infer", 1e9),)}
        )
    }
)


@pytest.fixture
def too_fast(make_result) -> Result:
    """200 GFLOP/s."""
    return make_result(center_s=1e-3, work=Work(items=1, unit="x", flops=2e8, bytes=1e3))


@pytest.fixture
def product(make_result, make_estimate) -> Callable[[float], Result]:
    """A product at so many FLOP/s."""

    def make(flops_per_s: float) -> Result:
        found = make_estimate(2e9 / flops_per_s)
        return make_result(MATMUL, estimate=found, processes=(found,), work=Work(1, "product", 2e9, 1e6))

    return make


def flags(found: Result) -> tuple[str, ...]:
    assert found.estimate is not None
    return found.estimate.flags


@pytest.mark.parametrize(("now", "doubted"), [(100e9, True), (205e9, False)])
def test_the_ceiling_is_measured_again_before_a_result_is_doubted(now, doubted, too_fast, product) -> None:
    asked: list[Case] = []

    def measure_again(case: Case) -> Result:
        asked.append(case)
        return product(now)

    roof = PeakJudge(KNOWN, measure_again, {})
    for _ in range(2):  # as two processes of the case come in
        found = roof.judge(too_fast)
    assert asked == [parse_case(MATMUL)] * (3 if doubted else 1)
    assert ("implausible" in flags(found)) is doubted
    assert found.peak is not None
    assert found.peak.again
    assert [caution.kind for caution in found.cautions if caution.kind == "implausible"] == ["implausible"] * doubted


def test_a_run_without_stored_limits_finds_its_ceilings_on_the_way(too_fast, product) -> None:
    def never(case: Case) -> Result:
        raise AssertionError(case)

    roof = PeakJudge(NONE, never, {})
    early = roof.judge(replace(too_fast, work=Work(items=1, unit="x", flops=1e8)))
    assert early.peak is None
    roof.judge(product(200e9))
    again = [*roof.revised()]
    (revised,) = [each for each in again if each.case == early.case]
    assert revised.peak is not None
    assert (revised.peak.share, revised.peak.limits) == (pytest.approx(0.5), None)
    assert [*roof.revised()] == again


def test_a_constant_folded_workload_is_caught_in_a_real_run(tmp_path: Path) -> None:
    environment = os.environ | {
        "TORCHMARK_HOME": str(tmp_path / "home"),
        "TORCHMARK_LOCK": str(tmp_path / "lock"),
        "PYTHONPATH": str(INJECTION),
    }
    cases = [f"{name}@cpu/float32" for name in ("matmul/infer:size=256", "bandwidth/infer:size_bytes=4194304")]
    command = [sys.executable, "-m", "torchmark", "run", *cases, "folded/infer@cpu/float32", "--rigor", "quick"]
    done = subprocess.run(
        [*command, "--budget", "12s", "--format", "json"], env=environment, capture_output=True, text=True, check=True
    )
    honest, passes, folded = json.loads(done.stdout)["results"]
    assert "implausible" in folded["estimate"]["flags"]
    assert folded["peak"]["again"]
    assert folded["peak"]["share"] > 1.05
    assert honest["peak"]["share"] > 0
    assert passes["peak"]["bound"] == "bandwidth"
