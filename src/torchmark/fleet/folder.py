"""The shared folder of a fleet: run files at its top; below `jobs`, its plan and small files about every job.

Only files below `jobs` name nodes. Other users can leave a pipe, a loop of links or a gigabyte in place of a file, so
files are read with care, and trusted only if no other user can change them.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, StoreError, UsageError
from torchmark.store.files import CHECK, distrust, open_regular, os_errors, sweep, write_whole

PLAN_VERSION = 1
PLAN_BYTES = 32 << 20  # 4,096 tasks with all their cases by name
FILE_BYTES = 64 << 10  # of any other file
Record = TypeVar("Record")
# What a plan says becomes names of files and arguments of commands.
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]*\Z", max_length=64)]
Word = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", max_length=16384)]
# `unavailable`: the node takes no jobs. `lost`: the job is gone, and how it ended is unknown.
State = Literal[
    "waiting", "running", "done", "cancelled", "killed", "time-limit", "node-failed", "unavailable", "failed", "lost"
]
UNDER_WAY = frozenset(("waiting", "running"))


class JobOutcome(Struct, frozen=True):  # `detail` may name nodes and paths: it is shown to this user alone
    state: State
    reason: str = ""
    detail: str = ""  # from schedulers and logs

    @classmethod
    def of_exit(cls, code: int) -> Self:
        """Shells report a signal as 128 and more, Python as a negative number."""
        if code < 0 or code > 128:
            return cls("killed", f"ended by signal {-code if code < 0 else code - 128}")
        if code in (EXIT_FINE, EXIT_NOTHING_MEASURED):
            return cls("done", "no case succeeded" if code else "")
        return cls("failed", f"exit code {code}")


class Node(Struct, frozen=True):
    name: str
    about: str  # equal for nodes of one kind, and readable
    cores: int
    features: tuple[str, ...] = ()
    idle: bool = True
    obstacle: JobOutcome | None = None  # the outcome of any job there, if it takes none


class Submitted(Struct, frozen=True):
    task: str
    number: str  # the engine's name for the job, from the shared folder: not to be trusted
    script: Path


class Terms(Struct, frozen=True):
    engine: Literal["slurm", "local"] = "slurm"
    partition: Word | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    options: tuple[Word, ...] = ()  # for sbatch, as typed
    python: Word = ""
    setup: tuple[Word, ...] = ()  # lines of shell before anything else

    @property
    def scheduling(self) -> tuple[str, ...]:
        return (*([f"--partition={self.partition}"] if self.partition else []), *self.options)


class Task(Struct, frozen=True):  # a run on one node, or on several that work on the same cases together
    name: Name  # of its files; contains no names of nodes
    kind: str
    nodes: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=4096)]
    arguments: tuple[Word, ...]  # for `torchmark run`
    label: Word
    about: str = ""  # the kind in words


class Fleet(Struct, frozen=True):
    created: str
    terms: Terms
    tasks: tuple[Task, ...]
    version: int = PLAN_VERSION


class Order(Struct, frozen=True):
    arguments: tuple[Word, ...]  # for a node
    resuming: tuple[Word, ...]  # to resume a run
    run_file: Word
    nodes: int = 1


class FleetFolder:
    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 -- links stay: nodes may know the folder by them only
        self.jobs = self.path / "jobs"
        self._plan = self.jobs / "plan.json"

    def run_file(self, task: Task) -> Path:
        return self.path / f"{task.name}.jsonl"

    def file(self, task: Task, ending: str) -> Path:
        """A small file: order, script (sh), log, job, outcome (fate), end, meeting, begun."""
        return self.jobs / f"{task.name}.{ending}"

    def prepare(self) -> None:
        with os_errors("use", self.path, "Name another with --folder"):
            if self._plan.exists():
                fix = f"Resume it: torchmark fleet run --resume {self.path}. Or name another folder"
                raise UsageError(f"{self.path} holds a fleet already", fix)
            for folder in (self.path, self.jobs):  # not writable by others, who could then run commands as this user
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        sweep(self.jobs)

    def distrust(self) -> str | None:
        """Why other users can decide what runs from here, if they can."""
        # Links may lead to the folder; inside it, only other users would create one.
        places = (Path(os.path.realpath(self.path)), self.jobs, self._plan)
        return next((why for place in places if (why := distrust(place))), None)

    def keep(self, fleet: Fleet) -> None:
        write(self._plan, msgspec.json.format(msgspec.json.encode(fleet), indent=1))

    def load(self) -> Fleet:
        if (fleet := read_record(self._plan, Fleet)) is None:
            raise UsageError(f"there is no fleet in {self.path}", "Name the folder given to `torchmark fleet run`")
        if fleet.version > PLAN_VERSION:
            raise StoreError(f"{self.path} was made by a newer torchmark", "Use that one")
        if len({task.name for task in fleet.tasks}) < len(fleet.tasks):
            raise StoreError(f"{self._plan} has two tasks of one name", "Start the fleet again in another folder")
        sweep(self.jobs)
        return fleet

    def job(self, task: Task) -> Submitted | None:
        """The latest job; the number in its file may be anything."""
        number = self.content(task, "job").decode(errors="replace").strip()
        return Submitted(task.name, number, self.file(task, "sh")) if number else None

    def outcome(self, task: Task) -> JobOutcome | None:
        with suppress(StoreError):
            outcome = read_record(self.file(task, "fate"), JobOutcome)
            if outcome and outcome.state not in UNDER_WAY:
                reason, colon, detail = outcome.reason.partition(": ")  # earlier versions had both in one field
                return replace(outcome, reason=reason, detail=detail) if colon else outcome
        return None

    def keep_outcome(self, task: Task, outcome: JobOutcome) -> None:
        """Record the end of a job, which the engine will forget."""
        write(self.file(task, "fate"), msgspec.json.encode(outcome))

    def end_code(self, task: Task) -> int | None:
        content = self.content(task, "end")
        return int(content) if re.fullmatch(rb"-?[0-9]{1,3}\s*", content) else None

    def forget(self, task: Task) -> None:
        """Remove the files of an earlier job but its results and log."""
        log = self.file(task, "log")
        if os.path.lexists(log) and (log.is_symlink() or not log.is_file()):
            raise StoreError(f"cannot write {log}: it is not a file", "Remove it")
        files = [self.file(task, ending) for ending in ("job", "fate", "end", "meeting", "begun")]
        for path in (*files, *self.jobs.glob(f".{task.name}.*")):
            with os_errors("remove", path, "Remove it by hand"):
                path.unlink(missing_ok=True)

    def content(self, task: Task, ending: str, tail: bool = False) -> bytes:
        """A small file, or the end of a larger one; empty if it cannot be read."""
        with suppress(StoreError):
            return read(self.file(task, ending), tail=tail) or b""
        return b""


def read(path: Path, most: int = FILE_BYTES, tail: bool = False) -> bytes | None:
    """A regular file of limited size, or None. `tail`: the end of a longer one."""
    with os_errors("read", path, CHECK), suppress(FileNotFoundError), open_regular(path, "Remove it") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most and not tail:
            raise StoreError(f"cannot read {path}: it has more than {most >> 10} KiB", "Remove it")
        file.seek(max(size - most, 0) if tail else 0)
        return file.read(most)
    return None


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """A record from JSON, or None; every fault is a StoreError."""
    content = read(path, PLAN_BYTES)
    try:
        return None if content is None else msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}", "Start the fleet again in another folder") from error


def write(path: Path, content: bytes) -> None:
    """Write a file whole, for this user alone to change."""
    with os_errors("write", path, "Free some space, or check permissions"):
        write_whole(path, [content], mode=0o644)
