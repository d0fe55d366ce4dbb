"""Published tables with this machine beside them, as text: in the publication's own shape, unit and way of writing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.analyze.bias import Bias
from torchmark.analyze.sheets import Own, Replicated, Row, Sheet
from torchmark.errors import UnknownName
from torchmark.records import NO_ROOM, Run
from torchmark.report import FORMATS, csv, json, markdown, units
from torchmark.report.console import draw, fold_case, quiet_table
from torchmark.report.headings import machine_line, moment
from torchmark.report.text import clean_run, clean_values

Line = dict[str, str | float | None]

EXTRAPOLATED = (
    "~ is extrapolated: what happens once and the first steps as they were, all others by the later steps. "
    "± is the 95% interval that follows from these."
)
MORE_TIME = "What would take too long: more time with --budget, fewer steps with --scale."
_NARROWEST = 10  # columns that a cell keeps, however narrow the terminal
MOST_NAMED = 2  # rows that a note names
_FAINT, _OWN = "dim", "bold"
_CSV = (
    "publication", "table", "row", "machine", "column", "printed", "published", "unit", "case", "device", "status",
    "here", "low", "high", "extrapolated", "steady", "reason",
)  # fmt: skip


def render_replicated(
    run: Run,
    replicated: Sequence[Replicated],
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
) -> str:
    """The tables in one of the formats that every command knows."""
    run = clean_run(run)
    replicated = msgspec.convert(clean_values(msgspec.to_builtins(replicated)), list[Replicated])
    match format:
        case "table":
            return draw(list(_parts(run, replicated, width)), width, color)
        case "md":
            return _markdown(run, replicated)
        case "csv":
            return csv.table(_CSV, [[line[name] for name in _CSV] for line in _lines(replicated)])
        case "json":
            return json.render_json(run, {"publications": msgspec.to_builtins(replicated)})
        case "jsonl":
            return json.lines(_lines(replicated))
    raise UnknownName("format", format, FORMATS)


def like_printed(value: float, unit: str, examples: Sequence[str]) -> str:
    """A figure written as those around it are: bare, with its unit, or in hours, minutes and seconds."""
    if unit == "s" and any(re.search(r"\d[hm]\b", example) for example in examples):
        return _clock(value)
    suffix = next(
        (found[1] for example in examples if (found := re.fullmatch(r"\d+(?:\.\d+)?( ?[a-zA-Z].*)", example))), ""
    )
    return units.digits(value) + suffix


def _clock(seconds: float) -> str:
    """2m 29s"""
    if seconds < 99.5:
        return f"{units.digits(seconds) if seconds < 9.95 else round(seconds)}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m {rest}s" if hours else f"{minutes}m {rest}s"


def _heading(run: Run) -> str:
    header = run.header
    return " · ".join(part for part in (f"run {header.id}", header.label, moment(header.created)) if part)


def _parts(run: Run, replicated: Sequence[Replicated], width: int) -> Iterator[RenderableType]:
    yield Text(_heading(run), style="bold")
    yield Text(machine_line(run.header.machine), style=_FAINT)
    for each in replicated:
        yield Text(f"\n{each.name}: {each.title}", style="bold")
        for sheet in each.sheets:
            yield Text(f"\n{sheet.title}")
            yield _table(sheet, width)
            for note in _notes(sheet):
                yield Padding(Text(note, style=_FAINT), (0, 0, 0, 2))
        yield from _biases(each.biases, width)
    for note in _legend(replicated):
        yield Text(f"\n{note}", style=_FAINT)


def _table(sheet: Sheet, width: int) -> Table:
    table = quiet_table()
    columns, rows = _grid(sheet)
    own = range(len(sheet.headers) + len(sheet.columns), len(sheet.headers) + len(sheet.columns) + len(sheet.places))
    for index, (column, cells_width) in enumerate(zip(columns, _widths(columns, rows, width), strict=True)):
        justify: Literal["left", "right"] = "left" if index < len(sheet.headers) else "right"
        table.add_column(column, justify=justify, style=_OWN if index in own else "", width=cells_width)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Headings are broken before cells, and of these the longest first."""
    cells = [max((len(row[index]) for row in rows), default=0) for index in range(len(columns))]
    wanted = [max(len(column), cell) for column, cell in zip(columns, cells, strict=True)]
    words = [max(map(len, column.split()), default=0) for column in columns]
    widths = [max(word, cell) for word, cell in zip(words, cells, strict=True)]
    room = width - 2 * (len(columns) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda index: widths[index] - words[index])
        if widths[widest] <= max(words[widest], _NARROWEST):
            break
        widths[widest] -= 1
    for index in range(len(widths)):
        widths[index] += min(wanted[index] - widths[index], max(room - sum(widths), 0)) if sum(widths) < room else 0
    return widths


