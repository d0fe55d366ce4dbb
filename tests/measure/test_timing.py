"""`time_step` times any callable in this process; importing torchmark for it costs no torch."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import torchmark
from torchmark.measure.engine import Settings
from torchmark.measure.timing import quiet_interpreter, time_on


def test_a_plain_callable_is_timed_with_its_rate_and_its_doubts() -> None:
    calls: list[int] = []

    def step() -> None:
        calls.append(sum(range(3000)))

    found = torchmark.time_step(step, name="summing", items=3000, unit="number", budget_s=0.3)
    assert (found.status, found.case.workload, found.case.device) == ("ok", "summing", "cpu")
    assert found.work is not None
    assert (found.work.items, found.work.unit) == (3000, "number")
    assert found.estimate is not None
    assert 0 < found.estimate.low_s <= found.estimate.center_s <= found.estimate.high_s
    assert "single-process" in found.estimate.flags
    assert len(calls) > found.estimate.sample_count * found.estimate.block_size
    assert (found.estimate.verdict == "stable") or found.cautions
    assert found.provenance["energy"].startswith(("measured by", "unavailable because"))


def test_a_step_on_a_virtual_clock_is_never_contended_by_real_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.0001,seed=3")
    found = torchmark.time_step(lambda: None, "fake", budget_s=2.0).estimate
    assert found is not None
    assert found.contention.wait_share is None
    assert found.verdict == "stable"
    assert found.center_s == pytest.approx(1e-4, rel=0.01)


def test_what_the_step_raises_is_raised_and_the_collector_runs_again() -> None:
    with pytest.raises(ZeroDivisionError):
        torchmark.time_step(lambda: 1 / 0)
    assert gc.isenabled()


def test_no_garbage_is_collected_while_steps_are_timed() -> None:
    from torchmark.devices.fake import Fake, Script

    states: set[bool] = set()
    time_on(Fake("fake", Script()), lambda: states.add(gc.isenabled()), Settings(steps=5))
    assert states == {False}
    assert gc.isenabled()
    gc.disable()
    with quiet_interpreter():
        pass
    assert not gc.isenabled()
    gc.enable()


def test_torch_is_not_imported_for_the_name_alone() -> None:
    code = (
        "import sys, torchmark; torchmark.time_step, torchmark.load, torchmark.compare_runs;"
        "print('torch' in sys.modules, 'time_step' in torchmark.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
