"""Do repeats of the default run agree, does their ± hold, and is a slow-down found?

    python benchmarks/again.py                 seven default runs, about 35 minutes
    python benchmarks/again.py --runs 2 --slowed 1.2 --folder /tmp/again

`torchmark run` several times in a row, as a user would type it, then once with every step 20% longer and once with 10%.
The slow-down comes from outside: a `sitecustomize` module in the workers' path lets every step be followed by a share
of its own time of waiting. All pairs of the plain runs are compared. No run is left out. Prints each figure next to its
goal; the exit code is 1 where one is missed. Runs that are in --folder already are taken from there.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, compare_runs, overall
from torchmark.analyze.grades import grade_of, margin_of, taken_share
from torchmark.analyze.spread import with_intervals
from torchmark.records import Estimate, Run
from torchmark.store import load

HOOK = """
from time import perf_counter

import torchmark.workloads as workloads
from msgspec.structs import replace

find = workloads.find_workload
SLOWER = {slower}


def slowed(run):
    def longer():
        began = perf_counter()
        result = run()
        end = began + SLOWER * (perf_counter() - began)
        while perf_counter() < end:
            pass
        return result

    return longer


def find_slowed(name):
    workload = find(name)
    kind = type(workload)
    if not hasattr(kind, "unslowed"):
        kind.unslowed = kind.prepare
        kind.prepare = lambda self, params, setting: (
            lambda step: replace(step, run=slowed(step.run))
        )(self.unslowed(params, setting))
    return workload


workloads.find_workload = find_slowed
"""


class Report:
    """Figures next to their goals."""

    def __init__(self) -> None:
        self.missed = False

    def check(self, name: str, value: float, goal: str, met: bool) -> None:
        self.missed |= not met
        print(f"  {name:<66} {value:8.3g}  {goal:<8} {'ok' if met else 'MISSED'}", flush=True)


def measure(name: str, folder: Path, slower: float = 1.0) -> Run:
    """One default run through the command line."""
    out, path = folder / f"{name}.jsonl", os.environ.get("PYTHONPATH", "")
    if not out.exists():
        if slower > 1:
            hook = folder / f"hook-{slower}"
            hook.mkdir(exist_ok=True)
            (hook / "sitecustomize.py").write_text(HOOK.format(slower=slower), encoding="utf-8")
            path = os.pathsep.join(filter(None, (str(hook), path)))
        command = [sys.executable, "-m", "torchmark", "run", "--out", str(out), "--label", name]
        began = time.monotonic()
        log = (folder / f"{name}.log").open("wb")
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL, stderr=log, check=True
        )
        print(f"{name}: {time.monotonic() - began:.0f} s by the clock", flush=True)
    run = load(out)
    return replace(run, results=tuple(with_intervals(run.results, run.process_spread)))  # by this version's method


def estimates(run: Run) -> dict[str, Estimate]:
    return {result.case.text: result.estimate for result in run.results if result.status == "ok" and result.estimate}


def describe(name: str, run: Run) -> None:
    """What a run is made of, and how busy others were meanwhile."""
    found = estimates(run)
    good = [result for result in run.results if result.status == "ok"]
    several = sum(len(result.processes) >= 3 for result in good)
    load_share = fmean(taken_share(each.contention) for each in found.values())
    words = [grade.word for result in good if (grade := grade_of(result))]
    grades = ", ".join(f"{words.count(word)} {word}" for word in ("good", "fair", "poor"))
    print(
        f"{name}: {len(good)} cases measured, {several} in 3 or more processes, {grades}; "
        f"others took {load_share:.1%} of the processor",
        flush=True,
    )


def half_width(low: float | None, high: float | None) -> float:
    return math.log(high / low) / 2 if low and high else math.inf


def covered(runs: Sequence[Run]) -> Iterator[bool]:
    """Whether the ± of one run holds the centre of another, for all cases and ordered pairs."""
    for one, other in itertools.permutations(map(estimates, runs), 2):
        for text in one.keys() & other.keys():
            yield one[text].low_s <= other[text].center_s <= one[text].high_s


def differences(comparison: Comparison) -> list[str]:
    return [f"{pair.case} {1 / pair.ratio:.2f}×" for pair in comparison.pairs if pair.verdict in ("faster", "slower")]


def judge(runs: Sequence[Run], slowed: dict[float, Run]) -> bool:
    report = Report()
    pairs = list(itertools.combinations(runs, 2))
    comparisons = [compare_runs(a, b) for a, b in pairs]
    called = [found for comparison in comparisons if (found := differences(comparison))]
    for found in called:
        print(f"  called different: {', '.join(found)}")
    widths = [half_width(pair.low, pair.high) for comparison in comparisons for pair in comparison.pairs]
    margins = [margin_of(estimate) or math.inf for run in runs for estimate in estimates(run).values()]
    held = list(covered(runs))
    shares = [len(result.processes) >= 3 for run in runs for result in run.results if result.status == "ok"]
    words = [grade.word for run in runs for result in run.results if (grade := grade_of(result))]
    counts = [len(estimates(run)) for run in runs]
    print(f"\n{len(runs)} runs, {len(pairs)} comparisons, {len(widths)} pairs of rows")
    report.check("comparisons that call any row different", len(called), "<= 1", len(called) <= 1)
    report.check("median half-width of the ratio intervals", median(widths), "<= 0.10", median(widths) <= 0.10)
    report.check("median printed ±", median(margins), "<= 0.10", median(margins) <= 0.10)
    report.check("± of one run covers the centre of another", fmean(held), ">= 0.93", fmean(held) >= 0.93)
    report.check("cases that rest on 3 or more processes", fmean(shares), ">= 0.80", fmean(shares) >= 0.80)
    report.check("fewest cases measured in a run", min(counts), ">= 11", min(counts) >= 11)
    usable = fmean(word != "poor" for word in words)
    report.check("cases graded good or fair", usable, ">= 0.80", usable >= 0.80)
    for slower, run in slowed.items():
        against = [compare_runs(plain, run) for plain in runs]
        rows = [pair.verdict == "slower" for comparison in against for pair in comparison.pairs]
        means = [mean for comparison in against if (mean := overall(comparison.families))]
        found = fmean(mean.verdict == "slower" for mean in means)
        ratio = median(mean.ratio for mean in means)
        print(f"every step {slower - 1:.0%} longer: geometric mean {ratio:.3f} (times as long)")
        if slower >= 1.2:
            report.check("rows in which that is found", fmean(rows), ">= 0.80", fmean(rows) >= 0.80)
        report.check("comparisons in whose geometric mean it is found", found, "1", found == 1)
    return report.missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--slowed", type=float, nargs="*", default=[1.2, 1.1], help="how many times as long steps take")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; default: a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="again-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHMARK_HOME"] = str(folder / "home")
    runs = []
    for number in range(1, options.runs + 1):
        runs.append(measure(f"plain-{number}", folder))
        describe(f"plain-{number}", runs[-1])
    slowed = {}
    for slower in options.slowed:
        slowed[slower] = measure(f"slowed-{slower:g}", folder, slower)
        describe(f"slowed-{slower:g}", slowed[slower])
    return int(judge(runs, slowed)) if len(runs) > 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