def _grid(sheet: Sheet) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, the same for every format that has tables."""
    columns = [*sheet.headers, *sheet.columns, *sheet.places]
    one_place = len(sheet.places) == 1
    margins = one_place and any(own.precision is not None for row in sheet.rows for own in row.own)
    factors = one_place and sheet.by_machine and sheet.is_comparable and any(_factor(row) for row in sheet.rows)
    columns += ["±"] * margins + ["as fast"] * factors + ["speedup here"] * sheet.has_speedup
    examples = [each.text for row in sheet.rows for each in row.printed if each.unit == row.unit]
    rows = []
    for row in sheet.rows:
        printed = {each.column: each.text for each in row.printed}
        cells = [*row.labels, *(printed.get(column, "") for column in sheet.columns)]
        cells += [_own_cell(own, row.unit, examples) for own in row.own]
        cells += [units.relative(row.own[0].precision) if row.own[0].value else ""] * margins
        cells += [units.factor(_factor(row)) if _factor(row) else ""] * factors
        cells += [_speedup(row)] * sheet.has_speedup
        rows.append(cells)
    return columns, rows


def _own_cell(own: Own, unit: str, examples: Sequence[str]) -> str:
    if own.value is not None:
        return ("~" if own.extrapolated else "") + like_printed(own.value, unit, examples)
    if own.status in NO_ROOM:
        return "-"
    return own.status if own.status not in ("", "skipped") else own.reason.partition(". ")[0]


def _factor(row: Row) -> float | None:
    """How many times as fast this machine is as the row's."""
    published, here = next((each.value for each in row.printed if each.unit == row.unit), None), row.own[0].value
    if not published or not here:
        return None
    return here / published if row.unit == "it/s" else published / here


def _speedup(row: Row) -> str:
    """How many times as fast the second place is as the first."""
    values = [own.value for own in row.own[:2]]
    return units.factor(values[0] / values[1]) if len(values) == 2 and values[0] and values[1] else ""


def _legend(replicated: Sequence[Replicated]) -> Iterator[str]:
    """What the signs mean that several tables use, once below all of them."""
    own = [own for each in replicated for sheet in each.sheets for row in sheet.rows for own in row.own]
    if any(each.extrapolated for each in own):
        yield EXTRAPOLATED
    if any(each.status == "skipped" and "--budget" in each.reason for each in own):
        yield MORE_TIME
    figures = {each.case: each.disturbed for each in own if each.value is not None}
    disturbed = [how for how in figures.values() if how]
    if disturbed:
        yield (
            f"While {len(disturbed)} of {len(figures)} figures were timed, this machine was busy with other things: "
            f"{max(disturbed)}. They are too slow."
        )


def _notes(sheet: Sheet) -> Iterator[str]:
    yield from sheet.notes
    reasons: dict[str, list[str]] = {}
    for row in sheet.rows:
        for own in row.own:
            for said in _said(own):
                reasons.setdefault(said, []).append(", ".join(row.labels))
    for reason, rows in reasons.items():
        alike = len(set(rows)) > MOST_NAMED
        yield reason if alike else f"{'; '.join(dict.fromkeys(rows))}: {reason}"


def _said(own: Own) -> Iterator[str]:
    """What a note must add to a cell; of what would take too long the cell says all."""
    if own.status in NO_ROOM:
        yield f"- is out of memory: {own.reason}"
    elif own.status not in ("", "ok", "skipped"):
        yield own.reason


