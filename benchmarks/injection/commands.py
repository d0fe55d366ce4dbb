"""The commands that write, what each announces on stderr, and whether that is in its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import scale
from injection.trials import Trial
from torchmark.analyze.pairing import name_of
from torchmark.errors import StoreError
from torchmark.records import Result, Run, parse_case
from torchmark.store import load

CASE = "faulty/infer:delay_ms=3@fake/float32"
FAKE = "null/infer@fake/float32"
MEASURED = re.compile(r"^\[\d+(?:/\d+)?\](?: process (\d+))? (\S+): (.+)$", re.MULTILINE)
PAIR = re.compile(r"^pair (\d+):", re.MULTILINE)
FITTED = re.compile(r"^number (\d+)(?: again)?: (.+)$", re.MULTILINE)
LEADER = re.compile(r"^best so far: (.+), [\d.]+×$", re.MULTILINE)
TASK = re.compile(r"^(\w+): (\S+@\S+): (.+)$", re.MULTILINE)
BIG_RUN = scale.Size(runs=1, results=100, samples=3000, processes=1)

Missing = Callable[[Trial], Iterator[str]]


class Command(NamedTuple):
    """One that writes: its arguments, and which of the announced results its files lack."""

    name: str
    arguments: tuple[str, ...]
    missing: Missing
    needs_run: bool = False  # there is a run to read
    outlives: bool = False  # its jobs go on without it


def run_files(trial: Trial, *patterns: str) -> list[Run]:
    """All that were begun; one that was killed before its first line is empty, and announced nothing."""
    found = sorted(path for pattern in patterns or ("home/*.jsonl",) for path in trial.folder.glob(pattern))
    return [load(path) for path in found if path.stat().st_size]


def cases_missing(trial: Trial, pattern: str = "work/run.jsonl") -> Iterator[str]:
    """`run`, `limits`, `replicate`: a line for each process."""
    kept = {result.case.text: result for run in run_files(trial, pattern) for result in run.results}
    for process, case, figure in MEASURED.findall(trial.heard):
        if not _has(kept.get(case), figure, int(process or 1)):
            yield f"{case}: {figure}"


def pairs_missing(trial: Trial) -> Iterator[str]:
    """`ab`: a line for each pair of processes, kept in two files."""
    announced = len(PAIR.findall(trial.heard))
    kept = [len(result.processes) for run in run_files(trial) for result in run.results]
    if announced and (len(kept) != 2 or min(kept) < announced):
        yield f"{announced} pairs, of which {kept} are kept"


def sizes_missing(trial: Trial) -> Iterator[str]:
    """`fit`: a line for each process of a size."""
    kept = {result.case.params.get("number", 0): result for run in run_files(trial) for result in run.results}
    tries: Counter[int] = Counter()
    for size, figure in FITTED.findall(trial.heard):
        tries[int(size)] += figure[0].isdigit()
        if not _has(kept.get(int(size)), figure, tries[int(size)]):
            yield f"{size}: {figure}"


def leaders_missing(trial: Trial) -> Iterator[str]:
    """`tune`: a line for each configuration that takes the lead."""
    kept = {name_of(result.case, parse_case(CASE)) for run in run_files(trial) for result in run.results}
    yield from (name for name in LEADER.findall(trial.heard) if name not in kept)


def tasks_missing(trial: Trial) -> Iterator[str]:
    """`fleet`: a line for each result of each node."""
    for task, case, figure in TASK.findall(trial.heard):
        kept = {result.case.text: result for run in run_files(trial, f"fleet/{task}.jsonl") for result in run.results}
        if not _has(kept.get(case), figure, 1):
            yield f"{task}: {case}: {figure}"


def export_missing(trial: Trial) -> Iterator[str]:
    """`export`: a file is there whole, or not at all; and it is there once that was said."""
    path = trial.work / "export.jsonl"
    if path.exists():
        if len(load(path).results) != BIG_RUN.results or b'"checksum"' not in path.read_bytes()[-200:]:
            yield "a part of the export"
    elif "Wrote " in trial.heard:
        yield "the export"


def report_missing(trial: Trial) -> Iterator[str]:
    path = trial.work / "report.html"
    if path.exists():
        if not path.read_bytes().rstrip().endswith(b"</html>"):
            yield "a part of the report"
    elif "wrote " in trial.heard:
        yield "the report"


def _has(kept: Result | None, figure: str, processes: int) -> bool:
    if kept is None:
        return False
    if not figure[0].isdigit():
        return kept.status != "ok" and figure.startswith(kept.status)
    return kept.status == "ok" and max(len(kept.processes), 1) >= processes  # a replay has laps instead


def prepare(trial: Trial, command: Command) -> None:
    if command.needs_run:
        scale.write_run(trial.folder, BIG_RUN, 0)
        (trial.folder / "run-000000.jsonl").rename(trial.folder / "big.jsonl")


def faults_of(trial: Trial, command: Command) -> tuple[list[str], list[str]]:
    """Announced results that are lost, and files that cannot be read."""
    try:
        return [*command.missing(trial)], []
    except StoreError as error:
        return [], [str(error)]


COMMANDS = (
    Command(
        "run",
        ("run", *(f"{FAKE}+threads={number}" for number in range(1, 11)), "--steps", "5", "--out", "run.jsonl"),
        cases_missing,
    ),
    Command("ab", ("ab", FAKE, "--env-b", "NOTHING=1", "--target", "0.0001", "--budget", "16s"), pairs_missing),
    Command("tune", ("tune", CASE, "--also", "delay_ms=0,1,2", "--budget", "30s"), leaders_missing),
    Command("fit", ("fit", "faulty", "--device", "fake", "--vary", "number", "--most", "8"), sizes_missing),
    Command("limits", ("limits", "--device", "fake", "--tiny", "--out", "run.jsonl"), cases_missing),
    Command(
        "replicate",
        ("replicate", "simple-add", "--device", "fake", "--scale", "0.01", "--out", "run.jsonl"),
        cases_missing,
    ),
    Command(
        "fleet run",
        (
            "fleet",
            "run",
            "null",
            "--device",
            "fake",
            "--steps",
            "20",
            "--engine",
            "local",
            "--nodes=2",
            "--folder=../fleet",
        ),
        tasks_missing,
        outlives=True,
    ),
    Command("export", ("export", "../big.jsonl", "-o", "export.jsonl"), export_missing, needs_run=True),
    Command("report", ("report", "../big.jsonl", "-o", "report.html"), report_missing, needs_run=True),
)
