"""The protocol of all studies: many measurements that answer a question, in events that are stored at once."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.efficiency import NONE, Ceilings, with_peak
from torchmark.analyze.verdict import cautions_of, combine_results
from torchmark.errors import UsageError
from torchmark.measure.cases import check_case
from torchmark.measure.process import without_figure
from torchmark.measure.session import Covered, Finished, Options, Revised, SpreadFound, Started
from torchmark.records import Case, Conclusion, Machine, Result, Rigor


class Activity(Struct, frozen=True):
    """What is being measured now, for the line that changes."""

    text: str


class Announcement(Struct, frozen=True):
    """A part is done, and stored. Each study has its own, and its command the words for it."""


class Completed(Struct, frozen=True):  # a process has ended: its own result, and that of its case with it
    process: int
    newest: Result
    result: Result
    side: str = ""  # the run it belongs to, where a study keeps several


Event = Started | Finished | Completed | Revised | Covered | SpreadFound | Activity | Announcement
Listen = Callable[..., None]  # gets a process's messages, and which process that is


class Study(ABC):
    """One study under way. Use it once."""

    sides: ClassVar[tuple[str, ...]] = ("",)  # the runs it keeps
    rigor: Rigor = "quick"
    open_ended: ClassVar[bool] = False  # more cases may follow than are known beforehand

    def __init__(self, options: Options, machine: Machine | None = None, cases: Iterable[Case] = ()) -> None:
        self.options, self.planned = options, tuple(case.text for case in cases)
        if machine:
            self.machine = machine
        self.listen: Listen = lambda *_: None
        self.log: Path | None = None  # what processes print goes here
        self.began = time.monotonic()
        self.under_way: Case | None = None  # a case that has no result yet

    @property
    def left_s(self) -> float:
        return self.began + self.options.budget_s - time.monotonic()

    def place(self, _side: str) -> tuple[Machine, tuple[str, ...]]:
        """The machine and planned cases of a side; with several sides, after its first result."""
        return self.machine, self.planned

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """Measure. An event is stored before the next one is asked for."""

    def unfinished(self) -> Iterable[Event]:
        """What is left to be stored after an interrupt."""
        reason = "the run was stopped while it was being measured"
        return (Revised(without_figure(self.under_way, "interrupted", reason)),) if self.under_way else ()

    def conclusion(self, _side: str = "") -> Conclusion | None:
        """What is known by now; None where that is nothing."""
        return None


def check_single(case: Case) -> Case:
    """Raise UsageError for what a study of one case does not measure."""
    if case.workers > 1:
        raise UsageError(f"{case.text} takes {case.workers} workers", "Leave +workers out: only one is measured here")
    if case.protocol != "steady":
        raise UsageError(f"{case.text} is timed as published", "Leave +as-published out, or use `torchmark replicate`")
    return check_case(case)


def summed_up(results: Sequence[Result], ceilings: Ceilings = NONE, strict: bool = False) -> Result:
    """All processes of a case as one result, compared with the ceilings, with its cautions."""
    result = with_peak(combine_results(results, strict), ceilings)
    return replace(result, cautions=cautions_of(result))
