"""Does it hold? Kills at random moments, workers that fail in every phase, mutated run files: what is lost or wrong?

    python benchmarks/faults.py                                  a few minutes
    python benchmarks/faults.py --kills 10000 --files 1000000 --failures 500 --seed 7

Runs go side by side, each in a folder of its own and with a lock of its own: nothing here is about speed. The exit
code is 1 if a finished result was lost, a case got the wrong status, a process was left behind, an error got through,
or a file took more than a second of processor time or 300 MB to be answered.
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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from injection import failures
from torchmark.errors import StoreError
from torchmark.store import load

GONE_AFTER_S = 10.0
MARK = "TORCHMARK_FAULT_TRIAL"
COMMAND = [sys.executable, "-m", "torchmark", "run"]
FINISHED = re.compile(r"^\[\d+/\d+\] (\S+): .*±", re.MULTILINE)
FAULTS_A_RUN, CPU_EVERY, RESUME_EVERY = 20, 5, 5
FILES_A_TASK, SEEDS_APART, PAGE_EVERY = 500, 100_000_000, 20
FILE_S, FILE_BYTES = 1.0, 300_000_000


class Tally(NamedTuple):
    """What came of some injected faults."""

    injected: int = 0
    lost: int = 0  # results that were announced and are not in the file
    mislabelled: int = 0  # cases with another status than the right one, or a reason that does not tell why and when
    orphans: int = 0
    unhandled: int = 0  # tracebacks, files that cannot be read, runs that cannot be resumed
    longest_s: float = 0.0
    peak_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not (self.lost or self.mislabelled or self.orphans or self.unhandled)


def together(tallies: Sequence[Tally]) -> Tally:
    sums = [sum(values) for values in zip(*(tally[:5] for tally in tallies), strict=True)]
    notes = tuple(note for tally in tallies for note in tally.notes)
    most = max((tally.longest_s for tally in tallies), default=0.0), max((t.peak_bytes for t in tallies), default=0)
    return Tally(*(sums or [0] * 5), *most, notes)


def told(name: str, tallies: Iterable[Tally], total: int) -> list[Tally]:
    """All of them; how far it has come is said on the way."""
    seen: list[Tally] = []
    injected = 0
    for tally in tallies:
        seen.append(tally)
        if not tally.held:
            print(f"{name}: {tally}", file=sys.stderr, flush=True)
        before, injected = injected, injected + tally.injected
        if injected * 20 // total > before * 20 // total:
            print(f"{name}: {injected:,} of {total:,}", file=sys.stderr, flush=True)
    return seen


# Kills


def planned(device: str) -> list[str]:
    if device == "cpu":
        return [f"mlp/infer:batch={size}@cpu/float32" for size in range(1, 7)]
    return [f"null/infer@fake/float32+threads={number}" for number in range(1, 11)]


def kill(device: str, most_s: float, seed: int, number: int) -> Tally:
    """Start a run, kill it at a random moment, look at what is left, and now and then go on with it."""
    chance = random.Random(f"{seed} {device} {number}")
    with tempfile.TemporaryDirectory() as name:
        folder, mark = Path(name), f"{os.getpid()}-{device}-{number}"
        out, environment = folder / "run.jsonl", marked(folder, mark)
        with (folder / "heard").open("wb") as heard:
            process = subprocess.Popen(
                [*COMMAND, *planned(device), "--steps", "5", "--out", str(out)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=heard,
            )
        try:
            process.wait(chance.uniform(0.05, most_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        killed = process.wait() == -signal.SIGKILL
        words = (folder / "heard").read_text()
        orphans, gone_s = left_behind(mark)
        lost, unhandled = inspect(out, FINISHED.findall(words))
        if "Traceback" in words:
            unhandled.append(words.splitlines()[-1])
        if killed and not unhandled and out.exists() and number % RESUME_EVERY == 0:
            unhandled += resume(out, environment)
        return Tally(int(killed), lost, 0, orphans, len(unhandled), gone_s, notes=tuple(unhandled))


def inspect(out: Path, announced: Sequence[str]) -> tuple[int, list[str]]:
    """How many results the file lacks that were announced, and what is wrong with it."""
    if not out.exists():
        return len(announced), []
    if not out.stat().st_size:  # killed between making the file and writing its first line
        return len(announced), []
    try:
        kept = {result.case.text for result in load(out).results if result.status == "ok"}
    except StoreError as error:
        return len(announced), [str(error)]
    return len(set(announced) - kept), []


def resume(out: Path, environment: dict[str, str]) -> list[str]:
    """What keeps a run from being completed."""
    done = subprocess.run(
        [*COMMAND, "--resume", str(out)], env=environment, capture_output=True, text=True, check=False
    )
    run = load(out)
    missing = len(run.header.cases) - len(run.results)
    failed = [f"{result.status} ({result.reason})" for result in run.results if result.status != "ok"]
    if done.returncode == 0 and not missing and not failed:
        return []
    return [f"--resume ended with {done.returncode}, {missing} missing, {failed}, {done.stderr[-200:]!r}"]


def marked(folder: Path, mark: str) -> dict[str, str]:
    return failures.environment(folder) | {MARK: mark, "TORCHMARK_FAKE": "sleep=on,step=0.005"}


def left_behind(mark: str) -> tuple[int, float]:
    """Processes that carry the mark when all should have gone, and how long that took. A zombie is as good as gone."""
    began = time.monotonic()
    while found := alive(mark):
        if time.monotonic() - began > GONE_AFTER_S:
            break
        time.sleep(0.05)
    return found, time.monotonic() - began


def alive(mark: str) -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                carries = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                found += carries and "\nState:\tZ" not in (entry / "status").read_text()
            except OSError:
                continue
    return found


def kill_many(device: str, count: int, seed: int, beside: int) -> Tally:
    """As long as an undisturbed run takes among its neighbours, so that every moment of it has its chance."""
    if not count:
        return Tally()
    with ThreadPoolExecutor(beside) as pool:
        alone = [pool.submit(_whole_run, device) for _ in range(beside)]
        most_s = max(run.result() for run in alone)
        tallies = told(f"kills, {device}", pool.map(partial(kill, device, most_s, seed), range(count)), count)
        missing, number = count - sum(tally.injected for tally in tallies), count
        while missing > 0:  # some runs were done before it came to that
            more = list(pool.map(partial(kill, device, most_s, seed), range(number, number + missing)))
            number, missing, tallies = number + missing, missing - sum(tally.injected for tally in more), tallies + more
    return together(tallies)


def _whole_run(device: str) -> float:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMMAND, *planned(device), "--steps", "5", "--out", str(Path(folder) / "run.jsonl")]
        subprocess.run(command, env=marked(Path(folder), "none"), capture_output=True, check=True)
    return time.monotonic() - began


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
        return Tally(FAULTS_A_RUN, 0, len(wrong), orphans, unhandled, took_s, notes=tuple(wrong))


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


def fail_many(count: int, seed: int, beside: int) -> Tally:
    runs = -(-count // FAULTS_A_RUN)
    with ThreadPoolExecutor(beside) as pool:
        return together(told("failures", pool.map(partial(fail, seed), range(runs)), count))


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
    return Tally(count, 0, 0, 0, len(unhandled), longest_s, peak_bytes, tuple(unhandled))


def forget_peak() -> None:
    """From now on: what it took to make a mutant is not what it takes to read it."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def mutate_many(count: int, seed: int, beside: int) -> Tally:
    start = seed * SEEDS_APART
    tasks = [(start + first, min(FILES_A_TASK, count - first)) for first in range(0, count, FILES_A_TASK)]
    with ProcessPoolExecutor(beside) as pool:
        return together(told("files", pool.map(read_mutants, *zip(*tasks, strict=True)), count))


