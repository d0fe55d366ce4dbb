"""The timing engine: samples a function that times blocks of steps until the estimate is precise enough."""

import math
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.comparison import Answer, answer_of
from torchmark.analyze.statistics import Reading, Series, rank_difference, read_series
from torchmark.analyze.verdict import contention_of, summarise
from torchmark.errors import CaseError
from torchmark.records import Block, Conditions, Estimand, Estimate, Trend

MIN_BLOCK_S = 10e-6  # below this the clock's own cost and grain show in a sample
SYNC_SHARE = 0.01
CONFIRMATION_Z = 2.3
CORRELATED = 2.0  # correlation time from which a series counts as correlated
ENOUGH_TIMES = 100.0  # correlation times until a correlated series counts as steady
GLANCE_S = 1.0  # how often the meters are read between two checkpoints
FEWEST_SAMPLES = 3
SLOW_STEP_S = 1.0  # from here on another process helps more than another step

Clock = Callable[[], float]
Run = Callable[[], object]
TimeBlock = Callable[[int], Block | float]
ReadConditions = Callable[[], Conditions]


class Settings(Struct, frozen=True):
    target: float = 0.01
    budget_s: float = 5.0
    steps: int | None = None  # exactly so many, one sample each, for any precision
    sustain: bool = False  # go on until the budget is spent, for any precision
    min_samples: int = 30
    min_time_s: float = 1.0
    min_effective: float = 20.0
    growth: float = 1.25
    confirmation: float = 1.5
    max_samples: int = 50_000
    warm: bool = False  # steps were run just before: the first one is like any other
    call_cost_s: float = 0.0  # of calling an empty step; taken off every step


class Progress(Struct, frozen=True, tag="progress"):  # what is known at a checkpoint
    samples: int
    elapsed_s: float
    center_s: float
    low_s: float
    high_s: float


DEFAULTS = Settings()


def as_block(seen: Block | float) -> Block:
    block = seen if isinstance(seen, Block) else Block(float(seen))
    _check_finite(block.total_s, "block")
    return block


def _check_finite(seconds: float, what: str) -> None:
    if not math.isfinite(seconds):  # the budget would never run out
        raise CaseError(f"the timer says that a {what} took {seconds} s", "Time it with a clock that counts")


def choose_block_size(time_block: TimeBlock, sync_cost_s: float) -> int:
    size = 1  # a short block may be no longer than its sync, which would ask for millions: try longer ones
    while True:
        total_s = min(as_block(time_block(size)).total_s for _ in range(2))
        wanted = block_size_for((total_s - sync_cost_s) / size, sync_cost_s)
        if wanted <= size or total_s >= 2.0 * sync_cost_s:
            return wanted
        size = min(16 * size, wanted)


def block_size_for(step_s: float, sync_cost_s: float) -> int:
    """The fewest steps that keep the sync under 1% of a sample, and a sample well above the clock's grain."""
    step_s = max(step_s, 1e-9)
    return max(1, math.ceil(sync_cost_s / SYNC_SHARE / step_s), math.ceil(MIN_BLOCK_S / step_s))


