"""The timing engine: samples a function that times blocks of steps until the estimate is precise enough."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.comparison import Answer
from torchmark.analyze.interleaved import answer_of
from torchmark.analyze.statistics import Reading, Series, rank_difference, read_series
from torchmark.analyze.summary import Observations, summarise
from torchmark.errors import CaseError
from torchmark.records import Block, Conditions, Estimand, Estimate

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
    """What is known at a checkpoint."""

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


KEPT_STEP_S = 0.5  # a first step that takes longer is too expensive to be thrown away
GLANCE_S = 1.0  # how often the meters are read between two checkpoints


def measure_steps(
    time_block: TimeBlock,
    *,
    clock: Clock = time.perf_counter,
    sync_cost_s: float = 0.0,
    conditions: ReadConditions | None = None,
    glance: ReadConditions | None = None,
    settings: Settings = DEFAULTS,
    progress: Callable[[Progress], None] | None = None,
) -> Estimate:
    """Sample until the step time is known well enough or the budget is spent.

    `time_block(k)` runs k steps and returns their seconds, one synchronisation included. `conditions` and `progress`
    are called at checkpoints, outside the timed region; `glance`, a cheaper reading, about every second between them.
    """
    first = as_block(time_block(1))
    stamped = isinstance(first.step_s, tuple)
    kept = [first] if settings.warm and first.total_s >= KEPT_STEP_S else []
    block_size, room = _block_size(time_block, sync_cost_s, settings, single=bool(kept))
    each = stamped and room
    estimand: Estimand = "median" if block_size == 1 or each else "mean"
    settings = replace(settings, call_cost_s=0.0) if stamped else settings  # stamps do not see what a call costs
    samples, seen = Samples(settings.steps or settings.max_samples), BlockTotals()
    readings = [conditions()] if conditions else []
    rule = StopRule(settings, estimand, 1 if each else block_size, clock)
    while not rule.finished:
        block = kept.pop() if kept else as_block(time_block(block_size))
        seen.add(block, block_size, sync_cost_s)
        samples.add(*per_step(block, block_size, sync_cost_s, each))
        if rule.due(samples.count):
            reading = rule.look(samples.values)
            readings += [conditions()] if conditions else []
            if progress:
                progress(_progress(samples.count, rule, reading))
        elif glance and readings and clock() - readings[-1].at_s >= GLANCE_S:
            readings.append(glance())
    observations = Observations(
        estimand=estimand,
        block_size=block_size,
        confirmed=rule.confirmed,
        first_step_s=max(first.total_s - sync_cost_s, 0.0),
        sync_cost_s=sync_cost_s,
        call_cost_s=settings.call_cost_s,
        target=settings.target,
        duration_s=rule.elapsed_s,
        readings=tuple(readings),
        **seen.observed(),
    )
    assert rule.reading is not None  # a rule only finishes at a look
    return summarise(samples.values, rule.reading, observations)


def _block_size(time_block: TimeBlock, sync_cost_s: float, settings: Settings, single: bool) -> tuple[int, bool]:
    """How many steps make a block, and whether there is room for a sample of every step."""
    if single or settings.steps is not None:
        return 1, True
    usual = choose_block_size(time_block, sync_cost_s)
    needed = block_size_to_sustain(time_block, usual, settings) if settings.sustain else 1
    return max(usual, needed), needed == 1


def _progress(count: int, rule: StopRule, reading: Reading) -> Progress:
    center, low, high = (max(value - rule.settings.call_cost_s, 0.0) for value in reading.interval)
    return Progress(count, rule.elapsed_s, rule.settings.budget_s, center, low, high)


def per_step(block: Block, block_size: int, sync_cost_s: float, each: bool = True) -> tuple[float, ...]:
    """Each step by its own events where the device has them and all are wanted, else the block's mean step."""
    if isinstance(block.step_s, tuple):
        return block.step_s if each else (sum(block.step_s) / block_size,)
    return ((block.total_s - sync_cost_s) / block_size,)


class BlockTotals:
    """What blocks show in addition to the samples: waits for a core, switches, the device's own time and the wall's."""

    def __init__(self) -> None:
        self._total_s = self._device_s = self._wall_s = 0.0
        self._steps = 0
        self._wait_s: float | None = None
        self._switches: int | None = None

    def add(self, block: Block, block_size: int, sync_cost_s: float) -> None:
        self._total_s += block.total_s
        self._steps += block_size
        self._wall_s += block.total_s - sync_cost_s
        if block.wait_s is not None:
            self._wait_s = (self._wait_s or 0.0) + block.wait_s
        if block.switches is not None:
            self._switches = (self._switches or 0) + block.switches
        if block.step_s is not None:
            self._device_s += sum(block.step_s) if isinstance(block.step_s, tuple) else block.step_s * block_size

    def observed(self) -> dict[str, Any]:
        """All of it, under the names that a summary has for it."""
        waited = self._wait_s is not None and self._total_s > 0
        return {
            "wait_share": min((self._wait_s or 0.0) / self._total_s, 1.0) if waited else None,
            "switches": self._switches,
            "device_step_s": self._device_s / self._steps if self._device_s > 0 else None,
            "wall_step_s": self._wall_s / self._steps,
        }


class PairEstimate(Struct, frozen=True):
    """How long B takes relative to A, with the 95% interval. 0.8: B takes 20% less time."""

    ratio: float
    low: float
    high: float
    verdict: Answer  # of B against A
    pairs: int
    warmup_cut: int
    confirmed: bool  # the precision that was asked for was reached
    ratios: tuple[float, ...] = ()
    first_a_s: float = 0.0
    first_b_s: float = 0.0


def measure_pair(
    time_a: TimeBlock,
    time_b: TimeBlock,
    *,
    clock: Clock = time.perf_counter,
    sync_cost_s: float = 0.0,
    settings: Settings = DEFAULTS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> PairEstimate:
    """Time A and B in adjacent pairs of random order, and estimate the median of the log-ratios."""
    order = random.Random(seed)
    first_a_s, first_b_s = (as_block(timed(1)).total_s for timed in (time_a, time_b))
    size_a, size_b = (choose_block_size(timed, sync_cost_s) for timed in (time_a, time_b))

    def step(timed: TimeBlock, size: int) -> float:
        return max((as_block(timed(size)).total_s - sync_cost_s) / size - settings.call_cost_s, 1e-12)

    ratios = Samples(settings.steps or settings.max_samples)
    rule = StopRule(settings, "median", 1, clock)
    while not rule.finished:
        if order.random() < 0.5:
            a, b = step(time_a, size_a), step(time_b, size_b)
        else:
            b, a = step(time_b, size_b), step(time_a, size_a)
        ratios.add(b / a)
        if rule.due(ratios.count):
            interval = rule.look(ratios.values).interval
            if progress:
                progress(Progress(ratios.count, rule.elapsed_s, settings.budget_s, *interval))
    assert rule.reading is not None  # a rule only finishes at a look
    center, low, high = rule.reading.interval
    return PairEstimate(
        ratio=center,
        low=low,
        high=high,
        verdict=answer_of(low, high),
        pairs=ratios.count,
        warmup_cut=rule.reading.cut,
        confirmed=rule.confirmed,
        ratios=tuple(ratios.values.tolist()),
        first_a_s=first_a_s,
        first_b_s=first_b_s,
    )
