"""Does `torchmark fit` find what an exhaustive search finds, and is the machine safe from its probes?

    python benchmarks/fit.py             two workloads under a limit, one with all the memory there is; about 20 minutes

Under a limit every size of a row is tried, in steps, until one does not fit, those near the limit as often as `fit`
tries its answer: the same work does not take the same memory in every process. The largest that fits is held against
what `fit` says. Then it is let loose on all memory that is free, while the memory that is left to others and
the kernel's count of processes that it had to kill are watched. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil

from torchmark.analyze.fitting import TRIES
from torchmark.measure.outcomes import memory_kills
from torchmark.records import parse_case
from torchmark.studies.fit import Request, Study

UNDER_LIMIT = (
    ("mlp/train@cpu/float32", "batch", 1 << 30, 2048),
    ("resnet50/infer:image=64@cpu/float32", "batch", 1 << 30, 64),
)
FREE = ("tensor-add/infer@cpu/float32", "size")
LEFT_BYTES = 100 << 20
NEAR = 0.85  # of the limit
NOWHERE = Path(os.devnull)  # what workers print when they run out of memory


def exhaustive(study: Study, step: int) -> int:
    """The largest multiple of the step below the first one that does not fit."""
    largest, is_over = 0, False
    while not is_over:
        probe = study.probe(largest + step)
        while probe.fits and probe.tries < TRIES and (probe.bytes or 0.0) > NEAR * study.limit_bytes:
            probe = study.probe(probe.size)
        largest, is_over = (probe.size, False) if probe.fits else (largest, True)
    return largest


def compare(case: str, parameter: str, limit: int, step: int) -> bool:
    request = Request(parse_case(case), parameter, limit, step)
    study = Study(request, log=NOWHERE)
    study.run()
    found, began = study.outcome(), time.monotonic()
    truth = exhaustive(Study(request, log=NOWHERE), step)
    taken_s = time.monotonic() - began
    held = found.largest is not None and abs(found.largest - truth) <= step
    print(
        f"{'ok  ' if held else 'FAIL'} {case} in {limit >> 20} MiB: {parameter} {found.largest} by {len(found.probes)} "
        f"probes in {found.duration_s:.0f} s, {truth} by trying all in steps of {step} in {taken_s:.0f} s",
        flush=True,
    )
    return held


def let_loose() -> bool:
    """On all memory; the least that was left to others meanwhile is watched from outside."""
    least, done = [psutil.virtual_memory().available], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            least[0] = min(least[0], psutil.virtual_memory().available)

    kills, watcher = memory_kills(), threading.Thread(target=watch)
    watcher.start()
    study = Study(Request(parse_case(FREE[0]), FREE[1], budget_s=240.0), log=NOWHERE)
    study.run()
    done.set()
    watcher.join()
    found = study.outcome()
    held = memory_kills() == kills and least[0] > LEFT_BYTES and found.bound == "memory"
    print(
        f"{'ok  ' if held else 'FAIL'} {FREE[0]} in all that was free ({found.limit_bytes / 1e9:.1f} GB): {FREE[1]} "
        f"{found.largest}, {len(found.probes)} probes, at least {least[0] >> 20} MiB were left to others, "
        f"{memory_kills() - kills} processes killed",
        flush=True,
    )
    return held


if __name__ == "__main__":
    results = [compare(*each) for each in UNDER_LIMIT]
    sys.exit(0 if all([*results, let_loose()]) else 1)
