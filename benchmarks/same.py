"""Are equal runs called equal, and is a workload that became 10% slower found?

    python benchmarks/same.py                       100 cases, about 12 minutes
    python benchmarks/same.py --cases 8 --each 2    a try

Three runs through the command line, at default rigor, one after the other as a user would measure them: before, after,
and the cases of one workload again while each of its steps takes 10% longer. That is brought about from outside: a
`sitecustomize` module in the workers' path lets every step be followed by a tenth of its own time of waiting. Then
`before` is compared with `after`, and with `after` in which that workload is the slowed one. Prints each figure next to
its goal; the exit code is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, Family, compare_runs
from torchmark.records import Run
from torchmark.store import load

SLOWED = "mlp"
SLOWER = 1.1
MOST_DIFFERENT = 0.05
# Of each workload a parameter that is swept, and its values by their number: steps of 0.1 to 3 ms.
SWEEPS = {
    "mlp": lambda number: f"mlp/infer:batch={4 + 4 * number}",
    "matmul": lambda number: f"matmul/infer:size={128 + 12 * number}",
    "lstm": lambda number: f"lstm/infer:batch=1,layers=1,sequence={2 + number}",
    "tensor-add": lambda number: f"tensor-add/infer:size={256 + 32 * number}",
}

HOOK = f"""
from time import perf_counter

from msgspec.structs import replace
from torchmark.workloads.{SLOWED} import {SLOWED.capitalize()} as Workload

prepare = Workload.prepare


def prepare_slowed(self, params, setting):
    step = prepare(self, params, setting)

    def run():
        began = perf_counter()
        result = step.run()
        end = began + {SLOWER} * (perf_counter() - began)
        while perf_counter() < end:
            pass
        return result

    return replace(step, run=run)


Workload.prepare = prepare_slowed
"""


def measure(name: str, cases: Sequence[str], each_s: float, folder: Path, slowed: bool = False) -> Run:
    """One run through the command line, in which a case has `each_s` seconds for all its processes."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(hook) if slowed else "", os.environ.get("PYTHONPATH", ""))))
    out, began = folder / f"{name}.jsonl", time.monotonic()
    command = [sys.executable, "-m", "torchmark", "run", *cases, "--budget", f"{each_s * len(cases):.0f}s"]
    command += ["--label", name, "--out", str(out), "--wait"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr.decode(errors="replace")[-2000:])
    run = load(out)
    counts = [len(result.processes) for result in run.results]
    verdicts = [result.estimate.verdict for result in run.results if result.estimate]
    shown = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    print(
        f"     {name}: {len(counts)} cases in {time.monotonic() - began:.0f} s, {sum(counts)} processes; {shown}",
        flush=True,
    )
    return run


def show(held: bool, text: str) -> bool:
    print(f"{'ok  ' if held else 'FAIL'} {text}", flush=True)
    return held


def different(comparison: Comparison) -> int:
    return sum(pair.verdict in ("faster", "slower") for pair in comparison.pairs)


def holding(comparison: Comparison, truth: float) -> str:
    known = [pair.low <= truth <= (pair.high or 0.0) for pair in comparison.pairs if pair.low is not None]
    return f"{sum(known)} of {len(known)} 95% intervals hold {truth:g}"


def about(family: Family) -> str:
    return f"{family.name} {family.ratio:.3f} [{family.low or 0:.3f}, {family.high or 0:.3f}] {family.verdict}"


def check_same(before: Run, after: Run, wanted: int) -> bool:
    comparison = compare_runs(before, after)
    count, called = len(comparison.pairs), different(comparison)
    print(f"     {holding(comparison, 1.0)}; workloads: {'; '.join(map(about, comparison.families))}")
    enough = show(count >= wanted, f"pairs of equal cases: {count} (goal: at least {wanted})")
    share = called / max(count, 1)
    goal = f"(goal: at most {MOST_DIFFERENT:.0%})"
    equal = show(share <= MOST_DIFFERENT, f"equal cases called different: {called} of {count}, {share:.1%} {goal}")
    return enough and equal


def check_slowed(before: Run, after: Run, slowed: Run) -> bool:
    changed = {result.case.text: result for result in slowed.results}
    mixed = replace(after, results=tuple(changed.get(each.case.text, each) for each in after.results))
    comparison = compare_runs(before, mixed)
    own = [pair for pair in comparison.pairs if pair.case in changed]
    (family,) = [family for family in comparison.families if family.name == SLOWED]
    found = sum(pair.verdict == "slower" for pair in own)
    intervals = holding(replace(comparison, pairs=tuple(own)), SLOWER)
    print(f"     of its cases {found} of {len(own)} are called slower; {intervals}")
    others = different(comparison) - different(replace(comparison, pairs=tuple(own)))
    shown = show(family.verdict == "slower", f"a workload made {SLOWER - 1:.0%} slower: {about(family)} (goal: slower)")
    inside = (family.low or 0) <= SLOWER <= (family.high or 0)
    shown = show(inside, f"its interval holds {SLOWER:g} (goal: it does)") and shown
    share = others / max(len(comparison.pairs) - len(own), 1)
    return (
        show(share <= MOST_DIFFERENT, f"others called different: {others} (goal: at most {MOST_DIFFERENT:.0%})")
        and shown
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100, help="in a run")
    parser.add_argument("--each", type=float, default=3.6, help="seconds for a case with all its processes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the three run files; else they are removed")
    options = parser.parse_args()
    names = [
        f"{sweep(number)}@cpu/float32+threads={options.threads}"
        for number in range(-(-options.cases // len(SWEEPS)))
        for sweep in SWEEPS.values()
    ][: options.cases]
    with tempfile.TemporaryDirectory() as folder:
        before, after = (measure(name, names, options.each, Path(folder)) for name in ("before", "after"))
        own = [name for name in names if name.startswith(f"{SLOWED}/")]
        slowed = measure("slowed", own, options.each, Path(folder), slowed=True)
        if options.keep:
            shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("hook"), dirs_exist_ok=True)
    return 0 if all([check_same(before, after, options.cases), check_slowed(before, after, slowed)]) else 1


if __name__ == "__main__":
    sys.exit(main())
