"""What a fleet is going to measure and where, kept in the folder that all its nodes share.

Run files lie at the top of that folder, which makes it an ordinary folder of runs. Everything about jobs is below
`jobs`: only there are nodes called by their names.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from torchmark.errors import StoreError, UsageError
from torchmark.fleet.contract import UNDER_WAY, Fate, Submitted
from torchmark.fleet.files import decode, distrust, read, sweep, write

PLAN_VERSION = 1
PLAN_BYTES = 32 << 20  # 4,096 tasks with all their cases by name
_ASIDE = ".jsonl.aside-"
_MODE = 0o755  # whatever the umask allows: who may write here may run commands as this user

# What a plan says becomes names of files and arguments of commands.
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]*\Z", max_length=64)]
Word = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", max_length=16384)]


class Terms(Struct, frozen=True):
    """How jobs are handed over, and what they find on their nodes."""

    engine: Literal["slurm", "local"] = "slurm"
    partition: Word | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    options: tuple[Word, ...] = ()  # for sbatch, as typed
    python: Word = ""
    setup: tuple[Word, ...] = ()  # lines of shell before anything else

    @property
    def scheduling(self) -> tuple[str, ...]:
        """What the scheduler is told about every job."""
        return (*([f"--partition={self.partition}"] if self.partition else []), *self.options)


class Task(Struct, frozen=True):
    """One run of torchmark to be had: on one node, or on several that work on the same cases together."""

    name: Name  # of its files, and without names of nodes
    kind: str
    nodes: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=4096)]
    arguments: tuple[Word, ...]  # for `torchmark run`
    label: Word
    about: str = ""  # the kind in words


class Fleet(Struct, frozen=True):
    """All tasks of one `torchmark fleet run`."""

    created: str
    terms: Terms
    tasks: tuple[Task, ...]
    version: int = PLAN_VERSION


class Order(Struct, frozen=True):
    """What a node is to do, as it finds it in the shared folder."""

    arguments: tuple[Word, ...]
    resuming: tuple[Word, ...]  # what may be said again where a run goes on
    run_file: Word
    nodes: int = 1


class FleetFolder:
    """The shared folder of one fleet."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 -- links stay: nodes may know the folder by them only
        self._jobs = self.path / "jobs"

    def run_file(self, task: Task) -> Path:
        return self.path / f"{task.name}.jsonl"

    def file(self, task: Task, ending: str) -> Path:
        """One of the small files about a task: its order, script, log, job, fate, end, meeting."""
        return self._jobs / f"{task.name}.{ending}"

    @property
    def jobs(self) -> Path:
        return self._jobs

    def prepare(self) -> None:
        """Make the folder for a new fleet."""
        try:
            held = self._plan.exists()
            for folder in (self.path, self._jobs):
                folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use {self.path}: {error.strerror}", "Name another with --folder") from error
        if held:
            raise UsageError(
                f"{self.path} holds a fleet already",
                f"Go on with it: torchmark fleet run --resume {self.path}. Or name another folder",
            )
        sweep(self._jobs)

    def kept_aside(self) -> set[str]:
        """The names of the tasks of which an earlier run file was moved aside."""
        with contextlib.suppress(OSError):
            return {path.name.partition(_ASIDE)[0] for path in self.path.glob(f"*{_ASIDE}*")}
        return set()

    def distrust(self) -> str | None:
        """Why other users may decide what runs from here, if so."""
        # Links lead to the folder; inside it, only other users would put one.
        places = (Path(os.path.realpath(self.path)), self._jobs, self._plan)
        return next((why for place in places if (why := distrust(place))), None)

    def keep(self, fleet: Fleet) -> None:
        """The plan, new or changed."""
        write(self._plan, msgspec.json.format(msgspec.json.encode(fleet), indent=1))

    def load(self) -> Fleet:
        content = read(self._plan, PLAN_BYTES)
        if content is None:
            raise UsageError(
                f"there is no fleet in {self.path}", "Name the folder that was given to `torchmark fleet run`"
            )
        fleet = decode(content, Fleet, self._plan)
        if fleet.version > PLAN_VERSION:
            raise StoreError(f"{self.path} was made by a newer torchmark", "Use that one")
        if len({task.name for task in fleet.tasks}) < len(fleet.tasks):
            raise StoreError(f"{self._plan} has two tasks of one name", "Start the fleet anew in another folder")
        sweep(self._jobs)
        return fleet

    def job(self, task: Task) -> Submitted | None:
        """The latest job of a task, under the name that its file has for it, which may be anything."""
        content = self._content(task, "job").decode(errors="replace").strip()
        return Submitted(task.name, content, self.file(task, "sh")) if content else None

    def fate(self, task: Task) -> Fate | None:
        """How the latest job of a task ended, if somebody has seen it."""
        with contextlib.suppress(StoreError):
            fate = decode(self._content(task, "fate"), Fate, self.file(task, "fate"))
            return None if fate.state in UNDER_WAY else fate
        return None

    def keep_fate(self, task: Task, fate: Fate) -> None:
        """The engine will forget it."""
        write(self.file(task, "fate"), msgspec.json.encode(fate))

    def end_code(self, task: Task) -> int | None:
        """What the task's run ended with, as its node wrote down."""
        content = self._content(task, "end")
        return int(content) if re.fullmatch(rb"-?[0-9]{1,3}\s*", content) else None

    def forget(self, task: Task) -> None:
        """Put away what an earlier job of the task left behind, except for what it measured and printed."""
        log = self.file(task, "log")
        if os.path.lexists(log) and (log.is_symlink() or not log.is_file()):
            raise StoreError(f"cannot write {log}: it is not a file", "Remove it")
        endings = ("job", "fate", "end", "meeting", "begun")
        try:
            for path in (*(self.file(task, ending) for ending in endings), *self._jobs.glob(f".{task.name}.*")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {error.filename}: {error.strerror}", "Remove it by hand") from error

    def _content(self, task: Task, ending: str) -> bytes:
        """One of the small files; nothing where it is missing or cannot be read."""
        with contextlib.suppress(StoreError):
            return read(self.file(task, ending)) or b""
        return b""

    @property
    def _plan(self) -> Path:
        return self._jobs / "plan.json"
