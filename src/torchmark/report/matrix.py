"""Several runs against the first, as a matrix that is laid out the way it fits best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from rich.console import RenderableType
from rich.text import Text

from torchmark.analyze.comparison import Family, Pair
from torchmark.records import Run
from torchmark.report import figures, ratios, units
from torchmark.report.console import GAP, fold_case, section
from torchmark.report.names import Names, shared_place
from torchmark.report.rows import VERDICT_STYLES, heading, lines, machine_of, run_heading

_CELL = 10
_WIDEST_CELL = 22
_NAME = 26

Cells = list[list[Text]]


def matrix_parts(sheets: Sequence[ratios.Sheet], runs: Sequence[Run], width: int) -> list[RenderableType]:
    """Who is who, the matrix, how to read it, and what is not the same."""
    cells = _matrix(sheets, runs)
    names = [f"{ratios.letter(index):2} {run.header.label or run.header.id}" for index, run in enumerate(runs)]
    if 1 < len(cells) < len(cells[0]):  # more runs than cases: runs go down, with their names
        cells = [list(column) for column in zip(*cells, strict=True)]
        cells = [cells[0], *([Text(name), *row[1:]] for name, row in zip(names, cells[1:], strict=True))]
        parts: list[RenderableType] = [run_heading(runs[0])]
    else:
        width_of_names = max(map(len, names))
        parts = [
            lines([[Text(name), Text(machine_of(run), style="dim")]], [width_of_names, None], (0, 1))
            for name, run in zip(names, runs, strict=True)
        ]
    if len(cells) == 1:
        return [*parts, Text("\nNothing could be compared."), *_left_out(sheets)]
    note = ratios.footnote([sheet.comparison for sheet in sheets], "how many times as fast as A", shown=False)
    published = any(pair.assumed is not None for sheet in sheets for pair in sheet.comparison.pairs)
    marks = "  ".join(f"{mark} {word}" for word, mark in ratios.MARKS.items() if published or word != "similar")
    parts += [*_blocks(cells, width), Text(f"\n{note}\n{marks}", style="dim")]
    return [*parts, *_differences(sheets), *_left_out(sheets)]


def _matrix(sheets: Sequence[ratios.Sheet], runs: Sequence[Run]) -> Cells:
    """A heading row, then a row for each case of A that has a partner somewhere: its own time, then the speeds."""
    by_case = [{pair.case: pair for pair in sheet.comparison.pairs} for sheet in sheets]
    known = [result for result in runs[0].results if any(result.case.text in found for found in by_case)]
    names = Names(shared_place(known))
    rows = [[Text("case"), *(Text(ratios.letter(index)) for index in range(len(runs)))]]
    for result in known:
        time = figures.step_time(result.estimate) if result.estimate else units.NOTHING
        speeds = [
            _cell(found.get(result.case.text), sheet.letters) for found, sheet in zip(by_case, sheets, strict=True)
        ]
        rows.append([Text(names.of(result)), Text(time), *speeds])
    return rows + _means(sheets)


def _means(sheets: Sequence[ratios.Sheet]) -> Cells:
    """A row for each geometric mean that stands for more than one case somewhere."""
    found = [{mean.name: mean for _, mean in ratios.means(sheet.comparison)} for sheet in sheets]
    names = sorted(dict.fromkeys(name for means in found for name in means), key=lambda name: name == "all workloads")
    return [[Text(f"mean of {name}"), Text(""), *(_cell(means.get(name)) for means in found)] for name in names]


def _cell(row: Pair | Family | None, letters: Mapping[str, str] | None = None) -> Text:
    if row is None:
        return Text(units.NOTHING)
    mark = ratios.MARKS[row.verdict] if isinstance(row, Pair) or row.low is not None else " "
    marks = ratios.flaw_marks(row, letters or {})
    return Text(f"{ratios.speed(row)} {mark}{marks}", style=VERDICT_STYLES[row.verdict])


def _blocks(cells: Cells, width: int) -> list[RenderableType]:
    """As many columns at a time as there is room for; the first one stands before every block."""
    columns = len(cells[0]) - 1
    least = max(_CELL, *(len(cell) for row in cells[1:] for cell in row[1:]))
    name_width = min(max(len(row[0]) for row in cells), max(_NAME, width - columns * (least + GAP)))
    count = min(max(1, (width - name_width) // (least + GAP)), columns)
    longest = max(len(title) for title in cells[0][1:])
    cell_width = max(least, min(longest, _WIDEST_CELL, (width - name_width) // count - GAP))
    parts: list[RenderableType] = []
    for start in range(1, len(cells[0]), count):
        titles, *rows = [[row[0], *row[start : start + count]] for row in cells]
        widths = [name_width, *[cell_width] * (len(titles) - 1)]
        titles = [Text(_fold(title.plain, cell_width)) for title in titles]
        rows = [[Text(_fold(name.plain, name_width)), *others] for name, *others in rows]
        parts += [Text(""), *heading(titles, widths), lines(rows, widths)]
    return parts


def _fold(name: str, width: int) -> str:
    """A run's name is broken between words, a case where its parts begin."""
    return fill(name, width, subsequent_indent="   ") if " " in name else fold_case(name, width)


def _differences(sheets: Sequence[ratios.Sheet]) -> list[RenderableType]:
    everywhere = [text for text in sheets[0].shared if all(text in sheet.shared for sheet in sheets)]
    rows = [("all", ", ".join(everywhere))] if everywhere else []
    for sheet in sheets:
        special = [text for text in sheet.shared if text not in everywhere]
        special += [
            f"{ratios.case_name(pair.a, sheet)}: {', '.join(own)}"
            for pair in sheet.comparison.pairs
            if (own := ratios.own_remarks(pair, sheet))
        ]
        rows += [(sheet.b.title, "; ".join(special))] if special else []
    return section("What differs from A", rows)


def _left_out(sheets: Sequence[ratios.Sheet]) -> list[RenderableType]:
    """What is missing is told once for all runs that lack it; why two results may not be compared, each by itself."""
    missing: dict[str, list[str]] = {}
    refused: dict[tuple[str, str], dict[str, None]] = {}
    for sheet in sheets:
        for each in sheet.comparison.unpaired:
            known = each.a or each.b
            name = sheet.names.of(known) if known else each.case
            if each.kind == "missing":
                missing.setdefault(name, []).append(sheet.b.title if each.a else "A")
            else:
                refused.setdefault((each.kind, each.reason), {})[name] = None
    alike: dict[str, list[str]] = {}
    for name, letters in missing.items():
        alike.setdefault(", ".join(dict.fromkeys(letters)), []).append(name)
    rows = [("missing", f"{ratios.some(names)}\nnot in {letters}") for letters, names in alike.items()]
    rows += [(kind, f"{ratios.some(list(names))}\n{reason}") for (kind, reason), names in refused.items()]
    return section("Not compared", rows)
