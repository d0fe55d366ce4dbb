"""Times a step on a device with everything that goes with it: calibration, neighbours, power, turns and whole jobs."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.roofline import AHEAD_SHARE
from torchmark.analyze.summary import Observations, combine, summarise
from torchmark.analyze.verdict import LEAST_POWER_S, cautions_of, was_paused
from torchmark.devices import open_device
from torchmark.devices.contract import Clock, Device
from torchmark.errors import CaseError, UsageError
from torchmark.measure.engine import (
    DEFAULTS,
    BlockTotals,
    Progress,
    ReadConditions,
    Samples,
    Settings,
    StopRule,
    TimeBlock,
    as_block,
    block_size_for,
    choose_block_size,
    measure_steps,
    per_step,
)
from torchmark.meters import open_conditions, open_vitals, provenance
from torchmark.meters.contention import wait_reader
from torchmark.meters.meter import Meter, unavailable
from torchmark.meters.process import read_moment
from torchmark.records import (
    STEP,
    Block,
    Case,
    Conditions,
    Estimand,
    Estimate,
    JobEstimate,
    Metered,
    Moment,
    Result,
    StageEstimate,
    Work,
)
from torchmark.workloads.contract import Stage, Step

PROBE_ROUNDS = 30_000  # about 2 ms of pure Python: one core, no memory, no library
PROBE_TRIES = 3
PAUSED, LAUNCH_BOUND = "paused", "launch-bound"
LONGEST_LAUNCH_S = 0.1  # a longer step may fill the queue, and then the host waits for the device
_NAME = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?")
MOST_VOID = 100  # a machine whose clocks never agree is measured all the same


def time_step(
    step: Callable[[], object],
    device: str = "cpu",
    *,
    name: str = "step",
    items: float = 1.0,
    unit: str = "step",
    target: float = DEFAULTS.target,
    budget_s: float = DEFAULTS.budget_s,
) -> Result:
    """Time any callable rightly, in this process: warm, synchronised, until it is known well enough.

    `items` says what one call is worth, so that the result has a rate. The step must neither synchronise nor time
    itself, and must leave its work on `device`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{name}' is no name that a case can have", "Use letters, digits, dots and dashes")
    opened = open_device(device)
    estimate, provenance = complete_power(
        time_on(opened, step, replace(DEFAULTS, target=target, budget_s=budget_s)), opened
    )
    combined = combine([estimate])
    result = Result(
        case=Case(workload=name, mode="infer", device=opened.name),
        status="ok",
        estimate=combined,
        processes=(estimate,),
        work=Work(items=items, unit=unit),
        provenance=provenance,
        budget_s=budget_s,
    )
    return replace(result, cautions=cautions_of(result))


def time_on(
    device: Device,
    step: Callable[[], object],
    settings: Settings,
    progress: Callable[[Progress], None] | None = None,
) -> Estimate:
    """Calibrate, then sample with the collector frozen and, where time is real, the neighbours watched."""
    costs, time_block = device.calibrate(), device.timer(step)
    real = device.clock is time.perf_counter
    issued = Issued(time_block) if device.queues else None
    time_block = issued or time_block
    unpaused = Unpaused(with_waits(time_block) if real else time_block)
    read = open_conditions(family=device.family, device=device.name) if real else device.conditions
    with quiet_interpreter():
        estimate = measure_steps(
            unpaused,
            clock=device.clock,
            sync_cost_s=costs.sync_s,
            conditions=with_probe(read, device.clock) if real and read else read,
            glance=read,
            settings=replace(settings, call_cost_s=costs.call_s),
            progress=progress,
        )
    if issued and issued.share is not None:
        flags = (*estimate.flags, LAUNCH_BOUND) if issued.share >= AHEAD_SHARE else estimate.flags
        estimate = replace(estimate, issue_share=issued.share, flags=tuple(dict.fromkeys(flags)))
    if not unpaused.void_count:
        return estimate
    return replace(estimate, void_count=unpaused.void_count, flags=(*estimate.flags, PAUSED))


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection inside: it would land in some samples and not in others."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def with_waits(time_block: TimeBlock) -> TimeBlock:
    """Each block with how long this thread waited for a core meanwhile; read outside the timed region."""
    read = wait_reader()

    def timed(count: int) -> Block:
        waited, switched = read()
        block = as_block(time_block(count))
        waited_after, switched_after = read()
        if waited is None or waited_after is None or switched is None or switched_after is None:
            return block
        return replace(block, wait_s=waited_after - waited, switches=switched_after - switched)

    return timed


