"""What `torchmark check` says: one line for each finding, and one for each file with the level of trust it reaches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from torchmark.analyze.wording import counted
from torchmark.records import Flaw, Level
from torchmark.report import csv, json, markdown
from torchmark.report.text import clean_values, shorten

_COLUMNS = ("file", "line", "place", "level", "finding")
CHECKSUM = "$.sha256"
_CAVEAT = """\
This detects damage, not forgery. That several files are independent of each
other is claimed, not known."""


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
    flaws: tuple[Flaw, ...] = ()


def render_soundness(reports: Sequence[FileReport], format: str = "table", brief: bool = False) -> str:  # noqa: A002
    """All files in the order in which they were named; `brief` gives each file one line after the findings."""
    reports = msgspec.convert(clean_values(msgspec.to_builtins(reports)), tuple[FileReport, ...])
    rows = [_row(report, flaw) for report in reports for flaw in report.flaws]
    match format:
        case "md":
            return markdown.table(_COLUMNS, [[markdown.escape(str(cell)) for cell in row] for row in rows]) + "\n"
        case "csv":
            return csv.table(_COLUMNS, rows)
        case "json":
            return json.pretty({"files": reports})
        case "jsonl":
            return json.lines(reports)
    findings = [_finding(report, flaw) for report in reports for flaw in report.flaws]
    files = map(_brief if brief else summary, reports)
    return "\n".join([*findings, *([""] if findings else []), *files, "", _CAVEAT]) + "\n"


def summary(report: FileReport) -> str:
    """The level that a file reaches, and what that rests on."""
    return f"{report.file}: {_level(report)}\n  {', '.join(_grounds(report))}"


def _brief(report: FileReport) -> str:
    found = f", {counted(len(report.flaws), 'finding')}" if report.flaws else ""
    return f"{report.file}: {_level(report)}{found}"


def _level(report: FileReport) -> str:
    if report.level is None:
        return "not well-formed"
    if any(flaw.level == "consistent" for flaw in report.flaws):
        return "well-formed, but not consistent"
    if any(flaw.level == "corroborated" for flaw in report.flaws):
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


def _row(report: FileReport, flaw: Flaw) -> list[csv.Cell]:
    return [report.file, flaw.line or None, flaw.place, flaw.level, flaw.text]


def _finding(report: FileReport, flaw: Flaw) -> str:
    place = [f"line {flaw.line}"] if flaw.line else []
    return ": ".join([report.file, *place, *([flaw.place] if flaw.place else []), shorten(flaw.text)])
