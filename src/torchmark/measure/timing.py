"""Times a step on a device: calibration, neighbours, power, turns and whole jobs."""

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from msgspec.structs import replace

from torchmark.analyze.efficiency import AHEAD_SHARE
from torchmark.analyze.jobs import project
from torchmark.analyze.statistics import median
from torchmark.analyze.verdict import LEAST_POWER_S, cautions_of, combine, was_paused
from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.errors import CaseError, UsageError
from torchmark.measure import engine
from torchmark.measure.engine import DEFAULTS, Progress, ReadConditions, Run, Samples, Settings, TimeBlock, as_block
from torchmark.meters import Meter, open_conditions, open_vitals, provenance, unavailable
from torchmark.meters.process import Wait, read_moment, wait_reader
from torchmark.records import STEP, Block, Case, Conditions, Estimate, JobEstimate, Moment, Result, StageEstimate, Work
from torchmark.workloads.contract import Step

PAUSED, LAUNCH_BOUND = "paused", "launch-bound"
LONGEST_LAUNCH_S = 0.1  # in a longer step the host may wait for a full queue
MOST_VOID = 100  # after that the block counts: its clocks never agree
SAMPLING_S, PAUSE_S = 3.0, 0.05  # of the power
SETTLING_S = 1.0  # until readings are those of the work: one may be the mean of a second
WARM_S = 0.2  # before each turn: the other side's threads may still spin, and caches are cold


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
    """Time any callable in this process: warm, synchronised, until the result is precise enough.

    `items` is what one call is worth, for a rate. The step must neither synchronise nor time itself, and must leave its
    work on `device`.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?", name):
        raise UsageError(f"'{name}' is no name that a case can have", "Use letters, digits, dots and dashes")
    opened = open_device(device)
    found = time_on(opened, step, replace(DEFAULTS, target=target, budget_s=budget_s))
    estimate, provenance = complete_power(found, opened)
    result = Result(Case(name, "infer", device=opened.name), "ok", work=Work(items, unit), budget_s=budget_s)
    result = replace(result, estimate=combine([estimate]), processes=(estimate,), provenance=provenance)
    return replace(result, cautions=cautions_of(result))


def time_on(
    device: Device, step: Run, settings: Settings, progress: Callable[[Progress], None] | None = None
) -> Estimate:
    """Calibrate, then sample without garbage collection and, where time is real, watch the neighbours."""
    costs, time_block = device.calibrate(), watch_timer(device, step)
    real = device.clock is time.perf_counter
    read = open_conditions(family=device.family, device=device.name) if real else device.conditions
    with quiet_interpreter():
        estimate = engine.measure_steps(
            time_block,
            clock=device.clock,
            sync_cost_s=costs.sync_s,
            conditions=with_probe(read) if real and read else read,
            glance=read,
            settings=replace(settings, call_cost_s=costs.call_s),
            progress=progress,
        )
    if device.queues and time_block.issue_shares:
        share = median(time_block.issue_shares)
        estimate = replace(estimate, issue_share=share)
        estimate = with_flag(estimate, LAUNCH_BOUND) if share >= AHEAD_SHARE else estimate
    return time_block.completed(estimate)


def with_flag(estimate: Estimate, flag: str) -> Estimate:
    return replace(estimate, flags=tuple(dict.fromkeys((*estimate.flags, flag))))


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection inside: it would land in some of the samples."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class WatchedTimer:
    """Times blocks of steps. Those in which the machine slept or the process was stopped are void: counted, and taken
    again. `issue_shares` of single steps went by until all was launched; near 1, the device waits for the host."""

    def __init__(
        self, timer: TimeBlock, waits: Callable[[], Wait] | None = None, moments: Callable[[], Moment] = read_moment
    ) -> None:
        self.void_count, self.issue_shares = 0, list[float]()
        self._time_block, self._waits, self._moments = timer, waits or (lambda: (None, None)), moments

    def __call__(self, count: int) -> Block:
        while True:
            before = self._moments()
            waited, switched = self._waits()
            block = as_block(self._time_block(count))
            waited_after, switched_after = self._waits()
            if count == 1 and block.issue_s is not None and 0 < block.total_s <= LONGEST_LAUNCH_S:
                self.issue_shares.append(block.issue_s / block.total_s)
            if waited is not None and waited_after is not None:
                block = replace(block, wait_s=waited_after - waited)
            if switched is not None and switched_after is not None:
                block = replace(block, switches=switched_after - switched)
            if self.void_count == MOST_VOID or not was_paused(before, self._moments()):
                return block
            self.void_count += 1

    def completed(self, estimate: Estimate) -> Estimate:
        return with_flag(replace(estimate, void_count=self.void_count), PAUSED) if self.void_count else estimate


def watch_timer(device: Device, step: Run) -> WatchedTimer:
    """The device's timer of a step; where time is real, with this thread's waits for a core."""
    return WatchedTimer(device.timer(step), wait_reader() if device.clock is time.perf_counter else None)


def with_probe(read: ReadConditions) -> ReadConditions:
    """Add the time of a fixed calculation to each reading: it takes longer on a busy machine."""

    def probe_s() -> float:
        total, started = 0, time.perf_counter()
        for number in range(30_000):  # about 2 ms of pure Python: one core, no memory, no library
            total += number
        return time.perf_counter() - started

    return lambda: replace(read(), probe_s=min(probe_s() for _ in range(3)))


def complete_power(
    estimate: Estimate, device: Device, run: Run | None = None, all_seen: bool = True
) -> tuple[Estimate, dict[str, str]]:
    """The estimate with its power, and each meter's source; without a counter, power is sampled over `run`."""
    if device.clock is not time.perf_counter:
        return estimate, {}  # a made-up device has no meters of this machine's
    sources, metered = provenance(device.name), estimate.metered
    counted, sampled = (sources["energy"].startswith(word) for word in ("measured", "estimated"))
    if not all_seen:
        sources["energy"] = unavailable("several devices or machines worked, and only one of them is read")
        return replace(estimate, metered=replace(metered, mean_w=None, peak_w=None)), sources
    if sampled and run and (watts := sample_power(open_vitals(device.name)["energy"], device, run)):
        metered = replace(metered, mean_w=fmean(watts), peak_w=max(watts))
    if metered.mean_w is None and (sampled or counted):
        slow = f"the counter moves too slowly for less than {LEAST_POWER_S:g} s of steps"
        sources["energy"] = unavailable("its power was not sampled during untimed steps" if sampled else slow)
    return replace(estimate, metered=metered), sources


