"""Does torchmark say the same as others do? Pairs of fresh processes, taking turns.

    python benchmarks/parity.py                       mlp and matmul against `torch.utils.benchmark`
    python benchmarks/parity.py --against loop        mlp, bert and resnet50 against a bare loop
    python benchmarks/parity.py --pairs 5 --rounds 6   fewer pairs, a wider interval

In every fresh process torchmark's engine and the other method take turns, a bare loop being warm and synchronised, with
the same settings: two processes of the same work differ by more than any two methods. Of a pair of processes one begins
with torchmark and one with the other. Memory is kept between steps, because handing it back and getting it anew is
the largest part of the noise. Printed: the ratio of torchmark's figure to the other's, over the pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from statistics import fmean, median, stdev

from scipy.special import stdtrit

# Against whom: the limit of the difference, and for each case how long a turn takes, and how many rounds of turns there
# are. Where a step takes seconds a turn is one step: the pace of a machine changes from second to second, and only
# neighbours share it.
ONE_STEP = 0.0
COMPARISONS = {
    "torch": (0.03, {"mlp": (0.5, 3), "matmul/infer:size=512@cpu/float32": (0.5, 3)}),
    "loop": (
        0.04,
        {
            "mlp": (0.5, 5),
            "bert-encode/infer:batch=4@cpu/float32": (ONE_STEP, 30),
            "resnet50/infer@cpu/float32": (ONE_STEP, 12),
            "bert-classify/train@cpu/float32": (ONE_STEP, 12),
        },
    ),
}

# For the C library's allocator: 32 MB is the most that it takes, and less than that is never given back.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}

CHILD = """
import statistics, sys, time
from msgspec.structs import replace
from torch.utils.benchmark import Timer
import torch
from torchmark.devices import open_device
from torchmark.measure.cases import expand, full_params
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.timing import time_on
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

text, seconds, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
case = expand([text])[0]
run = find_workload(case.workload).prepare(full_params(case), Setting(mode=case.mode)).run
device = open_device("cpu")
began = time.perf_counter()
for _ in range(20):
    run()
    if time.perf_counter() - began > max(seconds, 5.0):
        break
print("warm", flush=True)
for line in sys.stdin:
    method = line.strip()
    if method == "torchmark":
        one, many = replace(DEFAULTS, steps=1, warm=True), replace(DEFAULTS, budget_s=seconds, target=1e-6)
        print(time_on(device, run, many if seconds else one).median_s, flush=True)
    elif method == "torch":
        timer = Timer("run()", globals={"run": run}, num_threads=threads)
        print(timer.blocked_autorange(min_run_time=seconds).median, flush=True)
    else:
        if seconds:
            run()  # while the other one had its turn, caches and clocks went cold
        times, end = [], time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        print(statistics.median(times), flush=True)
"""


def start(case: str, turn_s: float, threads: int) -> subprocess.Popen[str]:
    """A process that is warm and waits for its turn."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, case, str(turn_s), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | KEEP_MEMORY,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "warm\n"
    return process


def ask(process: subprocess.Popen[str], method: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{method}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def pair_ratio(case: str, other: str, turn_s: float, rounds: int, threads: int) -> float:
    """The mean log-ratio of one pair of fresh processes, which begin with different methods."""
    orders = ("torchmark", other), (other, "torchmark")
    return fmean(process_ratio(start(case, turn_s, threads), order, rounds) for order in orders)


def process_ratio(process: subprocess.Popen[str], order: tuple[str, str], rounds: int) -> float:
    """The median log-ratio of one process: torchmark's figure over the other's."""
    logs = []
    for number in range(rounds):
        times = {method: ask(process, method) for method in (order if number % 2 == 0 else reversed(order))}
        mine = times.pop("torchmark")
        logs.append(math.log(mine / times.popitem()[1]))
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    return median(logs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=tuple(COMPARISONS), default="torch")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="of turns in each process; default: what the case needs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="one case of them")
    options = parser.parse_args()
    limit, cases = COMPARISONS[options.against]
    held = True
    for case, (turn_s, rounds) in cases.items():
        if options.only not in (None, case):
            continue
        logs = [
            pair_ratio(case, options.against, turn_s, options.rounds or rounds, options.threads)
            for _ in range(options.pairs)
        ]
        reach = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
        low, high = math.expm1(fmean(logs) - reach), math.expm1(fmean(logs) + reach)
        inside = low >= -limit and high <= limit
        held = held and inside
        print(
            f"{'ok  ' if inside else 'FAIL'} {case}: torchmark / {options.against} - 1 = "
            f"{math.expm1(fmean(logs)):+.2%} [{low:+.2%}, {high:+.2%}], "
            f"{len(logs)} pairs of fresh processes (goal: inside ±{limit:.0%})",
            flush=True,
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
