"""What other work takes from this process: CPU time, hypervisor steal, quotas, and waiting for a core."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torchmark.meters.meter import ROOT, Meter, control_groups, missing, read_number, read_text

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
_STEAL = 7


def allowed_cores() -> frozenset[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def capacity(root: Path = ROOT) -> float:
    """How many cores' worth of time this process may use: its cores, or a smaller quota."""
    quotas = (_quota(folder) for folder in _cgroup_folders(root))
    return min([float(len(allowed_cores())), *(quota for quota in quotas if quota)])


def open_other_cpu(root: Path = ROOT, family: int | None = None) -> Callable[[], float]:
    """A reader of the CPU seconds that all other processes spent on the cores that this one may use."""
    cores, most_s = allowed_cores(), 0.0
    linux = _core_ticks(root, cores) is not None

    def read() -> float:
        nonlocal most_s
        own_s = _tree_seconds(root, family) if linux else time.process_time()
        busy_s = _seconds(_core_ticks(root, cores) or [], _BUSY) if linux else _psutil_busy()
        # The kernel counts in ticks of 10 ms, so the difference jitters; the reading promises that it only grows.
        most_s = max(most_s, busy_s - own_s)
        return most_s

    return read


def open_steal(root: Path = ROOT) -> Meter[float]:
    """Seconds that the hypervisor gave to other machines instead of this one's cores."""
    cores = allowed_cores()
    if _core_ticks(root, cores) is None:
        return missing("the system has no /proc/stat")

    def read() -> float | None:
        ticks = _core_ticks(root, cores)
        return None if ticks is None else _seconds(ticks, (_STEAL,))

    return Meter(read)


def open_throttled(root: Path = ROOT) -> Meter[float]:
    """Seconds for which a quota of a control group of either version stopped this process."""
    files = [folder / "cpu.stat" for folder in _cgroup_folders(root)]
    files = [file for file in files if _throttled_seconds(file) is not None]
    if not files:
        return missing("no control group limits this process's CPU time")
    return Meter(lambda: max((s for file in files if (s := _throttled_seconds(file)) is not None), default=None))


def open_wait(root: Path = ROOT) -> Meter[float]:
    """Seconds that the threads of this process were ready to run but waited for a core, summed."""
    tasks = root / "proc/self/task"
    if not (tasks / str(threading.get_native_id()) / "schedstat").exists() and root == ROOT:
        return missing("the kernel keeps no scheduler statistics")
    last: dict[str, int] = {}
    ended_ns = 0

    def read() -> float:
        nonlocal last, ended_ns
        try:
            names = os.listdir(tasks)  # noqa: PTH208 -- names are enough, and this is read often
        except OSError:
            names = []
        now = {task: int(text.split()[1]) for task in names if (text := read_text(tasks / task / "schedstat"))}
        # A thread that ends takes its counter with it; what it waited stays part of the sum.
        ended_ns += sum(waited for task, waited in last.items() if task not in now)
        last = now
        return (ended_ns + sum(now.values())) / 1e9

    return Meter(read)


Wait = tuple[float | None, int | None]  # None is unreadable


def wait_reader() -> Callable[[], Wait]:
    """A reader that takes about a microsecond: how long this thread waited for a core, in seconds, and how often it
    lost one. It belongs to the calling thread."""
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


def _core_ticks(root: Path, cores: frozenset[int]) -> list[list[int]] | None:
    """The counters of these cores in /proc/stat, in the kernel's order."""
    try:
        with (root / "proc/stat").open(errors="replace") as file:
            lines = []
            for line in file:
                if not line.startswith("cpu"):
                    break
                lines.append(line.split())
    except OSError:
        return None
    numbered = [(line[0][3:], line[1:]) for line in lines if line[0] != "cpu"]
    return [[int(value) for value in ticks] for core, ticks in numbered if int(core) in cores] or None


def _tree_seconds(root: Path, family: int | None = None) -> float:
    """CPU seconds of this process, or another, and everything that descends from it, the ended ones included."""
    if family is not None:
        members = (str(family), *_descendants(root, str(family)))
        return sum(_process_ticks(root / "proc" / each / "stat") for each in members) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    own_s = time.process_time() + times.children_user + times.children_system
    ticks = sum(_process_ticks(root / "proc" / child / "stat") for child in _descendants(root, "self"))
    return own_s + ticks / os.sysconf("SC_CLK_TCK")


def _descendants(root: Path, process: str) -> list[str]:
    files = (root / "proc" / process / "task").glob("*/children")
    children = [child for file in files for child in (read_text(file) or "").split()]
    return [each for child in children for each in (child, *_descendants(root, child))]


def _process_ticks(stat: Path) -> int:
    """User, system, and the same of ended children; the fields are counted after the name, which may hold anything."""
    fields = (read_text(stat) or "").rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15])


def _seconds(ticks: list[list[int]], columns: tuple[int, ...]) -> float:
    return sum(core[column] for core in ticks for column in columns) / os.sysconf("SC_CLK_TCK")


def _psutil_busy() -> float:
    import psutil

    times = psutil.cpu_times()
    return sum(getattr(times, field, 0.0) for field in ("user", "nice", "system", "irq", "softirq"))


def _cgroup_folders(root: Path) -> list[Path]:
    """The control groups that may limit this process's CPU time: its own and all above it."""
    return [folder for folder in control_groups("cpu", root) if (folder / "cpu.stat").exists()]


def _throttled_seconds(file: Path) -> float | None:
    text = read_text(file) or ""
    for key, scale in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
        found = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
        if found:
            return int(found[1]) * scale
    return None


def _quota(folder: Path) -> float | None:
    """Cores' worth of time that a control group may use."""
    limit = (read_text(folder / "cpu.max") or "").split()
    if len(limit) == 2 and limit[0] != "max":
        return int(limit[0]) / int(limit[1])
    quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None