def sample_power(meter: Meter, device: Device, run: Run) -> list[float]:
    """Watts read by another thread while this one keeps the device at work."""
    watts: list[float] = []
    done, began, time_block = threading.Event(), time.monotonic(), device.timer(run)

    def ask() -> None:
        while not done.wait(PAUSE_S):
            if (power := meter.watts()) is not None and time.monotonic() - began > SETTLING_S:
                watts.append(power)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        while time.monotonic() - began < SETTLING_S + SAMPLING_S:
            time_block(1)
    finally:
        done.set()
        thread.join()
    return watts


def measure_job(step: Step, main: Estimate, device: Device, settings: Settings) -> JobEstimate | None:
    """The job's wall time from the main step's estimate and a short look at each other stage."""

    def stage_of(found: Estimate, name: str, steps: int) -> StageEstimate:  # many steps add up to their mean
        return StageEstimate(name, steps, found.mean_s, max(found.mean_low_s, 0.0), found.mean_high_s)

    least_s, budget_s = min(settings.min_time_s, 0.3), max(0.15 * settings.budget_s, 0.3)  # of each other stage
    brief = replace(settings, budget_s=budget_s, steps=None, min_samples=8, min_time_s=least_s)
    stages = [stage_of(main, STEP, step.job_steps)] if step.job_steps else []
    for stage in step.stages:
        time_block = device.timer(stage.run)
        once_s = time_block(1).total_s
        if once_s > budget_s and stage.steps >= 50:  # the first may have started what the others use
            once_s = time_block(1).total_s
        if once_s > budget_s:  # time for one only: right within a factor of two
            stages.append(StageEstimate(stage.name, stage.steps, once_s, once_s / 2, once_s * 2))
        else:
            stages.append(stage_of(time_on(device, stage.run, brief), stage.name, stage.steps))
    return project(stages, JobEstimate(0.0, 0.0, 0.0, whole=False, epochs=step.epochs)) if stages else None


