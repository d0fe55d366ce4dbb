"""What pages are made of: tables that can be sorted and filtered, and charts with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from torchmark.report.page import fill

if TYPE_CHECKING:
    from markupsafe import Markup


class Column(Struct, frozen=True):
    """A heading. Columns of numbers are aligned to the right, and sorted with the largest first."""

    title: str
    number: bool = False
    minor: bool = False  # left out where the screen is narrow
    wraps: bool = False  # a long unit may go to a second line
    about: str = ""  # what the figure is, for those who wonder

    @property
    def classes(self) -> str:
        return " ".join(name for name in ("number", "minor", "wraps") if getattr(self, name))


class Cell(Struct, frozen=True):
    """What stands in a table, and what it is sorted by where that is not its text."""

    text: str
    sort: float | str | None = None
    kind: str = ""  # code, good, mixed, bad, quiet
    note: str = ""  # smaller, below the text


class Card(Struct, frozen=True):
    """A chart, or a single figure, with what is said about it."""

    title: str
    drawing: Markup | None = None
    figure: str = ""  # number, space, unit
    margin: str = ""
    note: str = ""
    grade: Cell | None = None


def data_table(anchor: str, caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Markup:
    """A table with a filter and headings that sort. `anchor` is chosen by us and differs within a page."""
    return fill("table.html.jinja", anchor=anchor, caption=caption, columns=columns, rows=rows)


def card_grid(anchor: str, cards: Sequence[Card], filtered: bool = False) -> Markup:
    """A grid of charts, with a filter where there are many."""
    return fill("cards.html.jinja", anchor=anchor, cards=cards, filtered=filtered)
