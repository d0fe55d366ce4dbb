"""What a fleet is going to measure and where, kept in the folder that all its nodes share.

Run files lie at the top of that folder, which makes it an ordinary folder of runs. Everything about jobs is below
`jobs`: only there are nodes called by their names.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from torchmark.errors import StoreError, UsageError
from torchmark.fleet.contract import Fate

PLAN_VERSION = 1


class Terms(Struct, frozen=True):
    """How jobs are handed over, and what they find on their nodes."""

    engine: str = "slurm"
    partition: str | None = None
    time_s: float | None = None
    options: tuple[str, ...] = ()  # for sbatch, as typed
    python: str = ""
    setup: tuple[str, ...] = ()  # lines of shell before anything else

    @property
    def scheduling(self) -> tuple[str, ...]:
        """What the scheduler is told about every job."""
        return (*([f"--partition={self.partition}"] if self.partition else []), *self.options)


class Task(Struct, frozen=True):
    """One run of torchmark to be had: on one node, or on several that work on the same cases together."""

    name: str  # of its files, and without names of nodes
    kind: str
    nodes: tuple[str, ...]
    arguments: tuple[str, ...]  # for `torchmark run`
    label: str
    about: str = ""  # the kind in words


class Fleet(Struct, frozen=True):
    """All tasks of one `torchmark fleet run`."""

    created: str
    terms: Terms
    tasks: tuple[Task, ...]
    version: int = PLAN_VERSION


class Order(Struct, frozen=True):
    """What a node is to do, as it finds it in the shared folder."""

    arguments: tuple[str, ...]
    resuming: tuple[str, ...]  # what may be said again where a run goes on
    run_file: str
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
        if self._plan.exists():
            raise UsageError(
                f"{self.path} holds a fleet already",
                f"Go on with it: torchmark fleet run --resume {self.path}. Or name another folder",
            )
        try:
            self._jobs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use {self.path}: {error.strerror}", "Name another with --folder") from error

    def keep(self, fleet: Fleet) -> None:
        """The plan, new or changed."""
        write(self._plan, msgspec.json.format(msgspec.json.encode(fleet), indent=1))

    def load(self) -> Fleet:
        try:
            fleet = msgspec.json.decode(self._plan.read_bytes(), type=Fleet)
        except FileNotFoundError as error:
            raise UsageError(
                f"there is no fleet in {self.path}", "Name the folder that was given to `torchmark fleet run`"
            ) from error
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot read {self._plan}: {error}", "Start the fleet anew in another folder") from error
        if fleet.version > PLAN_VERSION:
            raise StoreError(f"{self.path} was made by a newer torchmark", "Use that one")
        return fleet

    def job(self, task: Task) -> str | None:
        """The engine's name for the latest job of a task."""
        with contextlib.suppress(OSError):
            return self.file(task, "job").read_text().strip() or None
        return None

    def fate(self, task: Task) -> Fate | None:
        """How the latest job of a task ended, if somebody has seen it."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self.file(task, "fate").read_bytes(), type=Fate)
        return None

    def keep_fate(self, task: Task, fate: Fate) -> None:
        """The engine will forget it."""
        write(self.file(task, "fate"), msgspec.json.encode(fate))

    def end_code(self, task: Task) -> int | None:
        """What the task's run ended with, as its node wrote down."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.file(task, "end").read_text())
        return None

    def forget(self, task: Task) -> None:
        """Put away what an earlier job of the task left behind, except for what it measured and printed."""
        for ending in ("job", "fate", "end", "meeting", "begun"):
            self.file(task, ending).unlink(missing_ok=True)

    @property
    def _plan(self) -> Path:
        return self._jobs / "plan.json"


def write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever reads it meanwhile."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}", "Free some space, or check permissions") from error
