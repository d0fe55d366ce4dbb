"""Published tables next to the figures of this machine, in the publication's own shape, unit and notation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from torchmark.analyze.jobs import Bias, Own, Replicated, Row, Sheet
from torchmark.records import NO_ROOM, Run
from torchmark.report import units
from torchmark.report.document import Block, Cell, Column, CsvValue, Document, Lines, Records, Section, Table, Title
from torchmark.report.figures import signed
from torchmark.report.names import machine_line, moment
from torchmark.report.results import run_object

Line = dict[str, CsvValue]

EXTRAPOLATED = (
    "~ is extrapolated: what happens once and the first steps as they were, all others by the later steps. "
    "± is the 95% interval that follows from these."
)
MORE_TIME = "What would take too long: more time with --budget, fewer steps with --scale."
_MOST_NAMED = 2  # rows that a note names
_BIAS = ("as published", "steady", "±", "bias")
_CSV = (
    "publication", "table", "row", "machine", "column", "printed", "published", "unit", "case", "device", "status",
    "here", "low", "high", "extrapolated", "steady", "reason",
)  # fmt: skip


def replication_document(run: Run, replicated: Sequence[Replicated]) -> Document:
    """The tables of each publication."""
    records = Records(
        _CSV,
        lambda: ([line[name] for name in _CSV] for line in _lines(replicated)),
        lambda: run_object(run) | {"publications": msgspec.to_builtins(replicated)},
        lambda: _lines(replicated),
    )
    return Document(lambda: _blocks(run, replicated), records)


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


def _blocks(run: Run, replicated: Sequence[Replicated]) -> Iterator[Block]:
    header = run.header
    name = " · ".join(part for part in (f"run {header.id}", header.label, moment(header.created)) if part)
    yield Title(name, [machine_line(header.machine)])
    for each in replicated:
        yield Title(f"{each.name}: {each.title}")
        for sheet in each.sheets:
            notes = [Cell(note, "quiet") for note in _notes(sheet)]
            yield Section(sheet.title, [_table(sheet), *([Lines(notes)] if notes else [])])
        if each.biases:
            columns = [Column("case", "case"), *(Column(title, "figure") for title in _BIAS)]
            table = Table(columns, list(map(_bias_cells, each.biases)), list(map(causes_text, each.biases)), "causes")
            yield Section("The published method against the steady one", [table])
    legend = [Cell(note, "quiet") for note in _legend(replicated)]
    yield from [Lines(legend)] if legend else []


def _table(sheet: Sheet) -> Table:
    """The publication's own columns, and one for each place on this machine."""
    one_place = len(sheet.places) == 1
    margins = one_place and any(own.precision is not None for row in sheet.rows for own in row.own)
    factors = one_place and sheet.by_machine and sheet.is_comparable and any(_factor(row) for row in sheet.rows)
    more = ["±"] * margins + ["as fast"] * factors + ["speedup here"] * sheet.has_speedup
    columns = [Column(title) for title in sheet.headers]
    columns += [Column(title, "value") for title in (*sheet.columns, *sheet.places, *more)]
    examples = [each.text for row in sheet.rows for each in row.printed if each.unit == row.unit]
    rows: list[list[str | Cell]] = []
    for row in sheet.rows:
        printed = {each.column: each.text for each in row.printed}
        cells: list[str | Cell] = [*row.labels, *(printed.get(column, "") for column in sheet.columns)]
        cells += [Cell(_own_cell(own, row.unit, examples), "strong") for own in row.own]
        cells += [units.relative(row.own[0].precision) if row.own[0].value else ""] * margins
        cells += [units.factor(_factor(row)) if _factor(row) else ""] * factors
        cells += [_speedup(row)] * sheet.has_speedup
        rows.append(cells)
    return Table(columns, rows)


def _own_cell(own: Own, unit: str, examples: Sequence[str]) -> str:
    if own.value is not None:
        return ("~" if own.extrapolated else "") + like_printed(own.value, unit, examples)
    if own.status in NO_ROOM:
        return "-"
    return own.status if own.status not in ("", "skipped") else own.reason.partition(". ")[0]


def _factor(row: Row) -> float | None:
    """How many times as fast as the machine of the row this machine is."""
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
        alike = len(set(rows)) > _MOST_NAMED
        yield reason if alike else f"{'; '.join(dict.fromkeys(rows))}: {reason}"


def _said(own: Own) -> Iterator[str]:
    """What a note must add to a cell; of what would take too long the cell says all."""
    if own.status in NO_ROOM:
        yield f"- is out of memory: {own.reason}"
    elif own.status not in ("", "ok", "skipped"):
        yield own.reason


def _bias_cells(bias: Bias) -> list[str]:
    steady = units.duration(bias.steady_s) + ("" if bias.verdict == "stable" else f" {bias.verdict}")
    name = bias.case + (" (whole job)" if bias.whole_job else "")
    return [name, units.duration(bias.published_s), steady, units.relative(bias.precision), signed(bias.share)]


def causes_text(bias: Bias) -> str:
    """warm-up counted +2.1%, autograd graph +4.0%, not explained +0.3%"""
    parts = [f"{cause.name} {signed(cause.share)}" for cause in bias.causes]
    rest = f"not explained {signed(bias.rest)}" + (f" (not tried: {bias.untried})" if bias.untried else "")
    return ", ".join([*parts, rest])


def _lines(replicated: Sequence[Replicated]) -> Iterator[Line]:
    """A line for each published figure with each figure of this machine; what has no counterpart stands alone."""
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