def run_whole(
    step: Step, device: Device, expected: JobEstimate, time_left_s: float, listen: Callable[[float], None]
) -> JobEstimate | None:
    """Run the whole job and pass on the share that is done; None where the time is too short."""
    started, total, last_s = device.clock(), max(expected.seconds, 1e-9), 0.0
    if total > time_left_s:
        return None
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


class Turns:
    """One step's turns in this process; `most` of them share the room for samples."""

    def __init__(self, device: Device, run: Run, step_s: float, settings: Settings, most: int) -> None:
        self._real, costs = device.clock is time.perf_counter, device.calibrate()
        self._time_block, self._clock, self._step_s, self._most = watch_timer(device, run), device.clock, step_s, most
        self._settings = replace(settings, call_cost_s=costs.call_s)
        self._samples = Samples(self._time_block, costs.sync_s, self._settings, device.clock)
        self._read: ReadConditions = lambda: Conditions(device.clock())
        if self._real:
            self._read = with_probe(open_conditions(family=device.family, device=device.name))
        self._spans, self._duration_s = list[tuple[Conditions, Conditions]](), 0.0
        if step_s >= 0.1:  # one timing decides how many make a sample
            self.block_size = engine.block_size_for(step_s - costs.sync_s, costs.sync_s)
        else:
            self.block_size = engine.choose_block_size(self._time_block, costs.sync_s)

    def warm_up(self, seconds: float, block_size: int) -> None:
        """Run steps for about so long; slow steps only wait, as they cool down again anyway."""
        if self._step_s >= WARM_S:
            time.sleep(min(seconds, WARM_S))
            return
        end = self._clock() + seconds
        while self._clock() < end:
            self._time_block(block_size)

    def take(self, seconds: float, block_size: int) -> float:
        if len(self._spans) >= self._most:
            raise CaseError(f"a side has at most {self._most} turns", "Ask for fewer")
        self.warm_up(WARM_S, block_size)
        samples, most = self._samples, self._settings.max_samples // self._most
        first, before, began = samples.count, self._read(), self._clock()
        while True:
            samples.take(block_size)
            if self._clock() - began >= seconds or samples.count - first >= most:
                break
        self._duration_s += self._clock() - began
        self._spans.append((before, self._read()))
        return max(median(samples.values[first:]) - samples.call_cost_s, 1e-12)

    def estimate(self, first_step_s: float) -> Estimate:
        rule = self._samples.rule(replace(self._settings, steps=self._samples.count))
        rule.look(self._samples.values)
        readings = joined(self._spans) if self._real else ()
        return self._time_block.completed(self._samples.estimate(rule, first_step_s, self._duration_s, readings))


def joined(spans: Sequence[tuple[Conditions, Conditions]]) -> tuple[Conditions, ...]:
    """Readings before and after each turn, without what happened between turns."""
    counters = ["at_s", "other_cpu_s", "steal_s", "throttled_s", "wait_s", "energy_j"]
    counters += ["major_fault_count", "thermal_count"]

    def less(value: float | None, gap: float | None) -> float | None:
        return None if value is None or gap is None else value - gap

    readings: list[Conditions] = []
    for span in spans:
        last = readings[-1] if readings else span[0]
        gaps = {name: less(getattr(span[0], name), getattr(last, name)) for name in counters}
        readings += [
            replace(reading, **{name: less(getattr(reading, name), gap) for name, gap in gaps.items()})
            for reading in span
        ]
    return tuple(readings)