class Issued:
    """Listens how much of a step alone passes before all of it is handed over: where that is nearly all, the device is
    done as soon as it has the last of it, and waits for the host. A step that is handed over ahead shows nothing."""

    def __init__(self, time_block: TimeBlock) -> None:
        self._time_block, self._shares = time_block, list[float]()

    def __call__(self, count: int) -> Block:
        block = as_block(self._time_block(count))
        if count == 1 and block.issue_s is not None and 0 < block.total_s <= LONGEST_LAUNCH_S:
            self._shares.append(block.issue_s / block.total_s)
        return block

    @property
    def share(self) -> float | None:
        return median(self._shares) if self._shares else None


class Unpaused:
    """Blocks across which the machine slept or the process was stopped are void: they are taken again, and counted."""

    def __init__(self, time_block: TimeBlock, read: Callable[[], Moment] = read_moment) -> None:
        self.void_count = 0
        self._time_block, self._read = time_block, read

    def __call__(self, count: int) -> Block:
        while True:
            before = self._read()
            block = as_block(self._time_block(count))
            if self.void_count == MOST_VOID or not was_paused(before, self._read()):
                return block
            self.void_count += 1


def with_probe(read: ReadConditions, clock: Clock) -> ReadConditions:
    """Each reading with a short fixed calculation, which slows down on a busy machine."""

    def conditions() -> Conditions:
        return replace(read(), probe_s=min(_probe(clock) for _ in range(PROBE_TRIES)))

    return conditions


def _probe(clock: Clock) -> float:
    total = 0
    started = clock()
    for number in range(PROBE_ROUNDS):
        total += number
    return clock() - started


SAMPLING_S = 3.0
SETTLING_S = 1.0  # until the power is that of the work; a driver's reading may itself be the mean of a second
PAUSE_S = 0.05


def complete_power(
    estimate: Estimate, device: Device, run: Callable[[], object] | None = None, all_seen: bool = True
) -> tuple[Estimate, dict[str, str]]:
    """The estimate with the power that is known, and where each reading of a meter comes from.

    Where there is no counter, `run` is kept going for a few seconds to sample the power; without it there is none.
    """
    if device.clock is not time.perf_counter:
        return estimate, {}  # a made-up device has no meters of this machine's
    sources = provenance(device.name)
    if not all_seen:
        sources["energy"] = unavailable("several devices or machines worked, and only one of them is read")
        return without_power(estimate), sources
    if sources["energy"].startswith("estimated"):
        watts = sample_power(open_vitals(device.name)["energy"], device, run) if run else []
        power = replace(estimate.metered, mean_w=fmean(watts), peak_w=max(watts)) if watts else estimate.metered
        estimate = replace(estimate, metered=power)
    if estimate.metered.mean_w is None and sources["energy"].startswith("estimated"):
        sources["energy"] = unavailable("its power was not sampled during untimed steps")
    elif estimate.metered.mean_w is None and sources["energy"].startswith("measured"):
        sources["energy"] = unavailable(f"the counter moves too slowly for less than {LEAST_POWER_S:g} s of steps")
    return estimate, sources


def without_power(estimate: Estimate) -> Estimate:
    metered: Metered = replace(estimate.metered, mean_w=None, peak_w=None)
    return replace(estimate, metered=metered)


def sample_power(meter: Meter, device: Device, run: Callable[[], object]) -> list[float]:
    """Watts, one after another, while another thread keeps asking and this one keeps the device at work."""
    watts: list[float] = []
    done = threading.Event()
    began = time.monotonic()

    def ask() -> None:
        while not done.wait(PAUSE_S):
            power = meter.watts()
            if power is not None and time.monotonic() - began > SETTLING_S:
                watts.append(power)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time_block = device.timer(run)
    try:
        while time.monotonic() - began < SETTLING_S + SAMPLING_S:
            time_block(1)
    finally:
        done.set()
        thread.join()
    return watts


