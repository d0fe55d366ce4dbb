"""The engine's test-bed in small: step times with a known truth, with seeds that change daily."""

from __future__ import annotations

import datetime
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchmark.devices.streams import KINDS

TRIALS, PAIR_TRIALS = 40, 110
TODAY = int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))


@pytest.fixture(scope="module")
def testbed() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "testbed.py"
    specification = importlib.util.spec_from_file_location("testbed", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["testbed"] = module  # its processes look their functions up by this name
    specification.loader.exec_module(module)
    return module


def test_no_gate_is_surely_broken(testbed: ModuleType) -> None:
    """Fails only where the 99% Clopper-Pearson bound lies beyond the gate: a bad day is no broken engine."""
    summaries, gates = testbed.run(TRIALS, TODAY, KINDS, ["torchmark"], PAIR_TRIALS)
    assert len(summaries) == 2 * len(KINDS)
    assert len(gates) > 60
    broken = [f"{gate.name}: {gate.good} of {gate.trials}" for gate in gates if not gate.holds(surely=True)]
    assert broken == [], f"seed {TODAY}"


def test_the_peers_play_on_the_same_bed(testbed: ModuleType) -> None:
    summaries, _ = testbed.run(5, TODAY, ["iid2", "warm-step"], list(testbed.METHODS), 0)
    figures = {(one.kind, one.machine, one.method): one for one in summaries}
    assert len(figures) == 2 * 2 * 3
    for peer in ("torch blocked_autorange", "fixed 10+100"):
        assert figures["iid2", "10 ms", peer].p95_error < 0.02
        assert figures["warm-step", "10 ms", peer].p95_error > figures["warm-step", "10 ms", "torchmark"].p95_error


@pytest.mark.parametrize(
    ("good", "trials", "surely", "exactly"), [(40, 40, True, True), (36, 40, True, False), (30, 40, False, False)]
)
def test_a_gate_forgives_chance_in_a_small_test_only(
    testbed, good: int, trials: int, surely: bool, exactly: bool
) -> None:
    gate = testbed.Gate("coverage", good, trials, 0.95)
    assert (gate.holds(surely=True), gate.holds(surely=False)) == (surely, exactly)
