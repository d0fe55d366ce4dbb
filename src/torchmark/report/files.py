"""Run files: a list of the stored ones, and the findings of `torchmark check`."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from sys import intern
from typing import Any

import msgspec
from msgspec import Struct

from torchmark.analyze.wording import counted
from torchmark.records import Level, Remark, RunHeader
from torchmark.report import document as doc
from torchmark.report.names import moment
from torchmark.report.text import clean, shorten

_COLUMNS = (
    doc.Column("run", "name"),
    doc.Column("created", "name"),
    doc.Column("label", "cut", drop=2, least=8, most=16),
    doc.Column("what", "cut", drop=1, least=12),
    doc.Column("torch", "name", drop=3),
    doc.Column("machine", "cut", drop=4, least=8),
)
_TITLES = [column.title for column in _COLUMNS]
_CAVEAT = "This detects damage, not forgery. That several files are independent of each other is claimed, not known."


def listing_document(headers: Iterable[RunHeader], problems: Sequence[str] = ()) -> doc.Document:
    """Runs, newest first, and `problems`, which are read last. Of 100,000 runs, a table keeps equal texts once."""

    def row(header: RunHeader) -> tuple[str, ...]:
        machine = header.machine
        verb, *about = header.command.removeprefix("torchmark ").split(" ")
        names = list(dict.fromkeys(case.partition("/")[0] for case in header.cases or about[:1]))
        count = f", {len(header.cases)} cases" if len(header.cases) > 1 and not header.open_ended else ""
        what = verb if verb == "limits" else f"{verb} {doc.some(names, 2)}".rstrip() + count
        alike = map(intern, (what, machine.torch or "", machine.cpu, str(len(header.cases))))
        return header.id, moment(header.created), header.label or "", *alike

    def rows() -> list[tuple[str, ...]]:
        return sorted(map(row, headers), key=itemgetter(1), reverse=True)

    def blocks() -> Iterator[doc.Block]:
        if found := rows():
            columns = dict(zip(_TITLES, zip(*found, strict=True), strict=False))
            alike = [title for title in ("machine", "torch") if len(set(columns[title])) == 1]
            shown = [index for index, title in enumerate(_TITLES) if title not in alike and any(columns[title])]
            yield doc.Table([_COLUMNS[index] for index in shown], [[row[index] for index in shown] for row in found])
            shared = {"machine": "on", "torch": "with torch"}
            said = " ".join(f"{shared[title]} {columns[title][0]}" for title in alike if columns[title][0])
            yield doc.quiet(f"All {said}" if said and len(found) > 1 else said[:1].upper() + said[1:])
        yield doc.Lines(problems)

    fields = {title: str(index) for index, title in enumerate([*_TITLES, "cases"])}
    newest_first = partial(sorted, headers, key=attrgetter("created"), reverse=True)
    runs = doc.Records(fields, rows, lambda: {"runs": newest_first(), "problems": [*problems]}, newest_first)
    return doc.Document(blocks, runs)


class FileReport(Struct, frozen=True):
    file: str
    run: str
    level: Level | None  # the highest reached; None: not well-formed
    sealed: bool  # ends with the right checksum
    cases: int  # with a result
    planned: int  # of so many
    figures: int  # cases with a figure
    processes: int  # behind those figures
    recounted: int  # recomputed from raw samples
    supported: int  # by at least two other files
    flaws: tuple[Remark, ...] = ()


def check_document(reports: Sequence[FileReport], brief: bool = False) -> doc.Document:
    """The findings, one per line for other programs, then the level of trust of each file."""
    found = [(report, flaw) for report in reports for flaw in report.flaws]
    fields = doc.fields("file=0.file line place=1.place level=1.kind finding=1.cause")
    fields["line"] = lambda each: each[1].line or None

    def blocks() -> Iterator[doc.Block]:
        cells = [[str(doc.value_of(each, field) or "") for field in fields.values()] for each in found]
        yield doc.Section("Findings", [doc.Table([*map(doc.Column, fields)], cells)], only="text")
        lines = [(each.file, f"line {it.line}" * bool(it.line), it.place, shorten(it.cause)) for each, it in found]
        findings = "\n".join(": ".join(map(clean, filter(None, parts))) for parts in lines)
        yield doc.Section("", [doc.Code(findings)], only="terminal")
        yield doc.Code("\n".join(_summary(report, brief) for report in reports))
        yield doc.Lines([_CAVEAT])

    def plain() -> Iterator[dict[str, Any]]:
        names = doc.fields("level=kind line place text=cause")
        for report in reports:
            flaws = [{name: doc.value_of(flaw, own) for name, own in names.items()} for flaw in report.flaws]
            yield msgspec.to_builtins(report) | {"flaws": flaws}

    return doc.Document(blocks, doc.Records(fields, lambda: found, lambda: {"files": [*plain()]}, plain))


def _summary(report: FileReport, brief: bool) -> str:
    kinds = {flaw.kind for flaw in report.flaws}
    level: str = report.level or "not well-formed"
    if report.level and "consistent" in kinds:
        level = "well-formed, but not consistent"
    elif report.level and "corroborated" in kinds:
        level = f"{level}, but not as other files have it"
    elif report.level and level != "well-formed":
        level = f"well-formed, {level}"
    count = [counted(len(report.flaws), "finding")] if report.flaws else []
    if brief:
        return f"{clean(report.file)}: {', '.join([level, *count])}"
    some = f"{report.cases} of " if report.cases < report.planned else ""
    grounds = [*count, some + counted(report.planned, "case")]
    if report.processes:
        again = f"{report.recounted} of {report.processes} processes recomputed from samples"
        grounds.append(again if report.recounted else "no samples to recompute from")
    if report.supported:
        grounds.append(f"{report.supported} of {report.figures} figures agree with other files")
    wrong = any(flaw.place == "$.sha256" for flaw in report.flaws)
    grounds.append("checksum right" if report.sealed else "wrong checksum" if wrong else "no checksum")
    return f"{clean(report.file)}: {level}\n  {', '.join(grounds)}"
