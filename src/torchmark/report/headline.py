"""The headline in words, for a terminal, Markdown and pages: which cells it has, and what is said below them."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.analyze.headline import Area, Block, Headline, Neighbour, times
from torchmark.records import Machine
from torchmark.report import units
from torchmark.report.charts.series import plain_model
from torchmark.report.console import FAINT
from torchmark.report.headings import machine_line
from torchmark.report.looks import look_of

NONE = "—"
COLUMNS = ("", "this machine", "±", "grade", "next faster", "next slower")
SIDES = ("next faster", "next slower")
# What goes first where the terminal is narrow; the areas, their figures and ± stay.
_DROPPED = ("grade", "next slower", "next faster")
_GAP, _INDENT = 2, 2


class Row(Struct, frozen=True):
    """An area as cells in the order of COLUMNS."""

    cells: tuple[str, ...]
    area: Area


def rows(headline: Headline, block: Block, sides: Sequence[str] = SIDES) -> list[Row]:
    """The areas of a block."""
    marks = footnotes(headline, sides)
    return [
        Row(
            (
                area.name,
                figure(area),
                margin(area),
                area.grade.text,
                *(neighbour(other, marks) for other in _both(area)),
            ),
            area,
        )
        for area in block.areas
    ]


def footnotes(headline: Headline, sides: Sequence[str] = SIDES) -> dict[str, str]:
    """The known flaws of the published figures in these columns, each with its mark."""
    areas = [area for block in headline.blocks for area in block.areas]
    pairs = [pair for area in areas for pair in zip(SIDES, _both(area), strict=True)]
    flaws = dict.fromkeys(flaw for side, other in pairs if other and side in sides for flaw in other.flaws)
    return {flaw: f"[{letter}]" for flaw, letter in zip(flaws, ascii_lowercase, strict=False)}


def figure(area: Area) -> str:
    """14.8 image/s, 1.91 ms, 65.0 s MNIST"""
    if area.figure == "rate":
        return units.rate(area.value, area.unit)
    name = f" {area.unit}" if area.figure == "job" else ""
    return units.duration(area.value) + name


def margin(area: Area) -> str:
    """±4.2%; ±? where nothing is known about repeats."""
    return "±?" if area.margin is None else units.relative(area.margin)


def neighbour(other: Neighbour | None, marks: dict[str, str]) -> str:
    """Xeon Gold 2.3×, with the marks of its known flaws"""
    if other is None:
        return NONE
    said = "similar" if other.similar else times(other.ratio)
    return " ".join([other.name, said, *(marks[flaw] for flaw in other.flaws if flaw in marks)])


def about(machine: Machine, block: Block) -> str:
    """AMD EPYC, 2 cores, 24 GiB · torch 2.13.0 · CPU float32"""
    device = "CPU" if block.device == "cpu" else block.device
    return " · ".join(part for part in (plain_model(machine_line(machine, block.device)), f"{device} float32") if part)


def sentences(headline: Headline, block: Block) -> list[tuple[str, str]]:
    """What a block says in words; the last one also how far all of it can be relied on."""
    found = [("In short", block.in_short)] if block.in_short else []
    if block is headline.blocks[-1] and headline.confidence:
        found.append(("Confidence", f"{headline.grade}. {headline.confidence}"))
    return found


def render_headline(headline: Headline, machine: Machine, width: int) -> list[RenderableType]:
    """For a terminal, `width` columns wide."""
    shown = _fitting([row for block in headline.blocks for row in rows(headline, block)], width)
    parts: list[RenderableType] = []
    for block in headline.blocks:
        table = _table(rows(headline, block, shown), shown, width)
        parts += [Text(about(machine, block), style="bold"), Text(""), table, Text("")]
        parts += [Text.assemble((f"{name}: ", "bold"), text) for name, text in sentences(headline, block)]
        parts.append(Text(""))
    notes = [Text(f"{mark} {flaw}", style=FAINT) for flaw, mark in footnotes(headline, shown).items()]
    return [*parts[:-1], *notes, Text(""), *map(Text, _wrapped(headline, width)), Text("")]


def _both(area: Area) -> tuple[Neighbour | None, Neighbour | None]:
    return area.faster, area.slower


def _table(found: Sequence[Row], shown: Sequence[str], width: int) -> Padding:
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for _ in shown:
        grid.add_column(no_wrap=True)
    grid.add_row(*(Text("" if name == "±" else name, style=FAINT) for name in shown))
    for row in found:
        cells = dict(zip(COLUMNS, row.cells, strict=True))
        grid.add_row(*(Text(cells[name], style=_style(name, row.area)) for name in shown))
    return Padding(grid, (0, 0, 0, _INDENT if _width(found, shown) + _INDENT <= width else 0))


def _style(name: str, area: Area) -> str:
    return look_of(area.grade.word).style if name in ("±", "grade") else ""


def _fitting(found: Sequence[Row], width: int) -> list[str]:
    """The columns that fit; nothing is cut."""
    empty = [name for name, *cells in zip(COLUMNS, *(row.cells for row in found), strict=True) if {*cells} == {NONE}]
    shown = [name for name in COLUMNS if name not in empty]
    for name in (each for each in _DROPPED if each in shown):
        if _width(found, shown) > width:
            shown.remove(name)
    return shown


def _width(found: Sequence[Row], shown: Sequence[str]) -> int:
    cells = zip(COLUMNS, *(row.cells for row in found), strict=True)
    widths = {column[0]: max(map(len, column)) for column in cells}
    return sum(widths[name] for name in shown) + _GAP * (len(shown) - 1)


def _wrapped(headline: Headline, width: int) -> list[str]:
    """The next commands, broken between two of them only."""
    lines: list[str] = []
    for each in headline.commands:
        text = f"{each.purpose}: {each.command}"
        if lines and len(f"{lines[-1]} · {text}") <= width:
            lines[-1] += f" · {text}"
        else:
            lines.append(text)
    return lines