def _biases(biases: Sequence[Bias], width: int) -> Iterator[RenderableType]:
    """A line of figures for each case, and below it what the difference is made of."""
    if not biases:
        return
    yield Text("\nThe published way against the right one")
    headings = ["case", "as published", "steady", "±", "bias"]
    rows = [_bias_cells(bias) for bias in biases]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths), 16))
    yield _line(headings, widths, _FAINT)
    for bias, cells in zip(biases, rows, strict=True):
        yield _line([fold_case(cells[0], widths[0]), *cells[1:]], widths, "")
        yield Padding(Text(causes_text(bias), style=_FAINT), (0, 0, 0, 4))


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    for index, cell_width in enumerate(widths):
        line.add_column(width=cell_width, justify="right" if index else "left", no_wrap=True, style=style)
    line.add_row(*cells)
    return line


def _bias_cells(bias: Bias) -> list[str]:
    steady = units.duration(bias.steady_s) + ("" if bias.verdict == "stable" else f" {bias.verdict}")
    name = bias.case + (" (whole job)" if bias.whole_job else "")
    return [name, units.duration(bias.published_s), steady, units.relative(bias.precision), _signed(bias.share)]


def causes_text(bias: Bias) -> str:
    """warm-up counted +2.1%, autograd graph +4.0%, not explained +0.3%"""
    parts = [f"{cause.name} {_signed(cause.share)}" for cause in bias.causes]
    rest = f"not explained {_signed(bias.rest)}" + (f" (not tried: {bias.untried})" if bias.untried else "")
    return ", ".join([*parts, rest])


def _signed(share: float) -> str:
    return ("+" if share >= 0 else "") + units.percent(share)


def _markdown(run: Run, replicated: Sequence[Replicated]) -> str:
    parts = [f"**{markdown.escape(_heading(run))}**  \n{markdown.escape(machine_line(run.header.machine))}"]
    for each in replicated:
        parts.append(f"## {markdown.escape(each.name)}: {markdown.escape(each.title)}")
        for sheet in each.sheets:
            columns, rows = _grid(sheet)
            figures = range(len(sheet.headers), len(columns))
            cells = [[markdown.escape(cell) for cell in row] for row in rows]
            parts += [f"### {markdown.escape(sheet.title)}", markdown.table(columns, cells, right=figures)]
            parts += [markdown.escape(note) for note in _notes(sheet)]
        if each.biases:
            cells = [[*map(markdown.escape, [*_bias_cells(bias), causes_text(bias)])] for bias in each.biases]
            columns = ["case", "as published", "steady", "±", "bias", "causes"]
            parts += ["### The published way against the right one", markdown.table(columns, cells, right=range(1, 5))]
    parts += [markdown.escape(note) for note in _legend(replicated)]
    return "\n\n".join(parts) + "\n"


def _lines(replicated: Sequence[Replicated]) -> Iterator[Line]:
    """One line for each published figure beside each figure of this machine; what has no counterpart stands alone."""
    for sheet in (sheet for each in replicated for sheet in each.sheets):
        for row in sheet.rows:
            about: Line = {"publication": sheet.publication, "table": sheet.title, "row": " / ".join(row.labels)}
            about |= dict.fromkeys(("machine", "column", "printed", "published")) | {"unit": row.unit}
            for said in list(_printed_lines(row)) or [Line()]:
                yield from ({**about, **said, **_own_line(own)} for own in row.own)


def _printed_lines(row: Row) -> Iterator[Line]:
    for each in row.printed:
        if each.unit == row.unit:
            yield {"machine": each.machine, "column": each.column, "printed": each.text, "published": each.value}


def _own_line(own: Own) -> Line:
    return {
        "case": own.case or None,
        "device": own.device or None,
        "status": own.status or None,
        "here": own.value,
        "low": own.low,
        "high": own.high,
        "extrapolated": own.extrapolated,
        "steady": own.steady,
        "reason": own.reason or None,
    }
