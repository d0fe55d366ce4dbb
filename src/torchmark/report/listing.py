"""A list of stored runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from sys import intern

from torchmark.records import RunHeader
from torchmark.report.document import Block, Cell, Column, Document, Lines, Records, Table, some
from torchmark.report.names import moment

_COLUMNS = (
    Column("run", "name"),
    Column("created", "name"),
    Column("label", "cut", drop=2, least=8, most=16),
    Column("what", "cut", drop=1, least=12),
    Column("torch", "name", drop=3),
    Column("machine", "cut", drop=4, least=8),
)
_SHARED = {"machine": "on", "torch": "with torch"}  # said once below the table where all runs have them in common
_NAMED = 2  # workloads of a run that its row names

_Row = tuple[str, ...]


def listing_document(headers: Iterable[RunHeader], problems: Sequence[str] = ()) -> Document:
    """The headers of runs, newest first; `problems` are files that could not be read, and are looked at last.

    There may be a hundred thousand runs: for a table only the row of each is kept.
    """

    def rows() -> list[_Row]:
        return sorted(map(_row, headers), key=itemgetter(1), reverse=True)

    def newest_first() -> list[RunHeader]:
        return sorted(headers, key=attrgetter("created"), reverse=True)

    columns = (*(column.title for column in _COLUMNS), "cases")
    data = Records(columns, rows, lambda: {"runs": newest_first(), "problems": [*problems]}, newest_first)
    return Document(lambda: _blocks(rows(), problems), data)


def _row(header: RunHeader) -> _Row:
    """Texts that many runs have in common are kept once."""
    machine = header.machine
    alike = map(intern, (_what(header), machine.torch or "", machine.cpu, str(len(header.cases))))
    return header.id, moment(header.created), header.label or "", *alike


def _what(header: RunHeader) -> str:
    """The command, the workloads that it was about, and how many cases there were to measure."""
    verb, *about = header.command.removeprefix("torchmark ").split(" ")
    names = list(dict.fromkeys(case.partition("/")[0] for case in header.cases or about[:1]))
    if verb == "limits":
        return verb  # it always measures the same
    count = f", {len(header.cases)} cases" if len(header.cases) > 1 and not header.open_ended else ""
    return f"{verb} {some(names, _NAMED)}".rstrip() + count


def _blocks(rows: Sequence[_Row], problems: Sequence[str]) -> Iterator[Block]:
    if rows:
        columns = {column.title: [row[index] for row in rows] for index, column in enumerate(_COLUMNS)}
        alike = [title for title in _SHARED if len(set(columns[title])) == 1]
        shown = [
            index for index, column in enumerate(_COLUMNS) if column.title not in alike and any(columns[column.title])
        ]
        yield Table([_COLUMNS[index] for index in shown], [[row[index] for index in shown] for row in rows])
        said = " ".join(f"{_SHARED[title]} {columns[title][0]}" for title in alike if columns[title][0])
        said = f"All {said}" if len(rows) > 1 else said[:1].upper() + said[1:]
        yield from [Lines([Cell(said, "quiet")])] if alike and said != "All " else []
    yield from [Lines(problems)] if problems else []
