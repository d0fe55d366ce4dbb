"""What is read while steps are timed: other processes, memory, heat, power; each with its source."""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchmark.records import Conditions

ROOT = Path("/")  # tests put a recorded tree in its place
_FIELDS = {
    "energy": "energy_j",
    "clock": "clock_hz",
    "temperature": "temperature_c",
    "throttling": "thermal_count",
    "steal": "steal_s",
    "quota": "throttled_s",
    "run-queue wait": "wait_s",
}


class Meter(Struct, frozen=True):
    read: Callable[[], Any]  # None, never zero, if there is no reading
    provenance: str  # the source, or why there is none
    watts: Callable[[], float | None] = lambda: None  # if energy is not counted; may take a tenth of a second


Meters = dict[str, Meter]  # by the quantity that they read


def missing(reason: str) -> Meter:
    return Meter(lambda: None, unavailable(reason))


def unavailable(reason: str) -> str:
    return f"unavailable because {reason}"


def try_meter(read: Callable[[], Any], reason: str, source: str = "the system") -> Meter:
    """A meter of this reading; unavailable for this reason if it gives nothing now."""
    return Meter(read, unavailable(reason) if read() is None else f"measured by {source}")


def read_text(path: Path) -> str | None:
    """A small file of the kernel; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None


def read_numbers(files: Iterable[Path]) -> list[float]:
    return [number for file in files if (number := read_number(file)) is not None]


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of this process's control groups, outermost first; a container may not see all of them."""
    folders = list[Path]()
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if not controllers or controller in controllers.split(","):
            for name in dict.fromkeys((controller, controllers) if controllers else (".", "unified")):
                top = root / "sys/fs/cgroup" / name
                folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders


def open_conditions(root: Path = ROOT, family: int | None = None, device: str = "cpu") -> Callable[[], Conditions]:
    """A cheap reader of the machine's state; `family`, by default this process, and its children are no other work."""
    from torchmark.meters.process import capacity, open_other_cpu, open_waits, read_host_memory

    cores, other_cpu = capacity(root), open_other_cpu(root, family)
    meters = open_vitals(device, root) | open_waits(root)

    def read() -> Conditions:
        own, found = read_host_memory(root), {field: meters[name].read() for name, field in _FIELDS.items()}
        if isinstance(found["thermal_count"], tuple):  # the present reasons, not how often so far
            found["throttle"] = found.pop("thermal_count")
        found |= {"major_fault_count": own.major_fault_count, "swap_bytes": own.swap_bytes}
        return Conditions(time.perf_counter(), cores, other_cpu(), **found)

    return read


def provenance(device: str = "cpu", root: Path = ROOT) -> dict[str, str]:
    from torchmark.meters.process import open_waits

    return {name: meter.provenance for name, meter in (open_vitals(device, root) | open_waits(root)).items()}


def open_vitals(device: str, root: Path = ROOT) -> Meters:
    from torchmark.meters import cpu, gpu

    kind, _, number = device.partition(":")
    if kind == "cuda":
        import torch

        return (gpu.open_nvidia if torch.version.hip is None else gpu.open_amd)(int(number or 0))
    if kind == "xpu":
        return gpu.open_intel(int(number or 0))
    if kind == "mps":
        return gpu.without_vitals("macOS reports it to root alone") | {"energy": gpu.open_apple()}
    return cpu.open_vitals(root) | ({"energy": gpu.open_apple()} if sys.platform == "darwin" else {})
