"""When to look at the samples, and when enough is known: the rules that the engine and the live comparison share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from torchmark.analyze.series import Reading, read_series
from torchmark.analyze.statistics import Series, rank_difference
from torchmark.errors import CaseError
from torchmark.records import Block, Conditions, Estimand

MIN_BLOCK_S = 10e-6  # below this the clock's own cost and grain show in a sample
SYNC_SHARE = 0.01
CONFIRMATION_Z = 2.3
CORRELATED = 2.0  # correlation time from which a series counts as correlated
ENOUGH_TIMES = 100.0  # a correlated series must be this many correlation times long before it may be called steady
FEWEST_SAMPLES = 3
ROOMY = 0.8  # of the room for samples: steps may become faster than they were at first
SYNC_TIMES = 2.0  # a block must take this many times the sync before the rest of it is worth dividing
PROBE_GROWTH = 16

Clock = Callable[[], float]
TimeBlock = Callable[[int], "Block | float"]
ReadConditions = Callable[[], Conditions]


class Settings(Struct, frozen=True):
    """How precise, for how long, and how often to look."""

    target: float = 0.01
    budget_s: float = 5.0
    steps: int | None = None  # exactly this many steps, one sample each, whatever their precision
    sustain: bool = False  # go on until the budget is spent, however precise it is by then
    min_samples: int = 30
    min_time_s: float = 1.0
    min_effective: float = 20.0
    growth: float = 1.25
    confirmation: float = 1.5
    max_samples: int = 50_000
    warm: bool = False  # steps were run just before, so that the first one is like any other
    call_cost_s: float = 0.0  # what calling an empty step costs; taken off every step


class Progress(Struct, frozen=True):
    """What is known at a checkpoint, for whoever is waiting."""

    samples: int
    elapsed_s: float
    budget_s: float
    center_s: float
    low_s: float
    high_s: float


DEFAULTS = Settings()


def as_block(seen: Block | float) -> Block:
    """What a timer gave, as a block; a timer that gives no time would never let the budget run out."""
    block = seen if isinstance(seen, Block) else Block(float(seen))
    if not math.isfinite(block.total_s):
        raise CaseError(f"the timer says that a block took {block.total_s} s", "Time it with a clock that counts")
    return block


def choose_block_size(time_block: TimeBlock, sync_cost_s: float) -> int:
    """How many steps make a sample.

    What is left of a short block after its sync is taken off may be nothing at all by chance, which would ask for
    millions of steps; such a block is tried again longer first.
    """
    size = 1
    while True:
        total_s = min(as_block(time_block(size)).total_s for _ in range(2))
        wanted = block_size_for((total_s - sync_cost_s) / size, sync_cost_s)
        if wanted <= size or total_s >= SYNC_TIMES * sync_cost_s:
            return wanted
        size = min(PROBE_GROWTH * size, wanted)


def block_size_for(step_s: float, sync_cost_s: float) -> int:
    """The fewest steps that keep the sync under 1% of a sample, and a sample well above the clock's grain."""
    step_s = max(step_s, 1e-9)
    return max(1, math.ceil(sync_cost_s / SYNC_SHARE / step_s), math.ceil(MIN_BLOCK_S / step_s))


def block_size_to_sustain(time_block: TimeBlock, block_size: int, settings: Settings) -> int:
    """How many steps must make a sample so that those of the whole time find room; 1 where each step may be one."""
    step_s = as_block(time_block(block_size)).total_s / block_size
    steps = settings.budget_s / max(step_s, 1e-9)
    return max(1, math.ceil(steps / (ROOMY * settings.max_samples)))


class Samples:
    """Seconds per step as they come in, in an array that never grows inside the timed loop."""

    def __init__(self, capacity: int) -> None:
        self._seconds = np.empty(capacity)
        self.count = 0

    def add(self, *seconds: float) -> None:
        for each in seconds[: len(self._seconds) - self.count]:
            if not math.isfinite(each):
                raise CaseError(f"the timer says that a step took {each} s", "Time it with a clock that counts")
            # A sync that was cheaper than calibrated must not make a time that has no logarithm.
            self._seconds[self.count] = max(each, 1e-12)
            self.count += 1

    @property
    def values(self) -> Series:
        return self._seconds[: self.count]


class StopRule:
    """Stops on the precision of the estimate, confirmed by a fresh segment, or when the budget is spent."""

    def __init__(
        self, settings: Settings, estimand: Estimand, block_size: int, clock: Clock = time.perf_counter
    ) -> None:
        self.settings = settings
        self.confirmed = False
        self.finished = False
        self.reading: Reading | None = None
        self._estimand, self._block_size = estimand, block_size
        self._clock, self._started, self._last_s = clock, clock(), 0.0
        self._next = settings.min_samples
        self._good_at = 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def due(self, count: int) -> bool:
        """Whether to look now; also decides whether there is time for another sample."""
        settings, elapsed = self.settings, self.elapsed_s
        sample_s, self._last_s = elapsed - self._last_s, elapsed
        if settings.steps is not None:
            self.finished = count >= settings.steps
            return self.finished
        late = elapsed >= settings.budget_s or (
            count >= FEWEST_SAMPLES and elapsed + sample_s > 1.1 * settings.budget_s
        )
        self.finished = late or count >= settings.max_samples
        # Short steps fill the array before the least time has passed, and a look at the end alone confirms nothing.
        roomy = elapsed < settings.min_time_s and 2 * count < settings.max_samples
        return self.finished or (count >= self._next and not roomy)

    def look(self, values: Series) -> Reading:
        """Read the series; finish when it is good and was already good before the samples since then."""
        reading = read_series(values, self.settings.target, self._estimand, self._block_size)
        count = len(values)
        good = self._good(reading, count)
        if good and self._good_at:
            good = self._agrees(values, reading)
        # A number of steps that was fixed beforehand cannot have been chosen by luck.
        self.confirmed = good and (self._good_at > 0 or self.settings.steps is not None)
        self.finished = self.finished or (self.confirmed and not self.settings.sustain)
        self._good_at = count if good else 0
        self._next = math.ceil(count * (self.settings.confirmation if good else self.settings.growth))
        self.reading = reading
        return reading

    def _good(self, reading: Reading, count: int) -> bool:
        enough = reading.evidence_time < CORRELATED or count - reading.cut >= ENOUGH_TIMES * reading.evidence_time
        unsteady = reading.warming or reading.trending or reading.slowing
        precise = reading.precision <= self.settings.target and reading.effective(count) >= self.settings.min_effective
        return precise and enough and not unsteady

    def _agrees(self, values: Series, reading: Reading) -> bool:
        """Stopping at a lucky moment is prevented by samples that the moment did not know."""
        start = max(reading.cut, min(len(values) // 2, self._good_at // 2))
        return (
            abs(rank_difference(values[start : self._good_at], values[self._good_at :], reading.time)) <= CONFIRMATION_Z
        )
