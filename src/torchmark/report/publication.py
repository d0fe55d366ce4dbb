"""A publication as it is read: each case with the machines that were measured, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from torchmark.records import Remark, Result, Run
from torchmark.report import figures, units
from torchmark.report.document import Block, Column, Document, Remarks, Section, Table, Title
from torchmark.report.names import Names, place
from torchmark.report.results import run_records

_COLUMNS = (
    Column("case", "case", repeats="heading"),
    Column("machine", "name"),
    Column("per step", "figure"),
    Column("published", "figure"),
    Column("rate", "figure"),
    Column("care"),
)


def publication_document(runs: Sequence[Run], title: str, about: Sequence[str]) -> Document:
    """The machines of a publication in one table."""
    return Document(lambda: _blocks(runs, title, about), run_records(runs))


def _blocks(runs: Sequence[Run], title: str, about: Sequence[str]) -> Iterator[Block]:
    """Results of the same case together."""
    rows = [
        (Names(place(result)).of(result), str(result.settings.get("machine")), result)
        for run in runs
        for result in run.results
    ]
    order = list(dict.fromkeys(case for case, _, _ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    letters = _letters([result for _, _, result in rows])
    yield Title(title, about)
    yield Table(_COLUMNS, [[case, machine, *_cells(result, letters)] for case, machine, result in rows])
    care = [
        Remark(f"{mark} {each.kind}".strip(), f"{'' if mark else 'all figures: '}{each.cause}", each.fix)
        for each, mark in letters.items()
    ]
    yield from [Section("Care", [Remarks(care)])] if care else []


def _letters(results: Sequence[Result]) -> dict[Remark, str]:
    """All cautions in the order in which they come up, with a letter for each that is about some figures only."""
    known = [result.cautions for result in results if result.estimate]
    found = dict.fromkeys(caution for cautions in known for caution in cautions)
    some = [caution for caution in found if not all(caution in cautions for cautions in known)]
    named = dict(zip(some, ascii_lowercase, strict=False))
    return {caution: named.get(caution, "") for caution in sorted(found, key=lambda caution: caution in named)}


def _cells(result: Result, letters: dict[Remark, str]) -> list[str]:
    care = "".join(sorted(letters[caution] for caution in result.cautions if caution in letters))
    if result.estimate is None:
        return [units.NOTHING, result.status, units.NOTHING, care]
    return [figures.step_time(result.estimate), figures.printed(result), figures.rate(result), care]
