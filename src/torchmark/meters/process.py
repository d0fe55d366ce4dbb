"""What this process gets and uses: CPU time and waits caused by other work, memory, paging, and pauses."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from torchmark.meters import ROOT, Meters, control_groups, read_text, try_meter
from torchmark.records import Moment

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
Wait = tuple[float | None, int | None]  # seconds, and involuntary switches; None is unreadable


def allowed_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def capacity(root: Path = ROOT) -> float:
    """The cores that this process may use, or a smaller quota."""
    least = float(len(allowed_cores()))
    for folder in control_groups("cpu", root):
        first_version = (read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        for quota, period in (first_version, (read_text(folder / "cpu.max") or "").partition(" ")[::2]):
            if quota.isdecimal() and period.isdecimal():  # no limit is -1 or max
                least = min(least, int(quota) / int(period))
    return least


def open_other_cpu(root: Path = ROOT, family: int | None = None) -> Callable[[], float]:
    """A reader of the CPU seconds of all other processes on the cores that this one may use."""
    import psutil

    cores, most_s = allowed_cores(), 0.0
    linux = _core_seconds(root, cores, _BUSY) is not None

    def read() -> float:
        nonlocal most_s
        if linux:
            own_s, busy_s = _tree_seconds(root, family), _core_seconds(root, cores, _BUSY) or 0.0
        else:
            times = psutil.cpu_times()
            own_s = time.process_time()
            busy_s = sum(getattr(times, field, 0.0) for field in ("user", "nice", "system", "irq", "softirq"))
        # The difference jitters, as the kernel counts in ticks of 10 ms, but a reading only grows.
        most_s = max(most_s, busy_s - own_s)
        return most_s

    return read


def open_waits(root: Path = ROOT) -> Meters:
    """Seconds that the hypervisor took, that a quota stopped this process, and that its threads waited."""
    groups = [folder for folder in control_groups("cpu", root) if (folder / "cpu.stat").exists()]
    scales = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # of either version

    def throttled() -> float | None:
        texts = (read_text(folder / "cpu.stat") or "" for folder in groups)
        found = re.findall(r"^(throttled_(?:usec|time)) (\d+)$", "\n".join(texts), re.MULTILINE)
        return max((int(value) * scales[key] for key, value in found), default=None)

    tasks = root / "proc/self/task"
    last: dict[str, int] = {}
    ended_ns = 0

    def waited_s() -> float | None:
        nonlocal last, ended_ns
        names = list[str]()
        with suppress(OSError):
            names = os.listdir(tasks)  # noqa: PTH208 -- names are enough, and this is read often
        now = {task: int(text.split()[1]) for task in names if (text := read_text(tasks / task / "schedstat"))}
        # A thread that ends takes its counter with it, so the sum keeps what it waited.
        ended_ns += sum(waited for task, waited in last.items() if task not in now)
        last = now
        return (ended_ns + sum(now.values())) / 1e9 if now or ended_ns else None

    return {
        "steal": try_meter(partial(_core_seconds, root, allowed_cores(), (7,)), "the system has no /proc/stat"),
        "quota": try_meter(throttled, "no control group limits this process's CPU time"),
        "run-queue wait": try_meter(waited_s, "the kernel keeps no scheduler statistics"),
    }


def wait_reader() -> Callable[[], Wait]:
    """A fast reader of how long the calling thread has waited for a core, and how often it lost one."""
    try:
        import resource

        who = resource.RUSAGE_THREAD
        handle = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, AttributeError, OSError):
        return lambda: (None, None)
    usage, pread = resource.getrusage, os.pread

    def read() -> Wait:
        return int(pread(handle, 64, 0).split()[1]) * 1e-9, usage(who).ru_nivcsw

    return read


def _core_seconds(root: Path, cores: frozenset[int], columns: tuple[int, ...]) -> float | None:
    ticks = list[int]()
    with suppress(OSError), (root / "proc/stat").open(errors="replace") as file:
        for name, *values in map(str.split, takewhile(lambda line: line.startswith("cpu"), file)):
            if name != "cpu" and int(name[3:]) in cores:
                ticks += (int(values[column]) for column in columns)
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _tree_seconds(root: Path, family: int | None) -> float:
    """CPU seconds of this process, or another, with all its descendants, even ended ones."""
    times, members, ticks = os.times(), _descendants(root, str(family or "self")), 0
    own_s = time.process_time() + times.children_user + times.children_system
    if family is not None:
        own_s, members = 0.0, [str(family), *members]
    for each in members:
        # User, system, and both of ended children; the name before them may hold anything.
        fields = (read_text(root / "proc" / each / "stat") or "").rpartition(")")[2].split()
        ticks += sum(int(value) for value in fields[11:15])
    return own_s + ticks / os.sysconf("SC_CLK_TCK")


def _descendants(root: Path, process: str) -> list[str]:
    files = (root / "proc" / process / "task").glob("*/children")
    children = [child for file in files for child in (read_text(file) or "").split()]
    return [each for child in children for each in (child, *_descendants(root, child))]


_stops = 0


class HostMemory(NamedTuple):
    peak_bytes: int | None = None  # of this process; None is unreadable
    swap_bytes: int | None = None
    major_fault_count: int | None = None  # waits for a page from disk


def forget_peak(root: Path = ROOT) -> None:
    with suppress(OSError):
        (root / "proc/self/clear_refs").write_text("5")


def read_host_memory(root: Path = ROOT) -> HostMemory:
    """The kernel's own peak: nothing is sampled, so nothing is missed."""
    status = read_text(root / "proc/self/status") or ""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(Vm\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    try:
        import resource
    except ImportError:
        import psutil

        return HostMemory(getattr(psutil.Process().memory_info(), "peak_wset", None))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # The usage counter is second choice: it survives exec, so a worker would report what started it.
    return HostMemory(found.get("VmHWM", peak), found.get("VmSwap"), usage.ru_majflt)


def read_moment() -> Moment:
    """All clocks, in about a microsecond; again after an interruption between the readings."""
    for _ in range(10):
        boot_s = None if _BOOT is None else time.clock_gettime(_BOOT)
        moment = Moment(time.perf_counter(), time.time(), boot_s, _stops)
        if time.perf_counter() - moment.steady_s < 0.01:  # far less than clocks may differ before it counts as a pause
            break
    return moment


def count_stops() -> None:
    """Count every stop of this process from now on, when it continues. Only for our own processes."""

    def continued(*_: object) -> None:
        global _stops
        _stops += 1

    if hasattr(signal, "SIGCONT"):
        signal.signal(signal.SIGCONT, continued)


# A clock that continues while the machine sleeps; `time.perf_counter` does not.
_BOOT: int | None = getattr(time, {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(sys.platform, ""), None)
