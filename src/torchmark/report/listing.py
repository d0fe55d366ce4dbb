"""A list of stored runs as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from sys import intern

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from torchmark.records import RunHeader
from torchmark.report import csv, json, markdown
from torchmark.report.console import FAINT, GAP, draw, quiet_table
from torchmark.report.headings import moment
from torchmark.report.text import Drawn, clean_record

_COLUMNS = ("run", "created", "label", "what", "torch", "machine", "cases")  # `what` says the last one, too
_SHARED = {"machine": "on", "torch": "with torch"}  # said once below the table where all runs have them in common
_LONGEST_LABEL = 16
_SHORTEST = {"machine": 8, "label": 8, "what": 12}  # what these may be cut to for want of room, in this order
_DISPENSABLE = ("machine", "torch", "label", "what")
_NAMED = 2  # workloads of a run that its row names


def render_listing(
    headers: Iterable[RunHeader],
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
    problems: Sequence[str] = (),
) -> str:
    """The headers of runs, newest first; `problems` are files that could not be read, and are looked at last.

    There may be a hundred thousand runs: of each only its row is kept.
    """
    cleaned = map(clean_record, headers)
    if format in ("json", "jsonl"):
        found = sorted(cleaned, key=lambda header: header.created, reverse=True)
        return json.lines(found) if format == "jsonl" else json.pretty({"runs": found, "problems": [*problems]})
    rows = sorted(map(_row, cleaned), key=itemgetter(1), reverse=True)
    match format:
        case "md":
            return markdown.table(_COLUMNS, [list(map(markdown.escape, row)) for row in rows]) + "\n"
        case "csv":
            return csv.table(_COLUMNS, rows)
    table = _table(rows, width, color) if rows else ""
    notes = draw([Text(problem) for problem in problems], width, color) if problems else ""
    return Drawn(table + ("\n" if table and notes else "") + notes)


def _row(header: RunHeader) -> tuple[str, ...]:
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
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    count = f", {len(header.cases)} cases" if len(header.cases) > 1 and not header.open_ended else ""
    return f"{verb} {', '.join(names[:_NAMED])}{more}".rstrip() + count


def _table(rows: Sequence[Sequence[str]], width: int, color: bool) -> str:
    columns = {title: [row[index] for row in rows] for index, title in enumerate(_COLUMNS[:-1])}
    alike = [title for title in _SHARED if len(set(columns[title])) == 1]
    said_once = [f"{_SHARED[title]} {cells[0]}" for title in alike if (cells := columns.pop(title))[0]]
    widths = _widths({title: cells for title, cells in columns.items() if any(cells)}, width)
    lines = [_line([columns[title][index] for title in widths], widths.values()) for index in range(len(rows))]
    head = quiet_table()
    for title, wanted in widths.items():
        head.add_column(title, no_wrap=True, width=wanted)
    shared = ("All " if len(rows) > 1 else "") + " ".join(said_once)
    below = [Text(f"\n{shared[0].upper()}{shared[1:]}", style=FAINT)] if said_once else []
    return draw([head], width, color) + "\n".join(lines) + "\n" + (draw(below, width, color) if below else "")


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    """Made by hand: rich takes half a millisecond for a row."""
    padded = (set_cell_size(_cut(cell, width), width) for cell, width in zip(cells, widths, strict=True))
    return (" " * GAP).join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


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
