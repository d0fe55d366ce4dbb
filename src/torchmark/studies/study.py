"""The protocol of all studies: a question that takes many measurements, answered in events that are stored at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol

from msgspec import Struct

from torchmark.measure.messages import Message
from torchmark.measure.session import Covered, Finished, Revised, SpreadFound, Started
from torchmark.records import Case, Conclusion, Machine, Result, Rigor


class Activity(Struct, frozen=True):
    """What is being measured now, for the line that changes."""

    text: str


class Announcement(Struct, frozen=True):
    """A part is done, and stored by the events before. Each study has its own, and its command the words for it."""


class Completed(Struct, frozen=True):
    """A process has ended, to be stored in one piece: by itself, and the result of its case with it."""

    process: int
    newest: Result
    result: Result
    side: str = ""  # the run it belongs to, where a study keeps several


Event = Started | Finished | Completed | Revised | Covered | SpreadFound | Activity | Announcement


class Options(Protocol):
    """The options that every study has."""

    @property
    def budget_s(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def command(self) -> str:
        """The command line that repeats the study. It never holds a path, nor anything from the environment."""


class Listen(Protocol):
    """Hears what a process says, and which process that is where there are several."""

    def __call__(self, message: Message, who: str = "") -> None: ...


class Study(ABC):
    """One study under way. Use it once."""

    sides: ClassVar[tuple[str, ...]] = ("",)  # the runs it keeps
    rigor: Rigor = "quick"
    open_ended: ClassVar[bool] = False  # more cases may follow than are known beforehand

    def __init__(self, options: Options, machine: Machine | None = None, cases: Iterable[Case] = ()) -> None:
        self.options, self.planned = options, tuple(case.text for case in cases)
        if machine:
            self.machine = machine
        self.listen: Listen = lambda _, __="": None
        self.log: Path | None = None  # what processes print goes here

    def place(self, side: str) -> tuple[Machine, tuple[str, ...]]:
        """Where a side is measured, and the cases known beforehand; with several sides, after its first result."""
        del side
        return self.machine, self.planned

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """Measure. An event is stored before the next one is asked for."""

    def unfinished(self) -> Iterable[Event]:
        """What is left to be stored after an interrupt."""
        return ()

    def conclusion(self, side: str = "") -> Conclusion | None:
        """What is known by now; None where that is nothing."""
        del side
        return None
