"""Publications: their figures, and their tables next to the figures of this machine."""

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
    "~ is extrapolated: one-time work and first steps as measured, all others by the later steps. "
    "± is the 95% interval of that."
)
MORE_TIME = "What would take too long: more time with --budget, fewer steps with --scale."
_FIELDS = doc.fields("""
    publication=sheet.publication table=sheet.title row=label machine=each.machine column=each.column printed=each.text
    published=each.value unit=row.unit case=own.case device=own.device status=own.status here=own.value low=own.low
    high=own.high extrapolated=own.extrapolated steady=own.steady reason=own.reason
""")


def publication_document(runs: Sequence[Run], title: str, about: Sequence[str]) -> doc.Document:
    """All machines in one table, by case, then cautions; a letter stands for one about some figures only."""

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

    return doc.Document(blocks, figures.records_of(runs))


def replication_document(run: Run, replicated: Sequence[Replicated]) -> doc.Document:
    rows, columns = partial(_lines, replicated), {name: name for name in _FIELDS}
    records = doc.Records(columns, rows, lambda: figures.run_object(run) | {"publications": replicated}, rows)
    return doc.Document(lambda: _replication_blocks(run, replicated), records)


def like_printed(value: float, unit: str, examples: Sequence[str]) -> str:
    """Like the figures around it: bare, with its unit, or in hours, minutes and seconds."""
    if unit == "s" and any(re.search(r"\d[hm]\b", example) for example in examples):
        if value < 99.5:
            return f"{units.digits(value) if value < 9.95 else round(value)}s"
        minutes, seconds = divmod(round(value), 60)
        return f"{f'{minutes // 60}h ' if minutes >= 60 else ''}{minutes % 60}m {seconds}s"
    units_seen = (re.fullmatch(r"\d+(?:\.\d+)?( ?[a-zA-Z].*)", example) for example in examples)
    return units.digits(value) + next((found[1] for found in units_seen if found), "")


def _replication_blocks(run: Run, replicated: Sequence[Replicated]) -> Iterator[doc.Block]:
    header = run.header

    def causes(bias: Bias) -> str:
        """warm-up counted +2.1%, autograd graph +4.0%, not explained +0.3%"""
        parts = [f"{cause} {units.signed(share)}" for cause, share in bias.causes.items()]
        untried = f" (not tried: {bias.untried})" if bias.untried else ""
        return ", ".join([*parts, f"not explained {units.signed(bias.rest)}{untried}"])

    columns = [
        doc.Column("case", "case", of=lambda bias: bias.case + (" (whole job)" if bias.whole_job else "")),
        doc.Column("as published", "figure", of="published_s", written=units.duration),
        doc.Column(
            "steady", "figure", of=lambda it: f"{units.duration(it.steady_s)} {it.verdict}".removesuffix(" stable")
        ),
        doc.Column("±", "figure", of="precision", written=units.relative),
        doc.Column("bias", "figure", of="share", written=units.signed),
    ]
    name = filter(None, (f"run {header.id}", header.label, moment(header.created)))
    yield doc.Title(" · ".join(name), [machine_line(header.machine)])
    for each in replicated:
        yield doc.Title(f"{each.name}: {each.title}")
        for sheet in each.sheets:
            yield doc.Section(sheet.title, [_table(sheet), doc.quiet(*_notes(sheet))])
        table = doc.table(columns, each.biases, notes=[*map(causes, each.biases)], note_title="causes")
        yield doc.Section("The published method against the steady one", [table])
    # What the signs in all tables mean.
    own = [own for each in replicated for sheet in each.sheets for row in sheet.rows for own in row.own]
    legend = [_EXTRAPOLATED] if any(each.extrapolated for each in own) else []
    if any(each.status == "skipped" and "--budget" in each.reason for each in own):
        legend.append(MORE_TIME)
    known = {each.case: each.disturbed for each in own if each.value is not None}
    if disturbed := [how for how in known.values() if how]:
        busy = f"This machine was busy while {len(disturbed)} of {len(known)} figures were timed"
        legend.append(f"{busy}: {max(disturbed)}. The true speeds are higher.")
    yield doc.quiet(*legend)


def _table(sheet: Sheet) -> doc.Table:
    one_place = len(sheet.places) == 1
    margins = one_place and any(own.precision is not None for row in sheet.rows for own in row.own)
    factors = one_place and sheet.by_machine and sheet.is_comparable and any(_factor(row) for row in sheet.rows)
    more = ["±"] * margins + ["as fast"] * factors + ["speedup here"] * sheet.has_speedup
    columns = [doc.Column(title) for title in sheet.headers]
    columns += [doc.Column(title, "value") for title in (*sheet.columns, *sheet.places, *more)]
    examples = [each.text for row in sheet.rows for each in row.printed if each.unit == row.unit]

    def own_text(own: Own, unit: str) -> str:
        if own.value is not None:
            return ("~" if own.extrapolated else "") + like_printed(own.value, unit, examples)
        if own.status in NO_ROOM:
            return "-"
        return own.status if own.status not in ("", "skipped") else own.reason.partition(". ")[0]

    def cells(row: Row) -> Iterator[str | doc.Cell]:
        printed = {each.column: each.text for each in row.printed}
        yield from (*row.labels, *(printed.get(column, "") for column in sheet.columns))
        yield from (doc.Cell(own_text(own, row.unit), "strong") for own in row.own)
        if margins:
            yield units.relative(row.own[0].precision) if row.own[0].value else ""
        if factors:
            yield units.factor(_factor(row)) if _factor(row) else ""
        if sheet.has_speedup:  # of the second place against the first
            first, second = ([own.value or 0.0 for own in row.own] + [0.0, 0.0])[:2]
            yield units.factor(first / second) if first and second else ""

    return doc.Table(columns, [[*cells(row)] for row in sheet.rows])


def _factor(row: Row) -> float | None:
    """How many times as fast this machine is."""
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
    """One per published figure, or row without one, and figure of this machine."""
    for source, row in [(sheet, row) for each in replicated for sheet in each.sheets for row in sheet.rows]:
        published: list[Any] = [each for each in row.printed if each.unit == row.unit]
        for figure, own in product(published or [None], row.own):
            known = {"sheet": source, "row": row, "label": " / ".join(row.labels), "each": figure, "own": own}
            values = {name: doc.value_of(known, path) for name, path in _FIELDS.items()}
            blank = ("case", "device", "status", "reason")  # empty where nothing was tried here
            yield {name: None if value == "" and name in blank else value for name, value in values.items()}
