"""Runs of several machines in one table, each case with the machines below it: how a publication is read."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.errors import UnknownName
from torchmark.records import Caution, Result, Run
from torchmark.report import FORMATS, csv, figures, json, markdown, units
from torchmark.report.console import draw, section
from torchmark.report.names import Names, place
from torchmark.report.text import clean, clean_run

_COLUMNS = ("machine", "per step", "published", "rate", "care")
_LEFT = ("machine", "care")
_INDENT = (0, 0, 0, 2)


class _Row(Struct, frozen=True):
    """One figure: the case without its device, the machine, and the result."""

    case: str
    machine: str
    result: Result


def render_machines(
    runs: Sequence[Run],
    heading: Sequence[str],
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
) -> str:
    """All runs in one of FORMATS. The first line of the heading is its title."""
    runs, heading = [clean_run(run) for run in runs], [clean(line) for line in heading]
    match format:
        case "table":
            return draw(_table(_rows(runs), heading), width, color)
        case "md":
            return _markdown(_rows(runs), heading)
        case "csv":
            return csv.render_csv(*runs)
        case "json":
            return json.render_runs(runs)
        case "jsonl":
            return "".join(map(json.render_jsonl, runs))
    raise UnknownName("format", format, FORMATS)


def _rows(runs: Sequence[Run]) -> list[_Row]:
    """All results, those of the same case together."""
    rows = [
        _Row(Names(place(result)).of(result), str(result.settings.get("machine")), result)
        for run in runs
        for result in run.results
    ]
    order = list(dict.fromkeys(row.case for row in rows))
    return sorted(rows, key=lambda row: order.index(row.case))


def _table(rows: Sequence[_Row], heading: Sequence[str]) -> list[RenderableType]:
    letters = _letters(rows)
    cells = [(row.machine, *_figures(row.result), _marks(row.result, letters)) for row in rows]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *cells, strict=True)]
    parts: list[RenderableType] = [Text(heading[0], style="bold")]
    parts += [Text(line, style="dim") for line in heading[1:]]
    parts += [Text(""), Padding(_grid([_COLUMNS], widths, "dim"), _INDENT)]
    for case in dict.fromkeys(row.case for row in rows):
        parts.append(Text(case, style="bold"))
        parts.append(Padding(_grid([cells[i] for i, row in enumerate(rows) if row.case == case], widths), _INDENT))
    care = [(f"{letter} {caution.kind}".strip(), _words(caution, letter)) for caution, letter in letters.items()]
    return [*parts, *section("Care", care)]


def _grid(rows: Sequence[Sequence[str]], widths: Sequence[int], style: str = "") -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for title, width in zip(_COLUMNS, widths, strict=True):
        grid.add_column(justify="left" if title in _LEFT else "right", no_wrap=True, width=width, style=style)
    for row in rows:
        grid.add_row(*row)
    return grid


def _letters(rows: Sequence[_Row]) -> dict[Caution, str]:
    """All cautions in the order in which they come up, with a letter for each that is about some figures only."""
    known = [row.result.cautions for row in rows if row.result.estimate]
    found = dict.fromkeys(caution for cautions in known for caution in cautions)
    some = [caution for caution in found if not all(caution in cautions for cautions in known)]
    named = dict(zip(some, ascii_lowercase, strict=False))
    return {caution: named.get(caution, "") for caution in sorted(found, key=lambda caution: caution in named)}


def _figures(result: Result) -> tuple[str, str, str]:
    if result.estimate is None:
        return units.NOTHING, result.status, units.NOTHING
    rate = units.rate(figures.step_rate(result), result.work.unit if result.work else "")
    return figures.step_time(result.estimate), figures.printed(result), rate


def _marks(result: Result, letters: dict[Caution, str]) -> str:
    return "".join(sorted(letters[caution] for caution in result.cautions))


def _words(caution: Caution, letter: str) -> str:
    return f"{'' if letter else 'all figures: '}{caution.cause}\n→ {caution.cure}"


def _markdown(rows: Sequence[_Row], heading: Sequence[str]) -> str:
    letters, escape = _letters(rows), markdown.escape
    cells = [
        [markdown.code(row.case), escape(row.machine), *map(escape, _figures(row.result)), _marks(row.result, letters)]
        for row in rows
    ]
    care = [
        " ".join(["-", letter, f"**{escape(caution.kind)}**:", escape(_words(caution, letter))]).split()
        for caution, letter in letters.items()
    ]
    title, *about = map(escape, heading)
    parts = [
        f"**{title}**",
        *about,
        markdown.table(("case", *_COLUMNS), cells, right=range(2, 5)),
        "\n".join(map(" ".join, care)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