STAGE_SHARE = 0.15  # of the case's budget, for each stage other than the main one
LEAST_STAGE_S = 0.3
STAGE_SAMPLES = 8
OFTEN = 50


def measure_job(step: Step, main: Estimate, device: Device, settings: Settings) -> JobEstimate | None:
    """The job's wall time from the main step's estimate and a short look at each other stage; None: there is no job."""
    if not step.job_steps and not step.stages:
        return None
    stages = [_stage_of(main, step.job_steps)] if step.job_steps else []
    stages += [_time_stage(stage, device, settings) for stage in step.stages]
    return JobEstimate(
        seconds=sum(stage.steps * stage.center_s for stage in stages),
        low_s=sum(stage.steps * stage.low_s for stage in stages),
        high_s=sum(stage.steps * stage.high_s for stage in stages),
        whole=False,
        stages=tuple(stages),
        epochs=step.epochs,
    )


def run_whole(
    step: Step, device: Device, expected: JobEstimate, time_left_s: float, listen: Callable[[float], None]
) -> JobEstimate | None:
    """Every step of the job, one after another; `listen` hears the share that is done. None where it is not done in
    the time that is left: it is not even begun if that is known before."""
    started = device.clock()
    total = max(expected.seconds, 1e-9)
    if total > time_left_s:
        return None
    last_s = 0.0
    for run, estimate in zip((step.run, *(stage.run for stage in step.stages)), expected.stages, strict=True):
        time_block, left = device.timer(run), estimate.steps  # a timer, because with several ranks all must run it
        most = max(1, int(total / 20 / max(estimate.center_s, 1e-9)))
        while left:
            count = min(most, left)
            if device.clock() - started + max(count * estimate.center_s, last_s) > time_left_s:
                return None
            last_s = time_block(count).total_s
            left -= count
            listen((device.clock() - started) / total)
    seconds = device.clock() - started
    return replace(expected, seconds=seconds, low_s=seconds, high_s=seconds, whole=True)


def _stage_of(main: Estimate, steps: int) -> StageEstimate:
    """A sum of many steps follows their mean, not their median."""
    return StageEstimate(STEP, steps, main.mean_s, max(main.mean_low_s, 0.0), main.mean_high_s)


def _time_stage(stage: Stage, device: Device, settings: Settings) -> StageEstimate:
    budget_s = max(STAGE_SHARE * settings.budget_s, LEAST_STAGE_S)
    time_block = device.timer(stage.run)
    once_s = time_block(1).total_s
    if once_s > budget_s and stage.steps >= OFTEN:  # the first time may have started what all the others use
        once_s = time_block(1).total_s
    if once_s > budget_s:  # once is all there is time for: right within a factor of two, and said so
        return StageEstimate(stage.name, stage.steps, once_s, once_s / 2, once_s * 2)
    brief = replace(
        settings,
        budget_s=budget_s,
        steps=None,
        min_samples=STAGE_SAMPLES,
        min_time_s=min(settings.min_time_s, LEAST_STAGE_S),
    )
    found = time_on(device, stage.run, brief)
    return StageEstimate(stage.name, stage.steps, found.mean_s, max(found.mean_low_s, 0.0), found.mean_high_s)


# Before each turn: threads of the other side may spin for 0.2 s after their last step, and caches are cold.
WARM_S = 0.2
MOST_TURNS = 8  # timed ones, unless more are asked for; the room for samples is shared out among them
SURELY_LONG_S = 0.1  # from here on, one timing of a step decides how many make a sample
_COUNTERS = (
    "at_s", "other_cpu_s", "steal_s", "throttled_s", "wait_s", "major_fault_count", "thermal_count", "energy_j"
)  # fmt: skip


