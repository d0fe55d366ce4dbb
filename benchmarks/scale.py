"""What torchmark takes on a folder of very many runs: time and peak memory of the commands that read it.

    python benchmarks/scale.py                    10,000 runs, 1,000,000 results, 7 GB of temporary files
    python benchmarks/scale.py --runs 500         a twentieth of it
    python benchmarks/scale.py --processes 3      as runs of default rigor are: more than three times the bytes
    python benchmarks/scale.py --folder DIR       keeps the folder, and uses what is there already

The runs are made up, each from its own seed, in the form that `torchmark run` writes. Every command is a process of
its own and finds nothing of the folder in memory the first time. Prints each figure next to its goal; the exit code is
1 where one is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from torchmark.analyze.verdict import combine
from torchmark.measure.cases import check_case, full_params
from torchmark.records import (
    SCHEMA_VERSION,
    Case,
    Contention,
    DeviceInfo,
    Estimate,
    Machine,
    Memory,
    NumericCheck,
    Result,
    RunHeader,
    Trend,
    Work,
)
from torchmark.store.lines import Checksum, Finished, Header, Line, Samples, Spread, Started
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

WORKLOADS = {
    "mlp": ("infer", "train"),
    "resnet50": ("infer", "train"),
    "bert-classify": ("infer", "train"),
    "lstm": ("infer", "train"),
    "bert-encode": ("infer",),
    "vit-train": ("train",),
    "matmul": ("infer",),
    "llm-prefill": ("infer",),
    "mnist-cnn": ("train",),
}
BATCHES, DTYPES = (16, 32, 64, 256), ("float32", "bfloat16")
TASKS = tuple(
    (workload, mode, batch, dtype)
    for workload, modes in WORKLOADS.items()
    for mode, batch, dtype in product(modes, BATCHES, DTYPES)
)
MACHINES = 400  # different ones
VERDICTS = ("stable",) * 16 + ("noisy", "noisy", "contended", "throttled")
USUAL = Estimate(
    center_s=0.0,
    low_s=0.0,
    high_s=0.0,
    estimand="median",
    verdict="stable",
    first_step_s=0.0,
    effective_samples=0.0,
    warmup_cut=3,
    trend=Trend(0.00131, 0.413),
    evidence=("the interval reached ±0.6% where ±1% was asked for",),
    outlier_share=0.01,
    contention=Contention(0.00113, 0.00212, 0.0, 0.0, 1.0113, 3),
    sync_cost_s=2.113e-7,
    call_cost_s=3.117e-8,
    duration_s=3.1127,
)
ENCODER = msgspec.json.Encoder()
CHANGED = 10  # files that come, change and go between two leaderboards


class Size(NamedTuple):
    """How much is made."""

    runs: int
    results: int
    samples: int
    processes: int


class Spent(NamedTuple):
    """What a command took."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def make_folder(folder: Path, size: Size) -> None:
    """All runs, as files; those that are there already stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, _ in enumerate(pool.map(partial(write_run, folder, size), range(size.runs), chunksize=20), 1):
            if number % 500 == 0:
                print(f"     made {number:,} runs", file=sys.stderr)


def write_run(folder: Path, size: Size, number: int) -> None:
    path = folder / f"run-{number:06}.jsonl"
    if not path.exists():
        path.write_bytes(sealed(run_lines(np.random.default_rng(number), size, number)))


def run_lines(random: np.random.Generator, size: Size, number: int) -> Iterator[Line]:
    """One run: a machine of its own speed, and a result for each of its cases."""
    machine, speed = make_machine(number % MACHINES)
    tasks = [TASKS[(number + index) % len(TASKS)] for index in range(size.results)]
    cases = [
        check_case(Case(workload, mode, {"batch": batch}, machine.devices[-1].name, dtype))
        for workload, mode, batch, dtype in tasks
    ]
    yield Header(SCHEMA_VERSION, make_header(machine, cases, number, size))
    yield Spread(0.03)
    for case in cases:
        yield from case_lines(random, size, case, speed * np.exp(random.normal(0, 0.03)))


def sealed(lines: Iterator[Line]) -> bytes:
    """The lines as they are stored, with their checksum at the end."""
    written = b"".join(ENCODER.encode(line) + b"\n" for line in lines)
    return written + ENCODER.encode(Checksum(hashlib.sha256(written).hexdigest())) + b"\n"


def case_lines(random: np.random.Generator, size: Size, case: Case, speed: float) -> Iterator[Line]:
    text, estimates = case.text, []
    usual_s = 1e-3 * case.params.get("batch", 16) / 16 * (1 + len(case.workload)) / speed
    for process in range(size.processes):
        yield Started(text, process)
        values = usual_s * np.exp(random.normal(0, 0.02, size.samples))
        yield Samples(text, process, tuple(values.tolist()))
        estimates.append(make_estimate(values, VERDICTS[int(random.integers(len(VERDICTS)))]))
        yield Finished(make_result(case, estimates, failed=bool(random.random() < 0.01)))


def make_result(case: Case, estimates: Sequence[Estimate], failed: bool) -> Result:
    workload, params = find_workload(case.workload), full_params(case)
    result = Result(
        case=case,
        status="ok",
        version=workload.version,
        params=msgspec.structs.asdict(params),
        rigor="default" if len(estimates) > 1 else "quick",
    )
    if failed:
        return replace(result, status="oom", reason="tried to allocate 37.3 GB with 14.1 GB free")
    return replace(
        result,
        estimate=combine(estimates),
        processes=tuple(estimates),
        work=msgspec.convert(  # whole numbers become floats, as on the way from a worker
            msgspec.to_builtins(workload.work(params, Setting(case.mode, case.device, case.dtype))), Work
        ),
        memory=Memory(host_peak_bytes=310_000_000),
        numeric=NumericCheck(1.2e-7, 1e-4, "float64 on the cpu"),
        phases_s={"prepare": 0.21, "check": 0.1, "warm-up": 0.4, "measure": 3.1},
        settings={"threads": 2, "matmul_precision": "highest", "deterministic": False, "affinity": None, "tf32": None},
    )


def make_estimate(values: np.ndarray, verdict: str) -> Estimate:
    ordered = np.sort(values)
    low, middle, high, p90, p99 = (float(ordered[int(share * len(values))]) for share in (0.43, 0.5, 0.57, 0.9, 0.99))
    taken = {"contended": 0.3}.get(verdict, 0.002)
    return replace(
        USUAL,
        contention=replace(USUAL.contention, other_cpu_share=taken),
        center_s=middle,
        low_s=low,
        high_s=high,
        verdict=verdict,
        first_step_s=float(values[0]),
        effective_samples=len(values) * 0.8,
        sample_count=len(values),
        median_s=middle,
        mean_s=float(values.mean()),
        mean_low_s=low,
        mean_high_s=high,
        min_s=float(ordered[0]),
        p90_s=p90,
        p90_high_s=p90 * 1.1,
        p99_s=p99,
        mad_s=middle * 0.0131,
    )


def make_machine(number: int) -> tuple[Machine, float]:
    """One of MACHINES, and how fast it is; every second one has a GPU."""
    cpu, cores, memory = f"Processor {number % 40}", 2 ** (number % 7), 8 * (1 + number % 16)
    devices = (DeviceInfo("cpu", cpu), DeviceInfo("cuda:0", f"Accelerator {number % 50}", 24 << 30, "555.42", "8.9"))
    machine = Machine(
        cpu, cores, 2 * cores, memory, "Linux 6", "3.11.7", f"2.{6 + number % 8}.0", devices=devices[: 1 + number % 2]
    )
    return machine, 1 + number / 40


def make_header(machine: Machine, cases: Sequence[Case], number: int, size: Size) -> RunHeader:
    texts = tuple(case.text for case in cases)
    day, second = divmod(number * 97, 86_400)
    created = f"2026-{1 + day // 28:02}-{1 + day % 28:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    command = " ".join(("torchmark run", *texts))
    return RunHeader(
        f"{number:08x}", created, machine, texts, command, "0.1.0", f"label-{number}", processes=size.processes
    )


def forget_pages(folder: Path) -> None:
    """Ask the system to drop its copies of the files, so that the first reading is one from the disk."""
    os.sync()
    for path in folder.glob("*.jsonl"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def change_little(folder: Path, size: Size) -> None:
    """Some files change, some go, some come."""
    for number in range(CHANGED):
        (folder / f"run-{number:06}.jsonl").unlink()
        write_run(folder, size._replace(samples=size.samples + 1), number)
        (folder / f"run-{CHANGED + number:06}.jsonl").unlink()
        write_run(folder, size, size.runs + number)


def torchmark(folder: Path, *arguments: str) -> Spent:
    """One command, as a person gives it."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "torchmark", *arguments]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"TORCHMARK_HOME": str(folder)}
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Spent(time.perf_counter() - began, used.ru_utime + used.ru_stime, peak)


