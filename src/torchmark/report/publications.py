"""Publications: their figures as they are read, and their tables next to the figures of this machine."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from string import ascii_lowercase
from typing import Any

from torchmark.analyze.jobs import Bias, Own, Replicated, Row, Sheet
from torchmark.records import NO_ROOM, Remark, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import Names, machine_line, moment, place

_EXTRAPOLATED = (
    "~ is extrapolated: what happens once and the first steps as they were, all others by the later steps. "
    "± is the 95% interval that follows from these."
)
MORE_TIME = "What would take too long: more time with --budget, fewer steps with --scale."
_FIELDS = doc.fields("""
    publication=sheet.publication table=sheet.title row=label machine=each.machine column=each.column printed=each.text
    published=each.value unit=row.unit case=own.case device=own.device status=own.status here=own.value low=own.low
    high=own.high extrapolated=own.extrapolated steady=own.steady reason=own.reason
""")


def publication_document(runs: Sequence[Run], title: str, about: Sequence[str]) -> doc.Document:
    """The machines of a publication in one table, and what to be careful about: results of the same case together.
    A letter stands for each caution that is about some figures only."""

    def blocks() -> Iterator[doc.Block]:
        results = [result for run in runs for result in run.results]
        names = {id(result): Names(place(result)).of(result) for result in results}
        order = list(dict.fromkeys(names.values()))
        results.sort(key=lambda result: order.index(names[id(result)]))
        known = [result.cautions for result in results if result.estimate]
        found = dict.fromkeys(caution for cautions in known for caution in cautions)
        some = [caution for caution in found if not all(caution in cautions for cautions in known)]
        letters = dict(zip(some, ascii_lowercase, strict=False))
        columns = [
            doc.Column("case", "case", repeats="heading", of=lambda result: names[id(result)]),
            doc.Column("machine", "name", of=lambda result: str(result.settings.get("machine"))),
            doc.Column("per step", "figure", of="estimate", written=figures.step_time),
            doc.Column("published", "figure", of=lambda each: figures.printed(each) if each.estimate else each.status),
            doc.Column("rate", "figure", of=figures.rate),
            doc.Column("care", of=lambda result: "".join(sorted(letters.get(each, "") for each in result.cautions))),
        ]
        yield doc.Title(title, about)
        yield doc.table(columns, results)
        of_all = [Remark(each.kind, f"all figures: {each.cause}", each.fix) for each in found if each not in letters]
        of_some = [Remark(f"{mark} {each.kind}", each.cause, each.fix) for each, mark in letters.items()]
        yield doc.remarks("Care", [*of_all, *of_some])

    return doc.Document(blocks, figures.run_records(runs))


def replication_document(run: Run, replicated: Sequence[Replicated]) -> doc.Document:
    """The tables of each publication in its own shape, unit and notation."""
    rows, publications = partial(_lines, replicated), {"publications": replicated}
    records = doc.Records({name: name for name in _FIELDS}, rows, lambda: figures.run_object(run) | publications, rows)
    return doc.Document(lambda: _replication_blocks(run, replicated), records)


def like_printed(value: float, unit: str, examples: Sequence[str]) -> str:
    """A figure written as those around it are: bare, with its unit, or in hours, minutes and seconds."""
    if unit == "s" and any(re.search(r"\d[hm]\b", example) for example in examples):
        if value < 99.5:
            return f"{units.digits(value) if value < 9.95 else round(value)}s"
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}h {minutes}m {rest}s" if hours else f"{minutes}m {rest}s"
    units_seen = (re.fullmatch(r"\d+(?:\.\d+)?( ?[a-zA-Z].*)", example) for example in examples)
    return units.digits(value) + next((found[1] for found in units_seen if found), "")


def _replication_blocks(run: Run, replicated: Sequence[Replicated]) -> Iterator[doc.Block]:
    header = run.header
    name = " · ".join(filter(None, (f"run {header.id}", header.label, moment(header.created))))

    def steady(bias: Bias) -> str:
        return units.duration(bias.steady_s) + ("" if bias.verdict == "stable" else f" {bias.verdict}")

    def causes(bias: Bias) -> str:
        """warm-up counted +2.1%, autograd graph +4.0%, not explained +0.3%"""
        parts = [f"{cause} {units.signed(share)}" for cause, share in bias.causes.items()]
        untried = f" (not tried: {bias.untried})" if bias.untried else ""
        return ", ".join([*parts, f"not explained {units.signed(bias.rest)}{untried}"])

    columns = [
        doc.Column("case", "case", of=lambda bias: bias.case + (" (whole job)" if bias.whole_job else "")),
        doc.Column("as published", "figure", of="published_s", written=units.duration),
        doc.Column("steady", "figure", of=steady),
        doc.Column("±", "figure", of="precision", written=units.relative),
        doc.Column("bias", "figure", of="share", written=units.signed),
    ]
    yield doc.Title(name, [machine_line(header.machine)])
    for each in replicated:
        yield doc.Title(f"{each.name}: {each.title}")
        for sheet in each.sheets:
            yield doc.Section(sheet.title, [_table(sheet), doc.quiet(*_notes(sheet))])
        table = doc.table(columns, each.biases, notes=[*map(causes, each.biases)], note_title="causes")
        yield doc.Section("The published method against the steady one", [table])
    # What the signs mean that several tables use, once below all of them.
    own = [own for each in replicated for sheet in each.sheets for row in sheet.rows for own in row.own]
    legend = [_EXTRAPOLATED] if any(each.extrapolated for each in own) else []
    if any(each.status == "skipped" and "--budget" in each.reason for each in own):
        legend.append(MORE_TIME)
    known = {each.case: each.disturbed for each in own if each.value is not None}
    if disturbed := [how for how in known.values() if how]:
        busy = f"While {len(disturbed)} of {len(known)} figures were timed, this machine was busy with other things"
        legend.append(f"{busy}: {max(disturbed)}. They are too slow.")
    yield doc.quiet(*legend)


def _table(sheet: Sheet) -> doc.Table:
    one_place = len(sheet.places) == 1
    margins = one_place and any(own.precision is not None for row in sheet.rows for own in row.own)
    factors = one_place and sheet.by_machine and sheet.is_comparable and any(_factor(row) for row in sheet.rows)
    more = ["±"] * margins + ["as fast"] * factors + ["speedup here"] * sheet.has_speedup
    columns = [doc.Column(title) for title in sheet.headers]
    columns += [doc.Column(title, "value") for title in (*sheet.columns, *sheet.places, *more)]
    examples = [each.text for row in sheet.rows for each in row.printed if each.unit == row.unit]

    def own_cell(own: Own, unit: str) -> doc.Cell:
        if own.value is not None:
            text = "~" * own.extrapolated + like_printed(own.value, unit, examples)
        elif own.status in NO_ROOM:
            text = "-"
        else:
            text = own.status if own.status not in ("", "skipped") else own.reason.partition(". ")[0]
        return doc.Cell(text, "strong")

    def cells(row: Row) -> Iterator[str | doc.Cell]:
        printed = {each.column: each.text for each in row.printed}
        yield from (*row.labels, *(printed.get(column, "") for column in sheet.columns))
        yield from (own_cell(own, row.unit) for own in row.own)
        yield from [units.relative(row.own[0].precision) if row.own[0].value else ""] * margins
        yield from [units.factor(_factor(row)) if _factor(row) else ""] * factors
        values = [own.value for own in row.own[:2]]  # how many times as fast the second place is as the first
        faster = units.factor(values[0] / values[1]) if len(values) == 2 and values[0] and values[1] else ""
        yield from [faster] * sheet.has_speedup

    return doc.Table(columns, [[*cells(row)] for row in sheet.rows])


def _factor(row: Row) -> float | None:
    """How many times as fast as the machine of the row this machine is."""
    published, here = next((each.value for each in row.printed if each.unit == row.unit), None), row.own[0].value
    if not published or not here:
        return None
    return here / published if row.unit == "it/s" else published / here


def _notes(sheet: Sheet) -> Iterator[str]:
    yield from sheet.notes
    reasons: dict[str, dict[str, None]] = {}
    for row, own in [(each, own) for each in sheet.rows for own in each.own]:
        if own.status not in ("", "ok", "skipped"):
            reason = ("- is out of memory: " if own.status in NO_ROOM else "") + own.reason
            reasons.setdefault(reason, {})[", ".join(row.labels)] = None
    for reason, rows in reasons.items():
        yield reason if len(rows) > 2 else f"{'; '.join(rows)}: {reason}"


def _lines(replicated: Sequence[Replicated]) -> Iterator[dict[str, Any]]:
    """A line for each published figure with each figure of this machine; a row without published ones has one, too."""
    rows = [(sheet, row) for each in replicated for sheet in each.sheets for row in sheet.rows]
    for source, row in rows:
        published: list[Any] = [each for each in row.printed if each.unit == row.unit]
        for figure, own in product(published or [None], row.own):
            known = {"sheet": source, "row": row, "label": " / ".join(row.labels), "each": figure, "own": own}
            values = {name: doc.value_of(known, path) for name, path in _FIELDS.items()}
            blank = ("case", "device", "status", "reason")  # empty where nothing was tried here
            yield {name: None if value == "" and name in blank else value for name, value in values.items()}
