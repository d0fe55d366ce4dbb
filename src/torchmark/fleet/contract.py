"""What an engine has to do: know nodes, take jobs, tell how they stand, and end them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, get_args

from msgspec import Struct

from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED

# `unavailable`: the node takes no jobs. `lost`: the job is gone, and nobody can tell how it ended.
State = Literal[
    "waiting", "running", "done", "cancelled", "killed", "time-limit", "node-failed", "unavailable", "failed", "lost"
]
STATES: tuple[str, ...] = get_args(State)
UNDER_WAY = frozenset(("waiting", "running"))


class Node(Struct, frozen=True):
    """One machine of a cluster, as its scheduler describes it."""

    name: str
    about: str  # equal for nodes of one kind, and fit to be read
    cores: int
    features: tuple[str, ...] = ()
    idle: bool = True
    obstacle: str | None = None  # why no job can run there now


class Request(Struct, frozen=True):
    """Which nodes are wanted."""

    partition: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    count: int | None = None


class Job(Struct, frozen=True):
    """One script to be run on one node, or at the same time on several, that nobody else uses meanwhile."""

    name: str
    script: Path
    log: Path
    nodes: tuple[str, ...]
    time_s: float | None = None
    options: tuple[str, ...] = ()  # for the scheduler, as typed


class Submitted(Struct, frozen=True):
    """A job that an engine has taken, as the shared folder tells: what it says is checked before it is acted upon."""

    task: str
    number: str  # the engine's name for the job
    script: Path


class Fate(Struct, frozen=True):
    """How a job stands, and why. Words of schedulers and logs, which may name nodes and paths, come after a colon."""

    state: State
    reason: str = ""


def shareable(reason: str) -> str:
    """The part of a reason that names no node, user or path."""
    return reason.partition(": ")[0]


def fate_of(code: int) -> Fate:
    """What the exit code of a job says; shells tell a signal as 128 and more, Python as less than nothing."""
    if code < 0 or code > 128:
        return Fate("killed", f"ended by signal {-code if code < 0 else code - 128}")
    if code in (EXIT_FINE, EXIT_NOTHING_MEASURED):
        return Fate("done", "no case succeeded" if code else "")
    return Fate("failed", f"exit code {code}")


class Engine(ABC):
    """Whoever runs the jobs. Everything that can go wrong is told with cause and cure."""

    name: ClassVar[str]
    team_options: tuple[str, ...] = ()  # what `torchmark run` needs to be told where nodes work together

    @abstractmethod
    def nodes(self, request: Request) -> tuple[Node, ...]:
        """All nodes that fit, those that take no jobs included; an error where none does."""

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Hand a job over; the answer names it from now on."""

    @abstractmethod
    def fates(self, jobs: Sequence[Submitted]) -> dict[str, Fate]:
        """How jobs stand, by the names of their tasks; those that the engine does not know are left out."""

    @abstractmethod
    def cancel(self, jobs: Sequence[Submitted]) -> None:
        """End jobs that prove to be this user's and of these tasks; those that have ended already are no mistake."""

    @abstractmethod
    def try_out(self, script: str, node: str, options: tuple[str, ...]) -> str:
        """Start a script as one small task on a node; `exit_code` tells how it ends."""

    @abstractmethod
    def exit_code(self, job: str) -> int | None:
        """What a script that is tried out has ended with; None while it goes on."""
