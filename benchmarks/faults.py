"""Does it hold? Commands killed at random moments, workers that fail in every phase, run files that others change,
system calls that fail, hostile folders, mutated run files: what is lost or wrong?

    python benchmarks/faults.py                                  some ten minutes
    python benchmarks/faults.py --kills 10000 --files 1000000 --failures 500 --seed 7
    python benchmarks/faults.py --only syscalls --syscalls 100000 --seed 3

Commands run side by side, each in a folder of its own and with a lock of its own: nothing here is about speed. The exit
code is 1 if an announced result was lost, a case got the wrong status, a process or a temporary file was left behind,
an error got through, or a file took more than a second of processor time or 300 MB to be answered.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from injection import failures
from injection.changes import change_many
from injection.folders import run_in_hostile_folders
from injection.kills import kill_many, kill_real
from injection.syscalls import fail_calls
from injection.tally import Tally, report_progress, table, together
from injection.trials import MARK, alive, left_behind
from torchmark.store import load

COMMAND = [sys.executable, "-m", "torchmark", "run"]
FAULTS_A_RUN, CPU_EVERY = 20, 5
FILES_A_TASK, SEEDS_APART, PAGE_EVERY = 500, 100_000_000, 20
FILE_S, FILE_BYTES = 1.0, 300_000_000

__all__ = ["alive", "change_many", "fail_calls", "kill_many", "left_behind", "run_in_hostile_folders"]


# Failures of workers


def fail(seed: int, number: int) -> Tally:
    """A run with as many cases that fail as cases that do not, in random order; now and then with real work."""
    chance = random.Random(f"{seed} failures {number}")
    device = "cpu" if number % CPU_EVERY == CPU_EVERY - 1 else "fake"
    wanted = [*failures.draw(chance, device, FAULTS_A_RUN), *[("steps", "none")] * FAULTS_A_RUN]
    chance.shuffle(wanted)
    cases = {failures.case(phase, fault, index, device): (phase, fault) for index, (phase, fault) in enumerate(wanted)}
    with tempfile.TemporaryDirectory() as name:
        folder, mark = Path(name), f"{os.getpid()}-failures-{number}"
        environment = failures.environment(folder) | {MARK: mark}
        command = [*COMMAND, *cases, "--steps", "5", "--timeout", "10s", "--out", str(folder / "run.jsonl")]
        began = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - began
        orphans, _ = left_behind(mark)
        wrong = [*mislabelled(folder / "run.jsonl", cases)]
        unhandled = ["Traceback" in done.stderr, done.returncode != 0].count(True)
        return Tally(FAULTS_A_RUN, 0, len(wrong), orphans, 0, unhandled, took_s, notes=tuple(wrong))


def mislabelled(path: Path, cases: dict[str, tuple[str, str]]) -> Sequence[str]:
    found = {result.case.text: result for result in load(path).results}
    wrong = []
    for text, (phase, fault) in cases.items():
        status, words = failures.expected(phase, fault)
        result = found.get(text)
        reason = (result.reason or "") if result else ""
        if result is None or result.status != status or any(word not in reason for word in words):
            wrong.append(f"{text} is {result.status if result else 'not there'} ({reason}), not {status} {words}")
    return wrong


def fail_many(count: int, seed: int, parallel: int) -> Tally:
    runs = -(-count // FAULTS_A_RUN)
    with ThreadPoolExecutor(parallel) as pool:
        return together(report_progress("failures", pool.map(partial(fail, seed), range(runs)), count))


# Mutated files


def read_mutants(first: int, count: int) -> Tally:
    """Files that were changed in some way, each given to all that read files, and some to what draws, ranks and gathers
    them; in a process of its own."""
    import mutations

    originals, unhandled, longest_s, peak_bytes = mutations.originals(), [], 0.0, 0
    mutations.prepare_pages()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "run.jsonl"
        for seed in range(first, first + count):
            path.write_bytes(mutations.mutate(originals[seed % len(originals)], seed))
            forget_peak()
            began = time.process_time()  # what neighbours do is not the file's fault
            try:
                mutations.judge(path)
                if seed % PAGE_EVERY == 0:
                    mutations.judge_page(path)
            except Exception as error:
                unhandled.append(f"mutations.py --seed {seed}: {type(error).__name__}: {error}"[:300])
            took_s = time.process_time() - began
            if took_s > FILE_S:
                unhandled.append(f"mutations.py --seed {seed}: took {took_s:.2f} s")
            longest_s, peak_bytes = max(longest_s, took_s), max(peak_bytes, taken := peak_memory())
            if taken > FILE_BYTES:
                unhandled.append(f"mutations.py --seed {seed}: {taken / 1e6:.0f} MB")
    return Tally(count, 0, 0, 0, 0, len(unhandled), longest_s, peak_bytes, tuple(unhandled))


def forget_peak() -> None:
    """From now on: what it took to make a mutant is not what it takes to read it."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def mutate_many(count: int, seed: int, parallel: int) -> Tally:
    start = seed * SEEDS_APART
    tasks = [(start + first, min(FILES_A_TASK, count - first)) for first in range(0, count, FILES_A_TASK)]
    with ProcessPoolExecutor(parallel) as pool:
        return together(report_progress("files", pool.map(read_mutants, *zip(*tasks, strict=True)), count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=90, help="commands on the fake device that are killed")
    parser.add_argument("--real", type=int, default=10, help="runs on the CPU that are killed")
    parser.add_argument("--changes", type=int, default=40, help="run files that others change or write to")
    parser.add_argument("--syscalls", type=int, default=100, help="system calls that fail, drawn from all there are")
    parser.add_argument("--folders", type=int, default=1, help="0: no hostile folders")
    parser.add_argument("--failures", type=int, default=100, help="workers that fail, over all phases")
    parser.add_argument("--files", type=int, default=10_000, help="mutated run files")
    parser.add_argument("--only", metavar="PART", help="leave the other parts out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=3 * (os.cpu_count() or 1), help="commands at the same time")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would trials
    seed, parallel, cores = options.seed, options.parallel, os.cpu_count() or 1
    parts: dict[str, Callable[[int], list[tuple[str, Tally]]]] = {
        "kills": lambda count: kill_many(count, seed, parallel),
        "real": lambda count: kill_real(count, seed),
        "changes": lambda count: change_many(count, seed, parallel),
        "syscalls": lambda count: fail_calls(count, seed, parallel),
        "folders": lambda _: run_in_hostile_folders(cores),
        "failures": lambda count: [("worker failures", fail_many(count, seed, parallel))],
        "files": lambda count: [("mutated files", mutate_many(count, seed, cores))],
    }
    if options.only and options.only not in parts:
        parser.error(f"--only is one of {', '.join(parts)}")
    rows: list[tuple[str, Tally]] = []
    for name, part in parts.items():
        if getattr(options, name) and options.only in (None, name):
            rows += part(getattr(options, name))
    print(table(rows))
    for name, tally in rows:
        for note in tally.notes[:20]:
            print(f"FAIL  {name}: {note}")
    held = all(tally.held for _, tally in rows)
    print(f"seed {seed}: {'all held' if held else 'NOT all held'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
