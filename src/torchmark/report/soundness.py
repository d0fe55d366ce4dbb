"""What `torchmark check` says: one line for each finding, and one for each file with the level of trust it reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from torchmark.analyze.wording import counted
from torchmark.records import Level, Remark
from torchmark.report.document import Block, Code, Column, CsvValue, Document, Lines, Records, Section, Table
from torchmark.report.text import clean, shorten

_COLUMNS = ("file", "line", "place", "level", "finding")
CHECKSUM = "$.sha256"
_CAVEAT = "This detects damage, not forgery. That several files are independent of each other is claimed, not known."


class FileReport(Struct, frozen=True):
    """What was found in one file."""

    file: str
    run: str
    level: Level | None  # the highest that it reaches; None: not even well-formed
    sealed: bool  # it ends with a checksum, and that is right
    cases: int  # with a result
    planned: int  # of so many
    figures: int  # cases with a figure
    processes: int  # behind those figures
    recounted: int  # of which so many were worked out again from raw samples
    supported: int  # figures with which at least two other files agree
    flaws: tuple[Remark, ...] = ()


def soundness_document(reports: Sequence[FileReport], brief: bool = False) -> Document:
    """All files in the order in which they were named; `brief` gives each file one line after the findings."""
    rows: list[list[CsvValue]] = [
        [report.file, flaw.line or None, flaw.place, flaw.kind, flaw.cause]
        for report in reports
        for flaw in report.flaws
    ]
    records = Records(
        _COLUMNS, lambda: rows, lambda: {"files": list(map(_plain, reports))}, lambda: map(_plain, reports)
    )
    return Document(lambda: _blocks(reports, rows, brief), records)


def _blocks(reports: Sequence[FileReport], rows: Sequence[Sequence[CsvValue]], brief: bool) -> Iterator[Block]:
    """Findings are never broken in a terminal: other programs read them line by line."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    findings = [_finding(report, flaw) for report in reports for flaw in report.flaws]
    files = [_brief(report) if brief else summary(report) for report in reports]
    if findings:
        yield Section("Findings", [Table([Column(title) for title in _COLUMNS], cells)], only="text")
        yield Section("", [Code("\n".join(findings))], only="terminal")
    yield Code("\n".join(files))
    yield Lines([_CAVEAT])


def _plain(report: FileReport) -> dict[str, Any]:
    """The report as plain data; its remarks as level, line, place and text."""
    flaws = [{"level": each.kind, "line": each.line, "place": each.place, "text": each.cause} for each in report.flaws]
    return msgspec.to_builtins(report) | {"flaws": flaws}  # type: ignore[no-any-return]  # a record gives a dict


def summary(report: FileReport) -> str:
    """The level that a file reaches, and what that rests on."""
    return f"{clean(report.file)}: {_level(report)}\n  {', '.join(_grounds(report))}"


def _brief(report: FileReport) -> str:
    found = f", {counted(len(report.flaws), 'finding')}" if report.flaws else ""
    return f"{clean(report.file)}: {_level(report)}{found}"


def _level(report: FileReport) -> str:
    if report.level is None:
        return "not well-formed"
    if any(flaw.kind == "consistent" for flaw in report.flaws):
        return "well-formed, but not consistent"
    if any(flaw.kind == "corroborated" for flaw in report.flaws):
        return f"{report.level}, but not as other files have it"
    return {"well-formed": "well-formed"}.get(report.level, f"well-formed, {report.level}")


def _grounds(report: FileReport) -> list[str]:
    count = len(report.flaws)
    grounds = [counted(count, "finding")] if count else []
    some = f"{report.cases} of " if report.cases < report.planned else ""
    grounds += [some + counted(report.planned, "case")]
    if report.processes:
        grounds.append(
            f"{report.recounted} of {report.processes} processes recomputed from samples"
            if report.recounted
            else "no samples to recompute from"
        )
    if report.supported:
        grounds.append(f"{report.supported} of {report.figures} figures agree with other files")
    return [*grounds, _checksum(report)]


def _checksum(report: FileReport) -> str:
    if report.sealed:
        return "checksum right"
    return "wrong checksum" if any(flaw.place == CHECKSUM for flaw in report.flaws) else "no checksum"


def _finding(report: FileReport, flaw: Remark) -> str:
    place = [f"line {flaw.line}"] if flaw.line else []
    return ": ".join(map(clean, filter(None, (report.file, *place, flaw.place, shorten(flaw.cause)))))
