"""Does `torchmark fit` find what an exhaustive search finds, and is the machine safe from its probes?

    python benchmarks/fit.py             three workloads under a limit, one with all memory there is; about 20 minutes

Under a limit every size of a row is tried, in steps, those near the limit as often as `fit` tries its answer. The same
work does not take the same memory in every process: glibc learns from what is freed, which pieces to map by themselves
and which to keep in its heap. So trying all finds a range, from the largest size below the first that failed to the
largest that ever fitted, and what `fit` says has to lie in it, to one step. Work on large pieces alone takes the same
memory every time, and the range is one size: that shows how exact the search itself is, in small steps.

Then `fit` is let loose on all memory that is free, while the memory that is left to others and the kernel's count of
processes that it had to kill are watched. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil

from torchmark.analyze.search import TRIES
from torchmark.records import Machine, parse_case
from torchmark.studies.fit import Fit, FitOptions

UNDER_LIMIT = (
    ("mlp/train@cpu/float32", "batch", 1 << 30, 2048),
    ("resnet50/infer:image=64@cpu/float32", "batch", 1 << 30, 32),
    ("tensor-add/infer@cpu/float32", "size", 1 << 30, 128),
)
FREE = ("tensor-add/infer@cpu/float32", "size")
LEFT_BYTES = 100 << 20
NEAR = 0.85  # of the limit
HERE = Machine("", 1, 1, 0, "", "")


def exhaustive(request: FitOptions, step: int) -> tuple[int, int]:
    """The largest size below the first that failed, and the largest that ever fitted; all are multiples of the step."""
    studies = [Fit(request, HERE) for _ in range(TRIES)]  # one for each try: a study's probe is all its tries
    below_failure, ever_fitted, size = None, 0, 0
    while ever_fitted == size:
        size += step
        tries = [studies[0].probe(size)]
        if not tries[0].fits or (tries[0].bytes or 0.0) > NEAR * studies[0].limit_bytes:
            tries += [study.probe(size) for study in studies[1:]]
        if below_failure is None and not all(probe.fits for probe in tries):
            below_failure = ever_fitted
        if any(probe.fits for probe in tries):
            ever_fitted = size
    return ever_fitted if below_failure is None else below_failure, ever_fitted


def compare(case: str, parameter: str, limit: int, step: int) -> bool:
    request = FitOptions(parse_case(case), parameter, limit, step)
    study = Fit(request, HERE)
    list(study.events())
    found, began = study.conclusion(), time.monotonic()
    low, high = exhaustive(request, step)
    taken_s = time.monotonic() - began
    held = found.largest is not None and low - step <= found.largest <= high + step
    print(
        f"{'ok  ' if held else 'FAIL'} {case} in {limit >> 20} MiB: {parameter} {found.largest} by {len(found.tried)} "
        f"sizes in {found.duration_s:.0f} s, {low if low == high else f'{low} to {high}'} by trying all in steps of "
        f"{step} in {taken_s:.0f} s",
        flush=True,
    )
    return held


def memory_kills() -> int:
    """On the whole machine, for all processes."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts["oom_kill"])


def let_loose() -> bool:
    """On all memory; the least that was left to others meanwhile is watched from outside."""
    least, done = [psutil.virtual_memory().available], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            least[0] = min(least[0], psutil.virtual_memory().available)

    kills, watcher = memory_kills(), threading.Thread(target=watch)
    watcher.start()
    study = Fit(FitOptions(parse_case(FREE[0]), FREE[1], budget_s=240.0), HERE)
    list(study.events())
    done.set()
    watcher.join()
    found = study.conclusion()
    held = memory_kills() == kills and least[0] > LEFT_BYTES and found.bound == "memory"
    print(
        f"{'ok  ' if held else 'FAIL'} {FREE[0]} in all that was free ({found.limit_bytes / 1e9:.1f} GB): {FREE[1]} "
        f"{found.largest}, {len(found.tried)} probes, at least {least[0] >> 20} MiB were left to others, "
        f"{memory_kills() - kills} processes killed",
        flush=True,
    )
    return held


if __name__ == "__main__":
    results = [compare(*row) for row in UNDER_LIMIT]
    sys.exit(0 if all([*results, let_loose()]) else 1)
