"""How the words look that say how far a figure can be relied on: one table for terminal, page and card."""

from __future__ import annotations

from msgspec import Struct

from torchmark.analyze.grades import grade_of
from torchmark.records import Result
from torchmark.report.units import NOTHING


class Look(Struct, frozen=True):
    """The same colour in a terminal, as a class of the style sheet, and in a picture; `rank` sorts, best first."""

    rank: int
    style: str
    kind: str
    color: str


_GOOD = Look(0, "green", "good", "#1a6f3c")
_MIXED = Look(1, "yellow", "mixed", "#8a5a00")
_BAD = Look(2, "red", "bad", "#b3261e")
_QUIET = Look(4, "dim", "quiet", "#5a616b")
_FAILED = Look(3, "red", "bad", "#b3261e")
_LOOKS = {"good": _GOOD, "fair": _MIXED, "poor": _BAD, "": _QUIET}


def look_of(word: str) -> Look:
    """Of a grade, with or without its cause; anything else is the status of a failure."""
    return _LOOKS.get(word.partition(":")[0], _FAILED)


def grade_text(result: Result) -> str:
    """good, fair: contended; the status where there is no figure; nothing for a published figure."""
    if result.status != "ok" or result.estimate is None:
        return result.status
    grade = grade_of(result)
    return grade.text if grade else ""


def grade_cell(result: Result) -> str:
    """The same for a table, where nothing is a dash."""
    return grade_text(result) or NOTHING
