"""What runs the jobs of a fleet: nodes, jobs and how they ended, and what an engine such as Slurm has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct

from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED

# `unavailable`: the node takes no jobs. `lost`: the job is gone, and how it ended is unknown.
State = Literal[
    "waiting", "running", "done", "cancelled", "killed", "time-limit", "node-failed", "unavailable", "failed", "lost"
]
UNDER_WAY = frozenset(("waiting", "running"))


class JobOutcome(Struct, frozen=True):
    """The state of a job, and the reason. `detail` comes from schedulers and logs, and may name nodes and paths: it is
    shown to this user alone."""

    state: State
    reason: str = ""
    detail: str = ""


class Node(Struct, frozen=True):
    """One machine of a cluster, as its scheduler describes it."""

    name: str
    about: str  # equal for nodes of one kind, and readable
    cores: int
    features: tuple[str, ...] = ()
    idle: bool = True
    obstacle: JobOutcome | None = None  # the outcome of any job there, if the node takes none


class NodeRequest(Struct, frozen=True):
    """Which nodes are wanted."""

    partition: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    count: int | None = None


class Job(Struct, frozen=True):
    """One script to run on one node, or on several at the same time, without other users of these nodes."""

    name: str
    script: Path
    log: Path
    nodes: tuple[str, ...]
    time_s: float | None = None
    options: tuple[str, ...] = ()  # for the scheduler, as typed


class Submitted(Struct, frozen=True):
    """A job that an engine has accepted, according to the shared folder: it is checked before it is acted upon."""

    task: str
    number: str  # the engine's name for the job
    script: Path


def outcome_of(code: int) -> JobOutcome:
    """The outcome for an exit code; shells report a signal as 128 and more, Python as a negative number."""
    if code < 0 or code > 128:
        return JobOutcome("killed", f"ended by signal {-code if code < 0 else code - 128}")
    if code in (EXIT_FINE, EXIT_NOTHING_MEASURED):
        return JobOutcome("done", "no case succeeded" if code else "")
    return JobOutcome("failed", f"exit code {code}")


class Engine(ABC):
    """Runs jobs. Every failure is an error with cause and fix."""

    name: ClassVar[str]
    team_options: tuple[str, ...] = ()  # options for `torchmark run` if nodes work together

    @abstractmethod
    def nodes(self, request: NodeRequest) -> tuple[Node, ...]:
        """All nodes that match, including those that take no jobs; an error if none does."""

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Submit a job; returns the engine's name for it."""

    @abstractmethod
    def outcomes(self, jobs: Sequence[Submitted]) -> dict[str, JobOutcome]:
        """The states of jobs by the names of their tasks, without those that the engine does not know."""

    @abstractmethod
    def cancel(self, jobs: Sequence[Submitted]) -> None:
        """End jobs that are provably this user's and of these tasks; some may have ended already."""

    @abstractmethod
    def try_out(self, script: str, node: str, options: tuple[str, ...]) -> str:
        """Start a script as one small task on a node; `exit_code` returns how it ends."""

    @abstractmethod
    def exit_code(self, job: str) -> int | None:
        """The exit code of a script that is tried out; None while it runs."""