class Turns:
    """One step's turns in this process."""

    def __init__(
        self, device: Device, run: Callable[[], object], step_s: float, settings: Settings, most: int = MOST_TURNS
    ) -> None:
        real = device.clock is time.perf_counter
        self._costs, timer = device.calibrate(), device.timer(run)
        self._clock, self._step_s, self._settings = device.clock, step_s, settings
        self._time_block = Unpaused(with_waits(timer) if real else timer)
        self._read = (
            with_probe(open_conditions(family=device.family, device=device.name), device.clock) if real else None
        )
        self._samples, self._totals, self._most = Samples(settings.max_samples), BlockTotals(), most
        self._spans: list[tuple[Conditions, Conditions]] = []
        self._duration_s = 0.0
        self._by_events = False
        self.block_size = self._wanted_block_size()

    def _wanted_block_size(self) -> int:
        """How many steps make a sample, where this side alone is asked."""
        sync_s = self._costs.sync_s
        if self._step_s >= SURELY_LONG_S:
            return block_size_for(self._step_s - sync_s, sync_s)
        return choose_block_size(self._time_block, sync_s)

    def warm_up(self, seconds: float, block_size: int) -> None:
        """Run steps for about so long; slow ones warm nothing that they do not cool again: they only wait."""
        if self._step_s >= WARM_S:
            time.sleep(min(seconds, WARM_S))
            return
        end = self._clock() + seconds
        while self._clock() < end:
            self._time_block(block_size)

    def take(self, seconds: float, block_size: int) -> float:
        """One turn: the median of its steps, of which there is one at least."""
        if len(self._spans) >= self._most:
            raise CaseError(f"a side has at most {self._most} turns", "Ask for fewer")
        self.warm_up(WARM_S, block_size)
        first, most = self._samples.count, self._settings.max_samples // self._most
        before = self._conditions()
        began = self._clock()
        while True:
            block = self._time_block(block_size)
            self._totals.add(block, block_size, self._costs.sync_s)
            self._samples.add(*per_step(block, block_size, self._costs.sync_s))
            if self._clock() - began >= seconds or self._samples.count - first >= most:
                break
        self._duration_s += self._clock() - began
        self._spans.append((before, self._conditions()))
        self._by_events, self.block_size = isinstance(block.step_s, tuple), block_size
        return max(float(np.median(self._samples.values[first:])) - self._call_cost_s, 1e-12)

    def estimate(self, first_step_s: float) -> Estimate:
        """The estimate from all turns together."""
        values = self._samples.values
        estimand: Estimand = "median" if self.block_size == 1 or self._by_events else "mean"
        settings = replace(self._settings, steps=len(values))
        rule = StopRule(settings, estimand, 1 if self._by_events else self.block_size, self._clock)
        reading = rule.look(values)
        seen = Observations(
            estimand=estimand,
            block_size=self.block_size,
            confirmed=rule.confirmed,
            first_step_s=first_step_s,
            sync_cost_s=self._costs.sync_s,
            call_cost_s=self._call_cost_s,
            target=settings.target,
            duration_s=self._duration_s,
            readings=joined(self._spans) if self._read else (),
            **self._totals.observed(),
        )
        estimate, void = summarise(values, reading, seen), self._time_block.void_count
        return replace(estimate, void_count=void, flags=(*estimate.flags, PAUSED)) if void else estimate

    @property
    def _call_cost_s(self) -> float:
        return 0.0 if self._by_events else self._costs.call_s

    def _conditions(self) -> Conditions:
        return self._read() if self._read else Conditions(self._clock())


def joined(spans: Sequence[tuple[Conditions, Conditions]]) -> tuple[Conditions, ...]:
    """Readings before and after each turn, as though there had been nothing between: then the other side worked."""
    readings: list[Conditions] = []
    for before, after in spans:
        last = readings[-1] if readings else before
        passed = {name: _passed(getattr(last, name), getattr(before, name)) for name in _COUNTERS}
        for reading in (before, after):
            moved = {name: _less(getattr(reading, name), gap) for name, gap in passed.items()}
            readings.append(replace(reading, **moved))
    return tuple(readings)


def _passed(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier


def _less(value: float | None, gap: float | None) -> float | None:
    return None if value is None or gap is None else value - gap
