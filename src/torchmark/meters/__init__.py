"""What is read while steps are timed: other processes, memory, heat, power."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from torchmark.meters.meter import ROOT, Meters
from torchmark.records import Conditions

_FIELDS = {
    "energy": "energy_j",
    "clock": "clock_hz",
    "temperature": "temperature_c",
    "throttling": "thermal_count",
    "steal": "steal_s",
    "quota": "throttled_s",
    "run-queue wait": "wait_s",
}


def open_conditions(root: Path = ROOT, family: int | None = None, device: str = "cpu") -> Callable[[], Conditions]:
    """A reader of the machine's state at this moment; what it needs is looked up once, so that a reading is cheap.

    `family` is the process whose descendants all belong to the measurement, where it is not this one.
    Energy, clock and heat are those of `device`.
    """
    from torchmark.meters import contention
    from torchmark.meters.process import read_host_memory

    cores, other_cpu = contention.capacity(root), contention.open_other_cpu(root, family)
    meters = open_vitals(device, root) | contention.open_waits(root)

    def read() -> Conditions:
        own, found = read_host_memory(root), {field: meters[name].read() for name, field in _FIELDS.items()}
        if isinstance(found["thermal_count"], tuple):  # the reasons at this moment, not how often so far
            found["throttle"] = found.pop("thermal_count")
        return Conditions(
            at_s=time.perf_counter(),
            capacity=cores,
            other_cpu_s=other_cpu(),
            major_fault_count=own.major_fault_count,
            swap_bytes=own.swap_bytes,
            **found,
        )

    return read


def provenance(device: str = "cpu", root: Path = ROOT) -> dict[str, str]:
    """Where each quantity comes from on this machine, or why it is unavailable."""
    from torchmark.meters.contention import open_waits

    return {name: meter.provenance for name, meter in (open_vitals(device, root) | open_waits(root)).items()}


def open_vitals(device: str, root: Path = ROOT) -> Meters:
    """The energy, clock, temperature and throttling of a device, by torch's name for it."""
    from torchmark.meters import cpu, gpu

    kind, _, number = device.partition(":")
    index = int(number or 0)
    if kind == "cuda":
        import torch

        return gpu.open_nvidia(index) if torch.version.hip is None else gpu.open_amd(index)
    if kind == "xpu":
        return gpu.open_intel(index)
    if kind == "mps":
        return gpu.without_vitals("macOS reports it to root alone") | {"energy": gpu.open_apple()}
    return cpu.open_vitals(root) | ({"energy": gpu.open_apple()} if sys.platform == "darwin" else {})
