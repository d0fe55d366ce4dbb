"""A list of stored runs as text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchmark.records import RunHeader
from torchmark.report import csv, markdown
from torchmark.report.terminal import draw, moment
from torchmark.report.text import clean_values

_COLUMNS = ("run", "created", "label", "cases", "torch", "machine")
_LABEL = 16


def render_listing(
    headers: Sequence[RunHeader],
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
    problems: Sequence[str] = (),
) -> str:
    """The headers of runs, newest first as they are given; `problems` are files that could not be read."""
    plain = clean_values(msgspec.to_builtins(headers))
    headers = msgspec.convert(plain, tuple[RunHeader, ...])
    rows = [_row(header) for header in headers]
    match format:
        case "md":
            return markdown.table(_COLUMNS, [list(map(markdown.escape, row)) for row in rows], right=(3,)) + "\n"
        case "csv":
            return csv.table(_COLUMNS, rows)
        case "json":
            whole = msgspec.json.encode({"runs": headers, "problems": clean_values(problems)})
            return msgspec.json.format(whole, indent=2).decode() + "\n"
        case "jsonl":
            return "".join(msgspec.json.encode(header).decode() + "\n" for header in headers)
    notes = [Text(problem) for problem in clean_values(problems)]
    return draw([_table(rows, width), *([Text("")] if notes else []), *notes], width, color)


def _row(header: RunHeader) -> list[str]:
    machine = header.machine
    created = moment(header.created)
    return [header.id, created, header.label or "", str(len(header.cases)), machine.torch or "", machine.cpu]


def _table(rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    room = width
    for index, title in enumerate(_COLUMNS):
        wanted = max(len(row[index]) for row in (_COLUMNS, *rows))
        # Only the machine's name is cut short for want of room, and a label that is a sentence.
        wanted = max(len(title), min(wanted, {"machine": room, "label": _LABEL}.get(title, wanted)))
        room -= wanted + 2
        table.add_column(title, justify="right" if title == "cases" else "left", no_wrap=True, width=wanted)
    for row in rows:
        table.add_row(*row)
    return table
