"""A list of stored runs as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import RenderableType
from rich.text import Text

from torchmark.records import RunHeader
from torchmark.report import csv, markdown
from torchmark.report.console import FAINT, GAP, draw, quiet_table
from torchmark.report.headings import moment
from torchmark.report.text import clean_values

_COLUMNS = ("run", "created", "label", "what", "torch", "machine", "cases")  # `what` says the last one, too
_SHARED = {"machine": "on", "torch": "with torch"}  # said once below the table where all runs have them in common
_LONGEST_LABEL = 16
_SHORTEST = {"machine": 8, "label": 8, "what": 12}  # what these may be cut to for want of room, in this order
_DISPENSABLE = ("machine", "torch", "label", "what")
_NAMED = 2  # workloads of a run that its row names


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
            return markdown.table(_COLUMNS, [list(map(markdown.escape, row)) for row in rows]) + "\n"
        case "csv":
            return csv.table(_COLUMNS, rows)
        case "json":
            whole = msgspec.json.encode({"runs": headers, "problems": clean_values(problems)})
            return msgspec.json.format(whole, indent=2).decode() + "\n"
        case "jsonl":
            return "".join(msgspec.json.encode(header).decode() + "\n" for header in headers)
    notes = [Text(problem) for problem in clean_values(problems)]
    table = _table(rows, width) if rows else []
    return draw([*table, *([Text("")] if table and notes else []), *notes], width, color)


def _row(header: RunHeader) -> list[str]:
    machine = header.machine
    about = header.id, moment(header.created), header.label or "", _what(header), machine.torch or "", machine.cpu
    return [*about, str(len(header.cases))]


def _what(header: RunHeader) -> str:
    """The command, the workloads that it was about, and how many cases there were to measure."""
    verb, *about = header.command.removeprefix("torchmark ").split(" ")
    names = list(dict.fromkeys(case.partition("/")[0] for case in header.cases or about[:1]))
    if verb == "limits":
        return verb  # it always measures the same
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    count = f", {len(header.cases)} cases" if len(header.cases) > 1 and not header.open_ended else ""
    return f"{verb} {', '.join(names[:_NAMED])}{more}".rstrip() + count


def _table(rows: Sequence[Sequence[str]], width: int) -> list[RenderableType]:
    columns = {title: [row[index] for row in rows] for index, title in enumerate(_COLUMNS[:-1])}
    alike = [title for title in _SHARED if len(set(columns[title])) == 1]
    said_once = [f"{_SHARED[title]} {cells[0]}" for title in alike if (cells := columns.pop(title))[0]]
    widths = _widths({title: cells for title, cells in columns.items() if any(cells)}, width)
    table = quiet_table()
    for title, wanted in widths.items():
        table.add_column(title, no_wrap=True, width=wanted)
    for row in zip(*(columns[title] for title in widths), strict=True):
        table.add_row(*row)
    shared = ("All " if len(rows) > 1 else "") + " ".join(said_once)
    return [table, *([Text(f"\n{shared[0].upper()}{shared[1:]}", style=FAINT)] if said_once else [])]


def _widths(columns: Mapping[str, Sequence[str]], width: int) -> dict[str, int]:
    """What each column gets; where there is not enough room some are cut short, and then some are left out."""
    longest = {"label": _LONGEST_LABEL}
    wanted = {title: min(max(map(len, (title, *cells))), longest.get(title, width)) for title, cells in columns.items()}
    for title in _DISPENSABLE:
        least = [min(needed, _SHORTEST.get(head, needed)) for head, needed in wanted.items()]
        if sum(least) + GAP * (len(least) - 1) > width:
            wanted.pop(title, None)
    excess = sum(wanted.values()) + GAP * (len(wanted) - 1) - width
    for title, shortest in _SHORTEST.items():
        cut = max(min(excess, wanted.get(title, 0) - shortest), 0)
        wanted |= {title: wanted[title] - cut} if cut else {}
        excess -= cut
    return wanted
