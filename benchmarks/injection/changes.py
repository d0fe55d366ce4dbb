"""Run files that other programs change while a run goes on, and second writers: no announced result is lost."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from injection.commands import FAKE, MEASURED, Command, cases_missing, faults_of
from injection.tally import Tally, report_progress, together
from injection.trials import LIMIT_S, Trial, left_behind, trial
from torchmark.store import load

# The last one waits until the file has been changed, so that the change always meets a run that goes on.
CASES = (*(f"{FAKE}+threads={number}" for number in range(1, 9)), "faulty/infer:fault=wait@fake/float32")
OUT = "work/runs/run.jsonl"
COMMAND = Command(
    "changed", ("run", *CASES, "--steps", "3", "--share", "--out", f"{{}}/{OUT}"), partial(cases_missing, pattern=OUT)
)


def replaced(path: Path) -> None:
    """As sync tools and editors do: a copy takes the place of the file."""
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"threads=1", b"threads=9"))


def appended_to(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"a line of another program\n")


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def deleted(path: Path) -> None:
    path.unlink()


def folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def folder_deleted(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


CHANGES = (replaced, edited, appended_to, cut, emptied, moved, deleted, folder_moved, folder_deleted)


def change_many(count: int, seed: int, parallel: int) -> list[tuple[str, Tally]]:
    """So many changes and second writers, each after a random result."""
    kinds = (*(partial(change_file, change) for change in CHANGES), add_writer)
    names = (*(change.__name__.replace("_", " ") for change in CHANGES), "second writer")
    with ThreadPoolExecutor(parallel) as pool:
        tried = pool.map(lambda number: kinds[number % len(kinds)](seed, number), range(count))
        tallies = report_progress("changes", tried, count)
    return [(f"file: {name}", together(tallies[index :: len(kinds)])) for index, name in enumerate(names[:count])]


def change_file(change: Callable[[Path], None], seed: int, number: int) -> Tally:
    with trial() as place:
        process = _start(place, random.Random(f"{seed} {number}"))
        failed = []
        try:
            change(place.folder / OUT)
        except OSError as error:  # written again between two steps of the change
            failed = [f"the change itself failed: {error}"]
        (place.folder / "gate").touch()
        return _judge(place, change.__name__, process.wait(LIMIT_S), failed)


def add_writer(seed: int, number: int) -> Tally:
    """A second process resumes the file, whether or not it may measure at the same time."""
    with trial() as place:
        process = _start(place, random.Random(f"{seed} {number}"))
        code = place.run("run", "--resume", f"{{}}/{OUT}", "--share")
        (place.folder / "gate").touch()
        refused = code == 4 and "is being written by" in place.heard
        wrong = [] if refused else [f"the second ended with {code}"]
        return _judge(place, "second writer", process.wait(LIMIT_S), wrong)


def _start(place: Trial, chance: random.Random) -> subprocess.Popen[bytes]:
    """A run that has announced some of its results."""
    place.environment["TORCHMARK_FAULT_GATE"] = str(place.folder / "gate")
    process, count = place.start(*COMMAND.arguments), chance.randrange(1, len(CASES))
    end = time.monotonic() + LIMIT_S
    while len(MEASURED.findall(place.heard)) < count and time.monotonic() < end:
        time.sleep(0.005)
    return process


def _judge(place: Trial, what: str, code: int, unhandled: list[str]) -> Tally:
    orphans, gone_s = left_behind(place.mark)
    lost, unreadable = faults_of(place, COMMAND)
    unhandled = [*unhandled, *unreadable, *place.complaints()]
    if not unreadable:
        kept = [result.case.text for result in load(place.folder / OUT).results if result.status == "ok"]
        unhandled += [] if code == 0 and kept == [*CASES] else [f"exit code {code} with {len(kept)} results"]
    left = [name for name in place.leftovers() if name.startswith("tmp/")]
    notes = tuple(f"{what}: {note}" for note in (*lost, *left, *unhandled))
    return Tally(1, len(lost), 0, orphans, len(left), len(unhandled), gone_s, notes=notes)
