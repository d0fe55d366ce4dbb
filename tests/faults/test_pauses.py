"""Samples timed across a pause of the process or machine are void, taken again, and reported."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from torchmark.analyze.verdict import cautions_of
from torchmark.measure.engine import Settings
from torchmark.measure.messages import MeasureJob, Message, Phase
from torchmark.measure.process import measure_case
from torchmark.measure.timing import MOST_VOID, WatchedTimer
from torchmark.records import Moment, parse_case

PAUSE_S = 5.0


def hold(process: psutil.Process) -> None:
    process.suspend()
    time.sleep(PAUSE_S)
    process.resume()


def test_a_worker_that_was_stopped_gives_the_right_figure_and_says_so(workers, monkeypatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.05,sleep=on")

    def stop(message: Message) -> None:
        if isinstance(message, Phase) and message.name == "steps":
            (worker,) = workers()
            threading.Timer(0.5, hold, (worker,)).start()

    job = MeasureJob(parse_case("null/infer@fake/float32"), Settings(budget_s=4.0))
    result = measure_case(job, 60.0, stop)
    assert result.status == "ok", result.reason
    found = result.estimate
    assert found is not None
    assert "paused" in found.flags
    assert found.void_count <= 1  # none, if it fell between two samples
    assert max(found.samples_s) < PAUSE_S
    assert found.center_s == pytest.approx(0.05, rel=0.2)


def test_a_pause_is_a_caution_with_its_fix(make_result, make_estimate) -> None:
    (caution,) = cautions_of(make_result(estimate=make_estimate(flags=("paused",), void_count=2)))
    assert caution.kind == "paused"
    assert "2 samples across it were taken again" in caution.cause
    assert "awake" in caution.fix


class Clocks:
    """A machine whose clocks are set and whose sleep is decided here; a block takes a second."""

    def __init__(self, jumps: dict[int, tuple[float, float]]) -> None:
        self._jumps, self._blocks, self._now = jumps, 0, Moment(100.0, 1e9, 500.0)

    def read(self) -> Moment:
        return self._now

    def time_block(self, count: int) -> float:
        del count
        self._blocks += 1
        wall, boot = self._jumps.get(self._blocks, (0.0, 0.0))
        self._now = Moment(
            self._now.steady_s + 1,
            self._now.wall_s + 1 + wall,
            None if self._now.boot_s is None else self._now.boot_s + 1 + boot,
        )
        return float(self._blocks)


@pytest.mark.parametrize(
    ("wall", "boot", "void"),
    [
        (3600.0, 3600.0, 1),  # it slept for an hour
        (-7200.0, 0.0, 1),  # the clock was set back
        (0.5, 0.0, 1),  # the time service found it slow
        (0.02, 0.0, 0),
        (0.0, 0.0, 0),
    ],
)
def test_clocks_that_disagree_make_a_block_void(wall: float, boot: float, void: int) -> None:
    clocks = Clocks({2: (wall, boot)})
    timed = WatchedTimer(clocks.time_block, moments=clocks.read)
    assert [timed(1).total_s for _ in range(3)] == ([1.0, 3.0, 4.0] if void else [1.0, 2.0, 3.0])
    assert timed.void_count == void


def test_clocks_that_never_agree_do_not_keep_it_from_measuring() -> None:
    clocks = Clocks(dict.fromkeys(range(10 * MOST_VOID), (10.0, 0.0)))
    timed = WatchedTimer(clocks.time_block, moments=clocks.read)
    assert [timed(1).total_s for _ in range(2)] == [MOST_VOID + 1.0, MOST_VOID + 2.0]


def test_a_callable_timed_from_python_is_not_believed_across_a_stop(environment) -> None:
    """Without a handler for signals in the user's own process, one long sample stays; it must not pass for a step."""
    code = "import torchmark; found = torchmark.time_step(lambda: sum(range(1000)), budget_s=3.0).estimate; print("
    code += "found.verdict, found.center_s)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        time.sleep(1.5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        process.send_signal(signal.SIGCONT)
        verdict, center_s = process.communicate(timeout=60)[0].split()
    assert verdict != "stable" or float(center_s) < 1e-3
