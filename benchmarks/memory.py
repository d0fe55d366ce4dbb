"""Is the peak of a case's host memory right? Against what another process sees, and what the kernel charges to a group.

    python benchmarks/memory.py
    python benchmarks/memory.py --case bert-encode/infer@cpu/float32

Every few milliseconds this process reads the resident memory of all processes of the run; the largest of them is the
one that measures. While the numbers are checked it holds a second network, which is no part of the case: that time is
left out, and printed next to it. Where a control group can be made, the kernel's own maximum for the whole run is
printed as well: it counts all processes of the run, the check too, and leaves out libraries that were read before.
The exit code is 1 where torchmark and the first source differ by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CASE = "bert-classify/train:batch=4@cpu/float32"
GROUPS = Path("/sys/fs/cgroup")
OPTIONS = ("--rigor", "quick", "--budget", "60s", "--format", "json")
POLL_S = 0.004
MOST_OFF = 0.1
MIB = 1 << 20


class Watcher:
    """The resident memory of every process below one, over time."""

    def __init__(self, top: int) -> None:
        self._seen: dict[int, list[tuple[float, int]]] = {}
        self._top, self._known, self._looked = psutil.Process(top), list[int](), 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked > 0.1:  # to walk the tree takes longer than to read memory
            self._looked = now
            with suppress(psutil.NoSuchProcess):
                self._known = [child.pid for child in self._top.children(recursive=True)]
        for process in self._known:
            with suppress(OSError, IndexError, ValueError):
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                if pages:
                    self._seen.setdefault(process, []).append((now, pages * os.sysconf("SC_PAGE_SIZE")))

    def peaks(self, phases_s: dict[str, float]) -> tuple[int, int]:
        """Of the process that measured: without the check of its numbers, and with it."""
        worker = max(self._seen.values(), key=lambda seen: max(memory for _, memory in seen))
        end = worker[-1][0] - phases_s.get("job", 0.0) - phases_s["steps"]
        begin = end - phases_s["check"]
        outside = [memory for at, memory in worker if not begin <= at <= end]
        return max(outside), max(memory for _, memory in worker)


@contextmanager
def control_group() -> Iterator[Path | None]:
    """A new one for the run, of either version; None where this is not permitted."""
    own = GROUPS / "memory" if (GROUPS / "memory").is_dir() else GROUPS
    folder = own / f"torchmark-memory-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        for _ in range(50):
            try:
                folder.rmdir()
                break
            except OSError:  # its last process is about to go
                time.sleep(0.1)


def group_peak(folder: Path | None) -> int | None:
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        with suppress(OSError, TypeError, ValueError):
            return int((folder / name).read_text())  # type: ignore[operator]
    return None


def measure(case: str, group: Path | None) -> tuple[int, tuple[int, int], int | None]:
    """torchmark's own figure, and those of the two others."""
    command = [
        sys.executable,
        "-m",
        "torchmark",
        "run",
        case,
        "--rigor",
        "quick",
        "--budget",
        "60s",
        "--format",
        "json",
    ]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as out:

        def join() -> None:
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        place = {"TORCHMARK_HOME": home, "TORCHMARK_LOCK": str(Path(home) / "lock")}
        running = subprocess.Popen(command, stdout=out, env=os.environ | place, preexec_fn=join)
        watcher = Watcher(running.pid)
        while running.poll() is None:
            watcher.look()
            time.sleep(POLL_S)
        out.seek(0)
        (result,) = json.load(out)["results"]
        return result["memory"]["host_peak_bytes"], watcher.peaks(result["phases_s"]), group_peak(group)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=CASE)
    case = parser.parse_args().case
    with control_group() as group:
        reported, (seen, with_check), charged = measure(case, group)
    off = reported / seen - 1
    print(f"{case}: peak memory of the host")
    print(f"     torchmark            {reported / MIB:8.1f} MiB")
    print(f"     another process      {seen / MIB:8.1f} MiB, every {POLL_S * 1e3:.0f} ms and more: {off:+.1%}")
    print(f"     with its check       {with_check / MIB:8.1f} MiB: {reported / with_check - 1:+.1%}")
    if charged is not None:
        more = f"with all processes of the run: {reported / charged - 1:+.1%}"
        print(f"     the control group    {charged / MIB:8.1f} MiB, {more}")
    held = abs(off) <= MOST_OFF
    print(f"{'ok  ' if held else 'FAIL'} torchmark is within {MOST_OFF:.0%} of what another process sees")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
