"""System calls that fail: each call of the store, at each of its occurrences, with each error."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

from injection.commands import FAKE, Command, cases_missing, export_missing, faults_of, pairs_missing, prepare
from injection.tally import Tally, report_progress, together
from injection.trials import Trial, left_behind, trial
from torchmark.errors import StoreError
from torchmark.store import load

ERRORS = ("EIO", "ENOSPC", "EMFILE", "EINTR")
CALLS = (
    "openat", "read", "write", "fsync", "ftruncate", "close", "fstat", "newfstatat", "lseek", "flock", "mkdir",
    "rename", "link", "linkat", "unlink", "statfs", "dup", "fcntl", "getdents64",
)  # fmt: skip
CASES = tuple(f"{FAKE}+threads={number}" for number in (1, 2))
LINE = re.compile(r"^torchmark: error: .+\. [A-Z].+$", re.MULTILINE)
MOST_TIMES = 40  # that one call is made on one path


def resumed_missing(place: Trial) -> Iterator[str]:
    """What was in the file before, and what was announced since."""
    kept = {result.case.text for result in load(place.out).results if result.status == "ok"}
    yield from (CASES[0],) if CASES[0] not in kept else ()
    yield from cases_missing(place)


def nothing_missing(_: Trial) -> Iterator[str]:
    yield from ()


# Each with the file or folder whose calls fail.
COMMANDS = (
    (
        Command("run", ("run", *CASES, "--steps", "3", "--out", "{}/work/run.jsonl"), cases_missing),
        ("work/run.jsonl", "work"),
    ),
    (Command("resume", ("run", "--resume", "{}/work/run.jsonl"), resumed_missing), ("work/run.jsonl", "work")),
    (
        Command("export", ("export", "{}/big.jsonl", "-o", "{}/work/export.jsonl"), export_missing, True),
        ("big.jsonl", "work"),
    ),
    (Command("check", ("check", "{}/work/run.jsonl"), nothing_missing), ("work/run.jsonl",)),
    (Command("ab", ("ab", FAKE, "--env-b", "NOTHING=1", "--budget", "3s"), pairs_missing), ("home",)),
)


class Fault(NamedTuple):
    """The `when`-th `call` on the `path` fails with the `error`."""

    command: Command
    path: str
    call: str
    error: str
    when: int


def fail_calls(count: int, seed: int, parallel: int) -> list[tuple[str, Tally]]:
    """All of them, or so many drawn at random."""
    with ThreadPoolExecutor(parallel) as pool:
        pairs = [(command, path) for command, paths in COMMANDS for path in paths]
        faults = [fault for found in pool.map(lambda pair: [*plan(*pair)], pairs) for fault in found]
        random.Random(seed).shuffle(faults)
        faults = faults[:count]
        tallies = report_progress("system calls", pool.map(fail_call, faults), len(faults))
    found: dict[str, list[Tally]] = {}
    for fault, tally in zip(faults, tallies, strict=True):
        found.setdefault(fault.command.name, []).append(tally)
    return [(f"system calls: {name}", together(several)) for name, several in sorted(found.items())]


def plan(command: Command, path: str) -> Iterator[Fault]:
    """Every call that the command makes on this path, as often as it makes it."""
    with trial() as place:
        _prepare(place, command)
        log = place.folder / "calls"
        place.run(*command.arguments, prefix=("strace", "-o", str(log), *_traced(place, path, CALLS)))
        calls = re.findall(r"^(\w+)\(", log.read_text(errors="replace"), re.MULTILINE)
    for call in dict.fromkeys(calls):
        for when in range(1, min(calls.count(call), MOST_TIMES) + 1):
            yield from (Fault(command, path, call, error, when) for error in ERRORS)


def fail_call(fault: Fault) -> Tally:
    """Everything is stored, or exit code 4 with one line that gives cause and fix."""
    command, path, call, error, when = fault
    with trial() as place:
        _prepare(place, command)
        inject = ("-e", f"inject={call}:error={error}:when={when}")
        prefix = ("strace", "-o", "/dev/null", *_traced(place, path, (call,)), *inject)
        code = place.run(*command.arguments, prefix=prefix)
        orphans, gone_s = left_behind(place.mark)
        lost, unhandled = faults_of(place, command)
        left = place.leftovers()
        unhandled += [*place.complaints(), *_wrong_end(place, command, code)]
        how = f"{command.name}, {path}, {call} {error} {when}, ended with {code}"
        notes = tuple(f"{how}: {what}" for what in (*lost, *left, *unhandled))
        return Tally(1, len(lost), 0, orphans, len(left), len(unhandled), gone_s, notes=notes)


def _wrong_end(place: Trial, command: Command, code: int) -> Iterator[str]:
    errors = [line for line in place.heard.splitlines() if line.startswith("torchmark: error: ")]
    if code == 0:
        yield from _incomplete(place, command)
    elif code == 1 and command.name == "check":
        return  # a file that cannot be read is one of its findings
    elif code != 4 or len(errors) != 1 or not LINE.search(place.heard):
        yield f"neither 0 nor 4 with one line: {place.heard[-300:]!r}"


def _incomplete(place: Trial, command: Command) -> Iterator[str]:
    if command.name in ("run", "resume"):
        try:
            run = load(place.out)
        except StoreError as error:
            yield str(error)
        else:
            if [result.status for result in run.results] != ["ok"] * len(CASES) or run.problems:
                yield f"not all is stored: {[result.status for result in run.results]} {run.problems}"
    elif command.name == "export" and not (place.work / "export.jsonl").exists():
        yield "no export"


def _prepare(place: Trial, command: Command) -> None:
    prepare(place, command)
    if command.name in ("resume", "check"):
        place.out.write_bytes(_half_a_run() if command.name == "resume" else _whole_run())


@cache
def _whole_run() -> bytes:
    with trial() as place:
        place.run("run", *CASES, "--steps", "3", "--out", "run.jsonl")
        return place.out.read_bytes()


def _half_a_run() -> bytes:
    """A run that was killed after its first case, in the middle of a line."""
    lines = _whole_run().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines, 1) if b'"finished"' in line)
    return b"".join(lines[:first]) + lines[first][:20]


def _traced(place: Trial, path: str, calls: Sequence[str]) -> tuple[str, ...]:
    return ("-P", str(place.folder / path), "-e", f"trace={','.join(calls)}")
