"""Times one step in turns, between which another process works, and adds up what all of its turns have shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.summary import Observations, summarise
from torchmark.devices.contract import Device
from torchmark.errors import CaseError
from torchmark.measure.engine import Beside, per_step
from torchmark.measure.sampling import Samples, Settings, StopRule, block_size_for, choose_block_size
from torchmark.measure.timing import PAUSED, Unpaused, with_probe, with_waits
from torchmark.meters import open_conditions
from torchmark.records import Conditions, Estimand, Estimate

# Before each turn: threads of the other side may spin for 0.2 s after their last step, and caches are cold.
WARM_S = 0.2
MOST_TURNS = 8  # timed ones, unless more are asked for; the room for samples is shared out among them
SURELY_LONG_S = 0.1  # from here on, one timing of a step tells how many make a sample
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
        self._samples, self._beside, self._most = Samples(settings.max_samples), Beside(), most
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
            self._beside.add(block, block_size, self._costs.sync_s)
            self._samples.add(*per_step(block, block_size, self._costs.sync_s))
            if self._clock() - began >= seconds or self._samples.count - first >= most:
                break
        self._duration_s += self._clock() - began
        self._spans.append((before, self._conditions()))
        self._by_events, self.block_size = isinstance(block.step_s, tuple), block_size
        return max(float(np.median(self._samples.values[first:])) - self._call_cost_s, 1e-12)

    def estimate(self, first_step_s: float) -> Estimate:
        """What all turns together say about a step in this process."""
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
            **self._beside.told(),
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
