"""What is read beside the clock: other processes, memory, heat, power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchmark.meters.contract import ROOT, Meter
from torchmark.records import Conditions


def open_conditions(
    clock: Callable[[], float] = time.perf_counter,
    root: Path = ROOT,
    family: int | None = None,
    device: str = "cpu",
) -> Callable[[], Conditions]:
    """A reader of the machine's state at this moment; what it needs is looked up once, so that a reading is cheap.

    `family` is the process whose descendants all belong to the measurement, where those of this one are not all.
    Energy, clock and heat are those of `device`.
    """
    from torchmark.meters import contention, memory
    from torchmark.meters.vitals import open_vitals

    cores = contention.capacity(root)
    other_cpu = contention.OtherCpu(root, family)
    steal, wait = contention.Steal(root), contention.RunQueueWait(root)
    throttled, host, vitals = contention.open_throttled(root), memory.HostMemoryMeter(root), open_vitals(device, root)

    def read() -> Conditions:
        seen, own = vitals.read(), host.read()
        return Conditions(
            at_s=clock(),
            capacity=cores,
            other_cpu_s=other_cpu.read(),
            steal_s=steal.read(),
            throttled_s=throttled.read(),
            wait_s=wait.read(),
            major_fault_count=own.major_fault_count,
            swap_bytes=own.swap_bytes,
            thermal_count=seen.thermal_count,
            clock_hz=seen.clock_hz,
            temperature_c=seen.temperature_c,
            energy_j=seen.energy_j,
            throttle=seen.throttle,
        )

    return read


def provenance(device: str = "cpu", root: Path = ROOT) -> dict[str, str]:
    """Where each quantity comes from on this machine, or why it is unavailable."""
    from torchmark.meters import contention
    from torchmark.meters.vitals import open_vitals

    meters: dict[str, Meter[Any]] = {
        "steal": contention.Steal(root),
        "quota": contention.open_throttled(root),
        "run-queue wait": contention.RunQueueWait(root),
    }
    return open_vitals(device, root).provenance | {name: meter.provenance for name, meter in meters.items()}
