"""What all reports for a terminal are drawn with."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from torchmark.report.text import Drawn, printable

FAINT, MIXED = "dim", "yellow"
GAP = 2  # between two columns of a table; the box itself puts one space there


class Harmless:
    """Anything that rich draws, with the text cleaned before colours are added: an escape sequence is ours, or gone."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._part, options):
            yield Segment(printable(text), style, control)


def draw(parts: Sequence[RenderableType], width: int, color: bool) -> Drawn:
    """Rich's drawing as a string that depends on nothing but its arguments."""
    console = Console(
        file=io.StringIO(),
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as capture:
        for part in parts:
            console.print(Harmless(part))
    return Drawn("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def quiet_table() -> Table:
    """A table with a line below its heads and none elsewhere."""
    padding = (0, GAP - 1, 0, 0)
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, header_style=FAINT)


def section(title: str, rows: Sequence[tuple[str, str]]) -> list[RenderableType]:
    """A heading and its entries: the kind in a narrow column, what there is to say beside it."""
    if not rows:
        return []
    grid = Table.grid(padding=(0, 2, 0, 0))
    if any(kind for kind, _ in rows):
        grid.add_column(style=MIXED, no_wrap=True)
    grid.add_column()
    for kind, text in rows:
        first, _, rest = text.partition("\n")
        body = Text(first)
        if rest:
            body.append(f"\n{rest}", style=FAINT)
        grid.add_row(*([Text(kind)] if len(grid.columns) > 1 else []), body)
    return [Text(f"\n{title}", style="bold"), Padding(grid, (0, 0, 0, 2))]


def fold_case(text: str, width: int) -> str:
    """A case on as many lines as it needs, broken where a person would break it."""
    if len(text) <= width:
        return text
    width -= 2  # for the indent of the lines after the first
    lines: list[str] = [""]
    for piece in re.findall(r"[:@+]?[^:@+,]*,?", text):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        while len(lines[-1]) + len(piece) > width:
            room = width - len(lines[-1])
            lines[-1] += piece[:room]
            piece = piece[room:]
            lines.append("")
        lines[-1] += piece
    return "\n  ".join(line for line in lines if line)
