"""What tables of comparisons are made of: lines of cells that line up whatever stands between them, and headings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchmark.records import Run
from torchmark.report.console import GAP
from torchmark.report.headings import machine_line, title
from torchmark.report.names import shared_place

VERDICT_STYLES = {"faster": "green", "slower": "red", "same": "dim", "similar": "dim", "unsure": "yellow"}


def lines(rows: Sequence[Sequence[Text]], widths: Sequence[int | None], left: Sequence[int] = (0,)) -> Table:
    """Cells side by side; the columns in `left` are words, all others figures."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for index, width in enumerate(widths):
        table.add_column(width=width, justify="left" if index in left else "right", no_wrap=width is not None)
    for row in rows:
        table.add_row(*row)
    return table


def heading(titles: Sequence[Text], widths: Sequence[int], left: Sequence[int] = (0,)) -> list[RenderableType]:
    """The titles of the columns over a rule as wide as all of them."""
    faint = [Text(title.plain, style="dim") for title in titles]
    rule = Text("─" * (sum(widths) + GAP * (len(widths) - 1)), style="dim")
    return [lines([faint], widths, left), rule]


def run_heading(run: Run) -> Text:
    """Which run it is, and below that on what machine it was measured."""
    name, *rest = title(run)
    first = Text(" · ").join([Text(name, style="bold"), *map(Text, rest)])
    about = machine_of(run)
    return Text("\n").join([first, *([Text(about, style="dim")] if about else [])])


def machine_of(run: Run) -> str:
    """The machine of a run, with the device that most of its cases used."""
    machine = run.header.machine
    device = (shared_place(run.results) or "").partition("/")[0]
    own = any(info.name == device and info.model != machine.cpu for info in machine.devices)
    return machine_line(machine, device if own else None)
