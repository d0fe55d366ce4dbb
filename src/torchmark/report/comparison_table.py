"""Comparisons for a terminal: two runs row by row, or several as a matrix against the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from torchmark.analyze.comparison import Comparison, Family
from torchmark.records import Run
from torchmark.report import ratios
from torchmark.report.console import GAP, draw, fold_case, section
from torchmark.report.matrix import matrix_parts
from torchmark.report.rows import VERDICT_STYLES, heading, lines, run_heading

NARROWEST_CASE = 16


def render_comparison_table(comparisons: Sequence[Comparison], runs: Sequence[Run], width: int, color: bool) -> str:
    """The whole report. It fits into `width` columns."""
    sheets = ratios.sheets(comparisons, runs)
    if len(comparisons) == len(runs):
        parts = [part for sheet, run in zip(sheets, runs, strict=True) for part in _inside(sheet, run, width)][:-1]
    elif len(sheets) == 1:
        names = [_name(ratios.letter(index), run) for index, run in enumerate(runs)]
        parts = [*names, *_body(sheets[0], width, "how many times as fast B is as A"), *_left_out(sheets[0])]
    else:
        parts = matrix_parts(sheets, runs, width)
    return draw([*parts, *_ending(comparisons, sheets)], width, color)


def _ending(comparisons: Sequence[Comparison], sheets: Sequence[ratios.Sheet]) -> list[RenderableType]:
    """The footnotes, and what could have been seen at all."""
    flaws = [(f"[{letter}]", cause) for cause, letter in sheets[0].letters.items()] if sheets else []
    said = ratios.resolution(comparisons)
    return [*section("Known flaws of the published figures", flaws), *([Text(f"\n{said}")] if said else [])]


def _inside(sheet: ratios.Sheet, run: Run, width: int) -> list[RenderableType]:
    """Two settings of one run; the baseline is named above the columns, or on every row."""
    what = f"that of the second {sheet.axis} against that of the first"
    if not sheet.shown_axis:
        what = f"how many times as fast {sheet.b.title} is as {sheet.a.title}"
    return [run_heading(run), *_body(sheet, width, what), *_left_out(sheet), Text("")]


def _name(letter: str, run: Run) -> RenderableType:
    return lines([[Text(letter, style="bold"), run_heading(run)]], [1, None], (0, 1))


def _body(sheet: ratios.Sheet, width: int, what: str) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if sheet.shared:
        parts.append(Text(" · ".join(("Every pair", *sheet.shared))))
    if not sheet.comparison.pairs:
        return [*parts, Text("\nNothing could be compared.")]
    note = Text(f"\n{ratios.footnote([sheet.comparison], what)}", style="dim")
    return [*parts, Text(""), *_rows(sheet, width), note, *_means(sheet)]


def _rows(sheet: ratios.Sheet, width: int) -> list[RenderableType]:
    """One line for each pair, and below it what is special about it and what the line has no room for."""
    axis = sheet.shown_axis
    head, *cells = _cells(sheet, axis)
    if axis and _room([head, *cells], width) < NARROWEST_CASE:
        head, *cells = _cells(sheet, None)
    if _room([head, *cells], width) < NARROWEST_CASE:
        head, *cells = ([*row[:-2], row[-1]] for row in (head, *cells))  # without the interval
    widths, room = _widths([head, *cells]), _room([head, *cells], width)
    case_width = min(max(len(row[0]) for row in (head, *cells)), max(NARROWEST_CASE, room))
    columns, words = [case_width, *widths], (0, len(widths))
    parts = heading([Text(cell) for cell in head], columns, words)
    for pair, (name, *figures, verdict) in zip(sheet.comparison.pairs, cells, strict=True):
        answer = Text(verdict, style=VERDICT_STYLES[pair.verdict])
        parts.append(lines([[Text(fold_case(name, case_width)), *map(Text, figures), answer]], columns, words))
        own = [f"{axis} {ratios.axis_values(pair, axis)}"] if axis and axis not in head else []
        own += ratios.own_remarks(pair, sheet)
        parts += [Padding(Text(" · ".join(own), style="dim"), (0, 0, 0, 4))] if own else []
    return parts


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    """Of all columns but the first."""
    return [max(map(len, column)) for column in zip(*(row[1:] for row in cells), strict=True)]


def _room(cells: Sequence[Sequence[str]], width: int) -> int:
    """What is left for the case."""
    widths = _widths(cells)
    return width - sum(widths) - GAP * len(widths)


def _cells(sheet: ratios.Sheet, axis: str | None) -> list[list[str]]:
    """A heading row, then one for each pair."""
    titles = (sheet.a.title, sheet.b.title, "speed", ratios.interval_title(sheet), "verdict")
    head = ["case", *([axis] if axis else []), *titles]
    rows = [
        [
            ratios.case_name(pair.a, sheet),
            *([ratios.axis_values(pair, axis)] if axis else []),
            *ratios.both_figures(pair),
            ratios.speed(pair) + ratios.flaw_marks(pair, sheet.letters),
            ratios.interval(pair),
            pair.verdict,
        ]
        for pair in sheet.comparison.pairs
    ]
    return [head, *rows]


def _means(sheet: ratios.Sheet) -> list[RenderableType]:
    found = ratios.means(sheet.comparison)
    if not found:
        return []
    rows = [[Text(name), Text(ratios.speed(mean)), *_interval_cells(mean)] for name, mean in found]
    return [Text("\nGeometric means", style="bold"), Padding(lines(rows, [None] * 4, (0, 3)), (0, 0, 0, 2))]


def _interval_cells(mean: Family) -> list[Text]:
    if mean.low is None:
        return [Text(""), Text("")]
    return [Text(ratios.interval(mean)), Text(mean.verdict, style=VERDICT_STYLES[mean.verdict])]


def _left_out(sheet: ratios.Sheet) -> list[RenderableType]:
    found = ratios.left_out(sheet.comparison, sheet.names)
    return section("Not compared", [(kind, f"{ratios.some(names)}\n{reason}") for kind, reason, names in found])