class Samples:
    """Seconds per step, by the device's events where there is room, else the mean of a block; waits and switches."""

    def __init__(self, time_block: TimeBlock, sync_cost_s: float, settings: Settings, clock: Clock) -> None:
        self.count, self.block_size, self.stamped, self.roomy = 0, 1, False, True
        # The array never grows inside the timed loop.
        self._seconds = np.empty(settings.steps or settings.max_samples)
        self._time_block, self._sync_cost_s, self._settings, self._clock = time_block, sync_cost_s, settings, clock
        self._steps, self._total_s, self._device_s, self._wall_s = 0, 0.0, 0.0, 0.0
        self._wait_s: float | None = None
        self._switches: int | None = None

    @property
    def values(self) -> Series:
        return self._seconds[: self.count]

    @property
    def call_cost_s(self) -> float:
        """The cost of calling a step, which stamps do not contain."""
        return 0.0 if self.stamped else self._settings.call_cost_s

    def take(self, block_size: int, block: Block | None = None) -> None:
        block = block or as_block(self._time_block(block_size))
        step_s = block.step_s
        self.block_size, self.stamped = block_size, isinstance(step_s, tuple)
        self._total_s += block.total_s
        self._steps += block_size
        self._wall_s += block.total_s - self._sync_cost_s
        if block.wait_s is not None:
            self._wait_s = (self._wait_s or 0.0) + block.wait_s
        if block.switches is not None:
            self._switches = (self._switches or 0) + block.switches
        self._device_s += sum(step_s) if isinstance(step_s, tuple) else (step_s or 0.0) * block_size
        seconds: tuple[float, ...] = ((block.total_s - self._sync_cost_s) / block_size,)
        if isinstance(step_s, tuple):
            seconds = step_s if self.roomy else (sum(step_s) / block_size,)
        for each in seconds[: len(self._seconds) - self.count]:
            _check_finite(each, "step")
            # A sync that is cheaper than calibrated must leave a time with a logarithm.
            self._seconds[self.count] = max(each, 1e-12)
            self.count += 1

    def rule(self, settings: Settings | None = None) -> "StopRule":
        size = 1 if self.stamped and self.roomy else self.block_size
        settings = replace(settings or self._settings, call_cost_s=self.call_cost_s)
        return StopRule(settings, "median" if size == 1 else "mean", size, self._clock)

    def estimate(self, rule: "StopRule", first_s: float, duration_s: float, readings: Sequence[Conditions]) -> Estimate:
        assert rule.reading is not None  # a rule only finishes at a look
        waited = None if self._wait_s is None else min(self._wait_s / max(self._total_s, 1e-12), 1.0)
        known = Estimate(  # what follows from the samples is replaced
            0.0, 0.0, 0.0, rule.estimand, "noisy", first_s, 0.0, 0, Trend(0.0, 0.0),
            block_size=self.block_size,
            sync_cost_s=self._sync_cost_s,
            call_cost_s=self.call_cost_s,
            target=self._settings.target,
            duration_s=duration_s,
            contention=contention_of(readings, waited, self._switches),
            device_step_s=self._device_s / self._steps if self._device_s > 0 else None,
            wall_step_s=self._wall_s / self._steps,
        )  # fmt: skip
        return summarise(self.values, rule.reading, rule.confirmed, known, readings)


