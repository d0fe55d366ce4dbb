"""What is read while steps are timed: other processes, memory, heat, power."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from torchmark.meters.meter import ROOT, VitalsMeter, missing
from torchmark.records import Conditions


def open_conditions(
    clock: Callable[[], float] = time.perf_counter,
    root: Path = ROOT,
    family: int | None = None,
    device: str = "cpu",
) -> Callable[[], Conditions]:
    """A reader of the machine's state at this moment; what it needs is looked up once, so that a reading is cheap.

    `family` is the process whose descendants all belong to the measurement, where it is not this one.
    Energy, clock and heat are those of `device`.
    """
    from torchmark.meters import contention
    from torchmark.meters.process import HostMemoryMeter

    cores, other_cpu = contention.capacity(root), contention.open_other_cpu(root, family)
    steal, throttled, wait = contention.open_steal(root), contention.open_throttled(root), contention.open_wait(root)
    host, vitals = HostMemoryMeter(root), open_vitals(device, root)

    def read() -> Conditions:
        seen, own = vitals.read(), host.read()
        return Conditions(
            at_s=clock(),
            capacity=cores,
            other_cpu_s=other_cpu(),
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

    return open_vitals(device, root).provenance | {
        "steal": contention.open_steal(root).provenance,
        "quota": contention.open_throttled(root).provenance,
        "run-queue wait": contention.open_wait(root).provenance,
    }


def open_vitals(device: str, root: Path = ROOT) -> VitalsMeter:
    """Everything that can be read here about a device, by torch's name for it."""
    from torchmark.meters import cpu, gpu

    kind, _, number = device.partition(":")
    index = int(number or 0)
    if kind == "cuda":
        import torch

        return gpu.open_nvidia(index) if torch.version.hip is None else gpu.open_amd(index)
    if kind == "xpu":
        return gpu.open_intel(index)
    if kind == "mps":
        silent = missing("macOS reports it to root alone")
        return VitalsMeter(gpu.open_apple(), silent, silent, silent)
    energy = gpu.open_apple() if sys.platform == "darwin" else cpu.open_rapl(root)
    return VitalsMeter(energy, cpu.open_clock(root), cpu.open_temperature(root), cpu.open_throttling(root))
