"""How long it takes to gather a large fleet, and whether its one slow node is named.

    python benchmarks/gather.py                   200 run files of 60 results, each of 3 processes
    python benchmarks/gather.py --nodes 1000

The run files are made up, in the form that `torchmark run` writes, for nodes of four kinds; one node is 15% slower than
its peers. `torchmark fleet gather` is a process of its own that has read none of them before. Prints its time next to
the goal; the exit code is 1 where that is missed, or the node is not named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from scale import TASKS, Size, case_lines, forget_pages, make_header, make_machine
from torchmark.fleet.folder import Fleet, FleetFolder, JobOutcome, Task, Terms
from torchmark.records import SCHEMA_VERSION, Case
from torchmark.store.lines import Header, Spread

GOAL_S = 10.0
GOAL_NODES = 200  # which the goal is for
KINDS = 4
SLOW, SLOWER = 30, 1.15


def make_fleet(folder: Path, size: Size) -> str:
    """A fleet whose jobs are all done; the label of the slow node."""
    place = FleetFolder(folder)
    place.prepare()
    tasks = []
    for number in range(size.runs):
        kind = "ABCD"[number % KINDS]
        name = f"{kind}{number // KINDS + 1}"
        tasks.append(Task(name, kind, (f"node{number}",), ("--suite", "standard"), name, f"kind {kind}"))
        write_run(place.run_file(tasks[-1]), name, number, size)
        place.keep_outcome(tasks[-1], JobOutcome("done"))
    place.keep(Fleet("2026-11-16T02:00:00Z", Terms(engine="local"), tuple(tasks)))
    return tasks[SLOW].label


def write_run(path: Path, label: str, number: int, size: Size) -> None:
    random, encoder = np.random.default_rng(number), msgspec.json.Encoder()
    machine, speed = make_machine(number % KINDS)
    device = machine.devices[-1].name
    cases = [Case(workload, mode, {"batch": batch}, device, dtype) for workload, mode, batch, dtype in TASKS]
    header = replace(make_header(machine, cases[: size.results], number, size), label=label)
    lines = [Header(SCHEMA_VERSION, header), Spread(0.03)]
    for case in cases[: size.results]:
        own = speed * np.exp(random.normal(0, 0.01)) / (SLOWER if number == SLOW else 1.0)
        lines += case_lines(random, size, case, own)
    path.write_bytes(b"".join(encoder.encode(line) + b"\n" for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=GOAL_NODES)
    parser.add_argument("--results", type=int, default=60, help="of each run, 120 at most")
    parser.add_argument("--processes", type=int, default=3, help="of each result")
    options = parser.parse_args()
    size = Size(options.nodes, min(options.results, len(TASKS)), 200, options.processes)
    with tempfile.TemporaryDirectory(prefix="torchmark-gather-") as name:
        slow = make_fleet(Path(name), size)
        total = sum(path.stat().st_size for path in Path(name).glob("*.jsonl"))
        print(f"     {size.runs} run files, {size.runs * size.results} results, {total / 1e6:.0f} MB")
        forget_pages(Path(name))
        began = time.perf_counter()
        command = [sys.executable, "-m", "torchmark", "fleet", "gather", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"})
        seconds = time.perf_counter() - began
    outliers = [line.strip() for line in done.stdout.splitlines() if " peers" in line]
    in_time = seconds <= GOAL_S * max(1.0, size.runs / GOAL_NODES)
    right = [line.split()[0] for line in outliers] == [slow]
    print(f"{'ok  ' if in_time else 'FAIL'} gathered in {seconds:.2f} s (goal: at most {GOAL_S:g} s for {GOAL_NODES})")
    print(f"{'ok  ' if right else 'FAIL'} standing out: {'; '.join(outliers) or 'none'} (truth: {slow} alone)")
    return 0 if in_time and right else 1


if __name__ == "__main__":
    sys.exit(main())
