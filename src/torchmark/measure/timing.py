"""Times a step on a device with everything that belongs to it: calibration, contention, a quiet interpreter."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from msgspec.structs import replace

from torchmark.analyze.cautions import cautions_of
from torchmark.analyze.pauses import was_paused
from torchmark.analyze.roofline import AHEAD_SHARE
from torchmark.analyze.summary import combine
from torchmark.devices import open_device
from torchmark.devices.contract import Clock, Device
from torchmark.errors import UsageError
from torchmark.measure.engine import measure_steps
from torchmark.measure.power import complete_power
from torchmark.measure.sampling import DEFAULTS, Progress, ReadConditions, Settings, TimeBlock, as_block
from torchmark.meters import open_conditions
from torchmark.meters.contention import wait_reader
from torchmark.meters.pauses import read_moment
from torchmark.records import Block, Case, Conditions, Estimate, Moment, Result, Work

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
    done as soon as it has the last of it, and waits for the host. A step that is handed over ahead tells nothing."""

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
    """Each reading with a fixed little calculation, whose slow-down tells a busy machine."""

    def conditions() -> Conditions:
        return replace(read(), probe_s=min(_probe(clock) for _ in range(PROBE_TRIES)))

    return conditions


def _probe(clock: Clock) -> float:
    total = 0
    started = clock()
    for number in range(PROBE_ROUNDS):
        total += number
    return clock() - started
