"""Does `torchmark limits` find what this machine can do, and soon enough?

    python benchmarks/limits.py                       three rounds, about three minutes
    python benchmarks/limits.py --rounds 5            more of them

First `torchmark limits` is run whole, by the clock on the wall. Then, in rounds, it stands between bare loops in fresh
processes, so that a disturbance meets both: products of square matrices of every size, and the triad of STREAM
(a = b + s · c) over arrays of four times the last cache, once by torch and once by numpy in as many threads. Fresh
processes differ, and `limits` takes the best of a few: the bare loops, too, are run twice before it and twice after it.
Of each side the best median counts, and of the rounds the median ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from statistics import median

PRODUCTS = """
import json, statistics, time, torch

def rate(size):
    left, right, out = (torch.randn(size, size) for _ in range(3))
    times, end = [], time.perf_counter() + 0.5
    torch.mm(left, right, out=out)
    while len(times) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(times)

print(json.dumps(max(rate(size) for size in (512, 1024, 2048, 4096))))
"""
TRIAD = """
import json, statistics, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy, torch

count, block, threads = int(sys.argv[1]) // 4, 16384, torch.get_num_threads()
b, c, a = (torch.full((count,), value) for value in (1.0, 2.0, 0.0))
arrays = [array.numpy() for array in (a, b, c)]

def part(number):
    edges = [count * each // threads for each in (number, number + 1)]
    into, first, second = (array[edges[0] : edges[1]] for array in arrays)
    scaled = numpy.empty(block, dtype=numpy.float32)
    for start in range(0, len(into), block):
        here = scaled[: len(into) - start]
        numpy.multiply(second[start : start + block], 0.5, out=here)
        numpy.add(first[start : start + block], here, out=into[start : start + block])

def by_numpy():
    list(pool.map(part, range(threads)))

def rate(run):
    times = []
    for _ in range(9):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 12 * count / statistics.median(times[2:])

with ThreadPoolExecutor(threads) as pool:
    print(json.dumps(max(rate(lambda: torch.add(b, c, alpha=0.5, out=a)), rate(by_numpy))))
"""
GOAL_S, PRODUCT_GOAL, TRIAD_GOAL = 60.0, 0.05, 0.10


def bare(program: str, *arguments: str) -> float:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def bare_figures(size: int) -> dict[str, float]:
    """The best of two fresh processes of each."""
    turns = 2 * [("product", PRODUCTS), ("triad", TRIAD)]
    best = {"product": 0.0, "triad": 0.0}
    for name, program in random.sample(turns, len(turns)):
        best[name] = max(best[name], bare(program, str(size)))
    return best


def limits(*arguments: str) -> tuple[float, dict[str, float], int]:
    """Seconds that the command took, the best that it found of each workload, and the bytes of an array."""
    began = time.monotonic()
    command = [sys.executable, "-m", "torchmark", "limits", "--device", "cpu", "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    best, size = {"product": 0.0, "triad": 0.0}, 0
    for result in json.loads(done.stdout)["results"]:
        times = [process["center_s"] for process in result["processes"]]
        case, params = result["case"], result["params"]
        if times and case["workload"] == "matmul" and case["dtype"] == "float32":
            best["product"] = max(best["product"], result["work"]["flops"] / min(times))
        if times and case["workload"] == "bandwidth" and params["kind"] == "triad":
            best["triad"], size = result["work"]["bytes"] / min(times), params["size_bytes"]
    return seconds, best, size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:  # what is found here is not to be kept as this machine's limits
        os.environ |= {"TORCHMARK_HOME": home, "TORCHMARK_LOCK": f"{home}/lock"}
        seconds, _, size = limits()
        held = [seconds <= GOAL_S]
        print(f"{'ok  ' if held[0] else 'FAIL'} torchmark limits took {seconds:.1f} s (goal: at most {GOAL_S:.0f} s)")
        ratios: dict[str, list[float]] = {"product": [], "triad": []}
        for _ in range(options.rounds):
            before, (_, found, _), after = bare_figures(size), limits("--dtype", "float32"), bare_figures(size)
            best = {name: max(before[name], after[name]) for name in ratios}
            for name, ratio in ratios.items():
                ratio.append(found[name] / best[name])
            figures = ", ".join(f"{name} {found[name]:.4g} against {best[name]:.4g}" for name in ratios)
            print(f"     {figures}", flush=True)
    for name, goal in (("product", PRODUCT_GOAL), ("triad", TRIAD_GOAL)):
        off = median(ratios[name]) - 1
        held.append(abs(off) <= goal)
        print(f"{'ok  ' if held[-1] else 'FAIL'} {name}: limits / bare - 1 = {off:+.1%} (goal: within {goal:.0%})")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
