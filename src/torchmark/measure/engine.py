"""The timing engine: turns a function that times blocks of steps into an estimate that says how far to trust it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from torchmark.analyze.series import Reading
from torchmark.analyze.summary import Observations, summarise
from torchmark.measure.pair import measure_pair
from torchmark.measure.sampling import (
    DEFAULTS,
    Clock,
    Progress,
    ReadConditions,
    Samples,
    Settings,
    StopRule,
    TimeBlock,
    as_block,
    block_size_to_sustain,
    choose_block_size,
)
from torchmark.records import Block, Conditions, Estimand, Estimate

SLOW_STEP_S = 0.5
GLANCE_S = 1.0  # how often the meters are read between two checkpoints

__all__ = ["Block", "Conditions", "Estimate", "Progress", "Settings", "measure_pair", "measure_steps"]


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
    kept = [first] if settings.warm and first.total_s >= SLOW_STEP_S else []  # too dear to be thrown away
    block_size, room = _block_size(time_block, sync_cost_s, settings, single=bool(kept))
    each = stamped and room
    estimand: Estimand = "median" if block_size == 1 or each else "mean"
    settings = replace(settings, call_cost_s=0.0) if stamped else settings  # stamps do not see what a call costs
    samples, seen = Samples(settings.steps or settings.max_samples), Beside()
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
        **seen.told(),
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


class Beside:
    """What was seen beside the samples: waiting for a core, switches, and the device's own time against the wall's."""

    def __init__(self) -> None:
        self._total_s = self._wait_s = self._device_s = self._wall_s = 0.0
        self._steps = 0
        self._waits = self._switches = False
        self._switch_count = 0

    def add(self, block: Block, block_size: int, sync_cost_s: float) -> None:
        self._total_s += block.total_s
        self._steps += block_size
        self._wall_s += block.total_s - sync_cost_s
        if block.wait_s is not None:
            self._waits, self._wait_s = True, self._wait_s + block.wait_s
        if block.switches is not None:
            self._switches, self._switch_count = True, self._switch_count + block.switches
        if block.step_s is not None:
            self._device_s += sum(block.step_s) if isinstance(block.step_s, tuple) else block.step_s * block_size

    def told(self) -> dict[str, Any]:
        """All of it, under the names that a summary has for it."""
        names = ("wait_share", "switches", "device_step_s", "wall_step_s")
        return {name: getattr(self, name) for name in names}

    @property
    def wait_share(self) -> float | None:
        return min(self._wait_s / self._total_s, 1.0) if self._waits and self._total_s > 0 else None

    @property
    def switches(self) -> int | None:
        return self._switch_count if self._switches else None

    @property
    def device_step_s(self) -> float | None:
        return self._device_s / self._steps if self._device_s > 0 else None

    @property
    def wall_step_s(self) -> float:
        return self._wall_s / self._steps
