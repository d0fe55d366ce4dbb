"""What happens to this process: its memory and paging, and pauses, which show where clocks disagree."""

from __future__ import annotations

import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torchmark.meters import ROOT, read_text
from torchmark.records import Moment

AT_ONCE_S = 0.01  # far less than two clocks may differ before it counts as a pause
_stops = 0


class HostMemory(NamedTuple):
    """What this process uses of the host's memory; None is unreadable."""

    peak_bytes: int | None = None
    swap_bytes: int | None = None
    major_fault_count: int | None = None  # how often it had to wait for a page from disk


def forget_peak(root: Path = ROOT) -> None:
    with suppress(OSError):
        (root / "proc/self/clear_refs").write_text("5")


def read_host_memory(root: Path = ROOT) -> HostMemory:
    """The kernel's own high-water mark; nothing is sampled, so nothing is missed."""
    status = read_text(root / "proc/self/status") or ""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(Vm\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    try:
        import resource
    except ImportError:
        import psutil

        return HostMemory(getattr(psutil.Process().memory_info(), "peak_wset", None))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # The usage counter is second choice: it survives exec, so a worker would answer for what started it.
    return HostMemory(found.get("VmHWM", peak), found.get("VmSwap"), usage.ru_majflt)


def read_moment() -> Moment:
    """All clocks, read in about a microsecond, so cheap enough around every block of steps. They are read again where
    something came between the readings, as the clocks would seem to disagree."""
    for _ in range(10):
        boot_s = None if _BOOT is None else time.clock_gettime(_BOOT)
        moment = Moment(time.perf_counter(), time.time(), boot_s, _stops)
        if time.perf_counter() - moment.steady_s < AT_ONCE_S:
            break
    return moment


def count_stops() -> None:
    """Count every stop of this process from now on, when it continues. Only for processes of our own."""

    def continued(*_: object) -> None:
        global _stops
        _stops += 1

    if hasattr(signal, "SIGCONT"):
        signal.signal(signal.SIGCONT, continued)


# The clock that continues while the machine sleeps; `time.perf_counter` does not.
_BOOT: int | None = getattr(time, {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(sys.platform, ""), None)
