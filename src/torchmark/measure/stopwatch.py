"""A stopwatch for published loops: it notes every lap and changes nothing about what is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from torchmark.errors import DoesNotFitError
from torchmark.records import Laps

FEWEST_STEPS = 5
MORE_TIME = "Give it more time with --budget, or take fewer steps with --scale"


def due(published: int, scale: float) -> int:
    """How many of the published repetitions to do for a share of them."""
    return min(published, max(FEWEST_STEPS, math.ceil(scale * published)))


class Stopwatch:
    """Laps by stage. Each begins at the end of the one before, so that together they are the whole time."""

    def __init__(self, time_left_s: float, listen: Callable[[str], None] = lambda _: None) -> None:
        self.stages: dict[str, Laps] = {}
        self.unfinished_s = 0.0  # what the device still had to do when the clock was stopped
        self._listen, self._expected = listen, dict[str, int]()
        self._mark = self._spoken = time.perf_counter()
        self._deadline = self._mark + time_left_s

    def start(self) -> None:
        """The published clock starts here."""
        self._mark = time.perf_counter()

    def lap(self, stage: str, published: int = 1) -> None:
        """Note the end of something other than the work, which the publication did so many times."""
        self._note(self.stages.setdefault(stage, Laps(stage, [], published)).seconds)

    def expect(self, stage: str, count: int) -> None:
        """Announce the number of laps of this stage, in one loop or several."""
        self._expected[stage] = count

    def loop(self, stage: str, published: int, count: int) -> Iterator[int]:
        """Number the steps to take now, each a lap; raise where all of them would take too long."""
        laps = self.stages.setdefault(stage, Laps(stage, [], published, is_work=True)).seconds
        expected = self._expected.setdefault(stage, count)
        for number in range(count):
            yield number
            self._note(laps)
            done = len(laps)
            if done <= 2:  # a first step may take twice as long as those that follow
                self._check_time((expected - done) * (laps[-1] / 2.0 if done == 1 else laps[-1]))
            elif self._mark > self._deadline + 5.0:  # a loop that seemed to fit may be a little late
                self._check_time((expected - done) * sum(laps) / done)
            if self._mark - self._spoken > 1.0:
                self._listen(f"{stage} {done} of {expected}")
                self._spoken = self._mark = time.perf_counter()

    def finish(self, wait: Callable[[], None]) -> None:
        """The published clock has stopped: measure how long the device still works."""
        wait()
        self.unfinished_s = time.perf_counter() - self._mark

    @property
    def seconds(self) -> float:
        return sum(sum(laps.seconds) for laps in self.stages.values())

    @property
    def time_left_s(self) -> float:
        return self._deadline - time.perf_counter()

    def _note(self, laps: list[float]) -> None:
        now = time.perf_counter()
        laps.append(now - self._mark)
        self._mark = now

    def _check_time(self, needed_s: float) -> None:
        if needed_s > max(self.time_left_s, 0.0):
            raise DoesNotFitError(would_take(needed_s + self.seconds), MORE_TIME)


def would_take(seconds: float) -> str:
    """Why a row has no figure: would take 45 s, 12 min or 2.5 h."""
    if seconds < 100:
        return f"would take {seconds:.0f} s"
    return f"would take {seconds / 60:.0f} min" if seconds < 100 * 60 else f"would take {seconds / 3600:.1f} h"
