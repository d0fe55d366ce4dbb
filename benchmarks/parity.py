"""Does torchmark say the same as torch's own timer? Pairs of fresh processes, taking turns.

    python benchmarks/parity.py                 8 pairs each for mlp and matmul
    python benchmarks/parity.py --pairs 5 --rounds 6

In each pair one process measures with torchmark's engine and one with `torch.utils.benchmark`; they take turns in
short rounds, so that a disturbance meets both. Printed: the ratio of torchmark's figure to torch's, over the pairs.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
from statistics import fmean, median, stdev

from scipy.special import stdtrit

LIMIT = 0.03
ROUND_S = 1.0

CHILD = """
import sys
from msgspec.structs import replace
from torch.utils.benchmark import Timer
import torch
from torchmark.devices import open_device
from torchmark.measure.cases import Sweep, expand, full_params
from torchmark.measure.sampling import DEFAULTS
from torchmark.measure.timing import time_on
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

method, text, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
case = expand(Sweep([text]))[0]
run = find_workload(case.workload).prepare(full_params(case), Setting(mode=case.mode)).run
device = open_device("cpu")
for _ in range(20):
    run()
for line in sys.stdin:
    if method == "torchmark":
        print(time_on(device, run, replace(DEFAULTS, budget_s=seconds, target=1e-6)).median_s, flush=True)
    else:
        timer = Timer("run()", globals={"run": run}, num_threads=threads)
        print(timer.blocked_autorange(min_run_time=seconds).median, flush=True)
"""


def start(method: str, case: str, threads: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, method, case, str(ROUND_S), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def pair_ratio(case: str, rounds: int, threads: int) -> float:
    """The median log-ratio of one pair of fresh processes over its rounds."""
    pair = {method: start(method, case, threads) for method in ("torchmark", "torch")}
    logs = []
    for number in range(rounds + 1):
        times = {method: ask(pair[method]) for method in random.sample(list(pair), 2)}
        if number:  # the first round warms both up
            logs.append(math.log(times["torchmark"] / times["torch"]))
    for process in pair.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return median(logs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    held = True
    for case in ("mlp", "matmul/infer:size=512@cpu/float32"):
        logs = [pair_ratio(case, options.rounds, options.threads) for _ in range(options.pairs)]
        reach = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
        low, high = math.expm1(fmean(logs) - reach), math.expm1(fmean(logs) + reach)
        inside = low >= -LIMIT and high <= LIMIT
        held = held and inside
        print(
            f"{'ok  ' if inside else 'FAIL'} {case}: torchmark / torch.utils.benchmark - 1 = "
            f"{math.expm1(fmean(logs)):+.2%} [{low:+.2%}, {high:+.2%}], "
            f"{len(logs)} pairs of fresh processes (goal: inside ±{LIMIT:.0%})"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