def show(name: str, spent: Spent, goal_s: float | None = None, goal_bytes: float = 3e9) -> bool:
    held = spent.peak_bytes <= goal_bytes and (goal_s is None or spent.seconds <= goal_s)
    goal = f" (goal: at most {goal_s:g} s)" if goal_s else ""
    figures = f"{spent.seconds:.2f} s ({spent.cpu_s:.2f} s of CPU), {spent.peak_bytes / 1e6:.0f} MB at most"
    print(f"{'ok  ' if held else 'FAIL'} {name}: {figures}{goal}", flush=True)
    return held


def try_commands(folder: Path, size: Size) -> list[bool]:
    """Every command that reads the folder or a part of it."""
    other = MACHINES if size.runs > 3 * CHANGED + MACHINES else 2  # the same machine again, if there are so many
    page, one, two = str(folder / "board.html"), f"label-{3 * CHANGED}", f"label-{3 * CHANGED + other}"
    board = ("report", "--leaderboard", str(folder), "-o", page)
    forget_pages(folder)
    held = [show("leaderboard, the first time", torchmark(folder, *board), 120)]
    print(f"     {Path(page).stat().st_size / 1e6:.2f} MB of page")
    held.append(show("leaderboard again, nothing changed", torchmark(folder, *board), 15))
    change_little(folder, size)
    held.append(show(f"leaderboard again, {3 * CHANGED} files changed", torchmark(folder, *board), 15))
    held.append(show("compare two runs by their labels", torchmark(folder, "compare", one, two), 2))
    held.append(show("list all runs", torchmark(folder, "runs"), 10, 200e6))
    held.append(show("show the latest run", torchmark(folder, "show", "last")))
    held.append(show("report of two runs", torchmark(folder, "report", one, two, "-o", str(folder / "report.html"))))
    with tempfile.TemporaryDirectory() as small:
        few = [str(Path(small) / f"run-{number:06}.jsonl") for number in (0, len(TASKS))]
        for number in (0, len(TASKS)):
            write_run(Path(small), size._replace(results=10), number)
        held.append(show("compare two small runs", torchmark(folder, "compare", *few), 0.5))
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--results", type=int, default=100, help="of each run")
    parser.add_argument("--samples", type=int, default=200, help="of each process of a result")
    parser.add_argument("--processes", type=int, default=1, help="of each result")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    size = Size(options.runs, options.results, options.samples, options.processes)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="torchmark-scale-"))
    try:
        began = time.perf_counter()
        make_folder(folder, size)
        total = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        made = f"{size.runs:,} runs, {size.runs * size.results:,} results, {total / 1e9:.2f} GB"
        print(f"     {made}, made in {time.perf_counter() - began:.0f} s")
        return 0 if all(try_commands(folder, size)) else 1
    finally:
        if not options.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
