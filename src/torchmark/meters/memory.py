"""How much of the host's memory this process took at most, and whether it had to page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import Struct

from torchmark.meters.contract import ROOT, Meter, read_text


class HostMemory(Struct, frozen=True):
    """What this process took of the host's memory; None is unreadable."""

    peak_bytes: int | None = None
    swap_bytes: int | None = None
    major_fault_count: int | None = None


class HostMemoryMeter(Meter[HostMemory]):
    """The kernel's own high-water mark; nothing is sampled, so nothing is missed."""

    name = "host memory"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def reset(self) -> bool:
        """Forget the peak so far, where the kernel allows it; says whether it did."""
        try:
            (self._root / "proc/self/clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def read(self) -> HostMemory:
        status = read_text(self._root / "proc/self/status") or ""
        peak_bytes = _kibibytes(status, "VmHWM")
        # The usage counter is second choice: it survives exec, so a worker would answer for what started it.
        return HostMemory(
            peak_bytes=peak_bytes if peak_bytes is not None else _usage_peak(),
            swap_bytes=_kibibytes(status, "VmSwap"),
            major_fault_count=major_faults(),
        )


def major_faults() -> int | None:
    """How often this process had to wait for a page from disk."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _kibibytes(status: str, field: str) -> int | None:
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _usage_peak() -> int | None:
    try:
        import resource
    except ImportError:
        import psutil

        return getattr(psutil.Process().memory_info(), "peak_wset", None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
