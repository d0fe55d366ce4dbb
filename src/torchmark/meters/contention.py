"""What others take from this process: their CPU time, the hypervisor's, a quota's, and the wait for a core."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torchmark.meters.contract import ROOT, Meter, Nothing, read_number, read_text
from torchmark.meters.groups import control_groups

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


class OtherCpu(Meter[float]):
    """CPU seconds that all other processes spent on the cores that this one may use."""

    name = "other processes' CPU"

    def __init__(self, root: Path = ROOT, family: int | None = None) -> None:
        self._root, self._family = root, family
        self._cores = allowed_cores()
        self._most_s = 0.0
        self._linux = core_ticks(root, self._cores) is not None

    def read(self) -> float:
        own_s = _tree_seconds(self._root, self._family) if self._linux else time.process_time()
        busy_s = self._linux_busy() if self._linux else _psutil_busy()
        # The kernel counts in ticks of 10 ms, so the difference trembles; the reading promises that it only grows.
        self._most_s = max(self._most_s, busy_s - own_s)
        return self._most_s

    def _linux_busy(self) -> float:
        ticks = core_ticks(self._root, self._cores) or []
        return sum(core[column] for core in ticks for column in _BUSY) / os.sysconf("SC_CLK_TCK")


class Steal(Meter[float]):
    """Seconds that the hypervisor gave to other machines instead of this one's cores."""

    name = "steal"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._cores = allowed_cores()
        if core_ticks(root, self._cores) is None:
            self.reason = "the system has no /proc/stat"

    def read(self) -> float | None:
        ticks = core_ticks(self._root, self._cores) if self.reason is None else None
        return None if ticks is None else sum(core[_STEAL] for core in ticks) / os.sysconf("SC_CLK_TCK")


class Throttled(Meter[float]):
    """Seconds for which a quota of a control group stopped this process."""

    name = "quota"

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files

    def read(self) -> float | None:
        readings = [seconds for file in self._files if (seconds := _throttled_seconds(file)) is not None]
        return max(readings, default=None)


def open_throttled(root: Path = ROOT) -> Meter[float]:
    """The meter of this process's control groups, whichever version they are of."""
    files = tuple(folder / "cpu.stat" for folder in _cgroup_folders(root))
    files = tuple(file for file in files if _throttled_seconds(file) is not None)
    return Throttled(files) if files else Nothing("no control group limits this process's CPU time")


class RunQueueWait(Meter[float]):
    """Seconds that the threads of this process were ready to run but waited for a core, summed."""

    name = "run-queue wait"

    def __init__(self, root: Path = ROOT) -> None:
        self._tasks = root / "proc/self/task"
        self._last: dict[str, int] = {}
        self._ended_ns = 0
        if not (self._tasks / str(threading.get_native_id()) / "schedstat").exists() and root == ROOT:
            self.reason = "the kernel keeps no scheduler statistics"

    def read(self) -> float | None:
        if self.reason is not None:
            return None
        now = {task: int(fields[1]) for task, fields in self._fields()}
        # A thread that ends takes its count with it; what it waited stays part of the sum.
        self._ended_ns += sum(waited for task, waited in self._last.items() if task not in now)
        self._last = now
        return (self._ended_ns + sum(now.values())) / 1e9

    def _fields(self) -> list[tuple[str, list[str]]]:
        try:
            tasks = os.listdir(self._tasks)  # noqa: PTH208 -- names are enough, and this is read often
        except OSError:
            return []
        texts = ((task, read_text(self._tasks / task / "schedstat")) for task in tasks)
        return [(task, text.split()) for task, text in texts if text]


Wait = tuple[float | None, int | None]


def wait_reader() -> Callable[[], Wait]:
    """A reader, of about a microsecond, of how long the calling thread waited for a core and how often it lost it.

    It belongs to the thread that asked for it: it gives that thread's seconds and involuntary switches.
    """
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


class _Readers(threading.local):
    read: Callable[[], Wait] | None = None


_readers = _Readers()


def read_wait() -> Wait:
    """The calling thread's wait for a core, in seconds, and its involuntary switches; None is unreadable."""
    read = _readers.read
    if read is None:
        read = _readers.read = wait_reader()
    return read()


def _forget_readers() -> None:
    # A forked child inherits the handle, which still reads the parent's thread.
    _readers.read = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_readers)


def core_ticks(root: Path, cores: frozenset[int]) -> list[list[int]] | None:
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
    found = [
        [int(value) for value in line[1:]] for line in lines if line[0][3:].isdigit() and int(line[0][3:]) in cores
    ]
    return found or None


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
    found: list[str] = []
    for file in (root / "proc" / process / "task").glob("*/children"):
        for child in (read_text(file) or "").split():
            found += [child, *_descendants(root, child)]
    return found


def _process_ticks(stat: Path) -> int:
    """User, system, and the same of ended children; the fields are counted behind the name, which may hold anything."""
    fields = (read_text(stat) or "").rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15])


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
