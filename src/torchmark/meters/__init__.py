"""What is read beside the clock: other processes, memory, heat, power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchmark.meters.contract import ROOT, Meter
from torchmark.records import Conditions


def open_conditions(
    clock: Callable[[], float] = time.perf_counter, root: Path = ROOT, family: int | None = None
) -> Callable[[], Conditions]:
    """A reader of the machine's state at this moment; what it needs is looked up once, so that a reading is cheap.

    `family` is the process whose descendants all belong to the measurement, where those of this one are not all.
    """
    from torchmark.meters import contention, heat, memory

    cores = contention.capacity(root)
    other_cpu = contention.OtherCpu(root, family)
    steal, wait = contention.Steal(root), contention.RunQueueWait(root)
    throttled, throttling = contention.open_throttled(root), heat.open_throttling(root)
    frequency, temperature = heat.open_clock(root), heat.open_temperature(root)

    def read() -> Conditions:
        return Conditions(
            at_s=clock(),
            capacity=cores,
            other_cpu_s=other_cpu.read(),
            steal_s=steal.read(),
            throttled_s=throttled.read(),
            wait_s=wait.read(),
            major_fault_count=memory.major_faults(),
            thermal_count=throttling.read(),
            clock_hz=frequency.read(),
            temperature_c=temperature.read(),
        )

    return read


def unreadable(root: Path = ROOT) -> dict[str, str]:
    """What cannot be read on this machine, and why."""
    from torchmark.meters import contention, heat

    meters: dict[str, Meter[Any]] = {
        "steal": contention.Steal(root),
        "quota": contention.open_throttled(root),
        "run-queue wait": contention.RunQueueWait(root),
        "clock": heat.open_clock(root),
        "temperature": heat.open_temperature(root),
        "thermal throttling": heat.open_throttling(root),
    }
    return {name: meter.reason for name, meter in meters.items() if meter.reason is not None}