class StopRule:
    """Stops on the precision of the estimate, confirmed by a fresh segment, or when the budget is spent."""

    def __init__(self, settings: Settings, estimand: Estimand, block_size: int, clock: Clock) -> None:
        self.settings, self.estimand, self._block_size = settings, estimand, block_size
        self.confirmed = self.finished = False
        self.reading: Reading | None = None
        self._clock, self._started, self._last_s = clock, clock(), 0.0
        self._next, self._good_at = settings.min_samples, 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def due(self, count: int) -> bool:
        """Whether to look now; decides whether there is time for another sample."""
        settings, elapsed = self.settings, self.elapsed_s
        sample_s, self._last_s = elapsed - self._last_s, elapsed
        if settings.steps is not None:
            self.finished = count >= settings.steps
            return self.finished
        late = elapsed >= settings.budget_s
        late |= count >= FEWEST_SAMPLES and elapsed + sample_s > 1.1 * settings.budget_s
        self.finished = late or count >= settings.max_samples
        # Short steps could fill the array before the least time, and one look at the end confirms nothing.
        roomy = elapsed < settings.min_time_s and 2 * count < settings.max_samples
        return self.finished or (count >= self._next and not roomy)

    def look(self, values: Series) -> Reading:
        """Read the series; finish when it is good and was already good before the samples since then."""
        settings, count = self.settings, len(values)
        reading = self.reading = read_series(values, settings.target, self.estimand, self._block_size)
        enough = reading.evidence_time < CORRELATED or count - reading.cut >= ENOUGH_TIMES * reading.evidence_time
        unsteady = reading.warming or reading.trending or reading.slowing
        precise = reading.interval.precision <= settings.target and reading.effective(count) >= settings.min_effective
        good = precise and enough and not unsteady
        if good and self._good_at:
            # Fresh samples keep it from stopping at a lucky moment.
            start = max(reading.cut, min(count // 2, self._good_at // 2))
            change = rank_difference(values[start : self._good_at], values[self._good_at :], reading.time)
            good = abs(change) <= CONFIRMATION_Z
        # A fixed number of steps cannot be a lucky moment.
        self.confirmed = good and (self._good_at > 0 or settings.steps is not None)
        self.finished = self.finished or (self.confirmed and not settings.sustain)
        self._good_at = count if good else 0
        self._next = math.ceil(count * (settings.confirmation if good else settings.growth))
        return reading

    def progress(self, count: int) -> Progress:
        assert self.reading is not None
        times = (max(value - self.settings.call_cost_s, 0.0) for value in self.reading.interval)
        return Progress(count, self.elapsed_s, *times)


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
    """Sample until the step time is known well enough or the budget is spent. `time_block(k)` runs k steps and returns
    their seconds, one synchronisation included. `conditions` and `progress` are called at untimed checkpoints, and
    `glance`, a cheaper reading, about every second between them."""
    first = as_block(time_block(1))
    kept = [first] if settings.warm and first.total_s >= 0.5 else []  # too expensive to be thrown away
    samples = Samples(time_block, sync_cost_s, settings, clock)
    samples.stamped = isinstance(first.step_s, tuple)
    if not kept and settings.steps is None:
        usual = samples.block_size = choose_block_size(time_block, sync_cost_s)
        if settings.sustain:  # leave room for the whole time, even if steps become faster
            step_s = as_block(time_block(usual)).total_s / usual
            needed = math.ceil(settings.budget_s / max(step_s, 1e-9) / (0.8 * settings.max_samples))
            samples.block_size, samples.roomy = max(usual, needed), needed <= 1
    readings = [conditions()] if conditions else []
    rule = samples.rule()
    while not rule.finished:
        samples.take(samples.block_size, kept.pop() if kept else None)
        if rule.due(samples.count):
            rule.look(samples.values)
            readings += [conditions()] if conditions else []
            if progress:
                progress(rule.progress(samples.count))
        elif glance and readings and clock() - readings[-1].at_s >= GLANCE_S:
            readings.append(glance())
    return samples.estimate(rule, max(first.total_s - sync_cost_s, 0.0), rule.elapsed_s, readings)


class PairEstimate(Struct, frozen=True):
    ratio: float  # 0.8: B takes 20% less time than A
    low: float  # of the 95% interval
    high: float
    verdict: Answer  # of B against A
    pairs: int


def measure_pair(
    time_a: TimeBlock,
    time_b: TimeBlock,
    *,
    clock: Clock = time.perf_counter,
    sync_cost_s: float = 0.0,
    settings: Settings = DEFAULTS,
    seed: int = 0,
) -> PairEstimate:
    """Time A and B in adjacent pairs of random order, and estimate the median of the log-ratios."""
    order, timers = random.Random(seed), (time_a, time_b)
    for time_block in timers:
        as_block(time_block(1))
    sizes = [choose_block_size(time_block, sync_cost_s) for time_block in timers]

    def step_s(side: int) -> float:
        total_s = as_block(timers[side](sizes[side])).total_s
        return max((total_s - sync_cost_s) / sizes[side] - settings.call_cost_s, 1e-12)

    ratios: list[float] = []
    rule = StopRule(settings, "median", 1, clock)
    while not rule.finished:
        seconds = {side: step_s(side) for side in ((0, 1) if order.random() < 0.5 else (1, 0))}
        ratios.append(seconds[1] / seconds[0])
        if rule.due(len(ratios)):
            rule.look(np.array(ratios))
    assert rule.reading is not None  # a rule only finishes at a look
    center, low, high = rule.reading.interval
    return PairEstimate(center, low, high, answer_of(low, high), len(ratios))