def table(rows: Sequence[tuple[str, Tally]]) -> str:
    heads = ("fault", "injected", "lost", "mislabelled", "orphans", "unhandled", "longest", "peak memory")
    cells = [heads] + [
        (
            name,
            *(f"{value:,}" for value in tally[:5]),
            f"{tally.longest_s:.2f} s",
            f"{tally.peak_bytes / 1e6:.0f} MB" if tally.peak_bytes else "-",
        )
        for name, tally in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="runs on the fake device that are killed")
    parser.add_argument("--real", type=int, default=10, help="runs on the CPU that are killed")
    parser.add_argument("--failures", type=int, default=100, help="workers that fail, over all phases")
    parser.add_argument("--files", type=int, default=10_000, help="mutated run files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=int, default=3 * (os.cpu_count() or 1), help="runs at the same time")
    options = parser.parse_args()
    parts: list[tuple[str, Callable[[], Tally]]] = [
        ("kill -9, fake device", lambda: kill_many("fake", options.kills, options.seed, options.beside)),
        ("kill -9, cpu", lambda: kill_many("cpu", options.real, options.seed, os.cpu_count() or 1)),
        ("worker failures", lambda: fail_many(options.failures, options.seed, options.beside)),
        ("mutated files", lambda: mutate_many(options.files, options.seed, os.cpu_count() or 1)),
    ]
    wanted = (options.kills, options.real, options.failures, options.files)
    rows = []
    for (name, part), count in zip(parts, wanted, strict=True):
        if count:
            rows.append((name, part()))
    print(table(rows))
    for name, tally in rows:
        for note in tally.notes[:20]:
            print(f"FAIL  {name}: {note}")
    print(f"seed {options.seed}: {'all held' if all(tally.held for _, tally in rows) else 'NOT all held'}")
    return 0 if all(tally.held for _, tally in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
