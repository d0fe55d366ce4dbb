"""What `torchmark list --publications` says: which there are, and every figure of one as it was printed."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.cli.output import terminal_width, use_color
from torchmark.publications import find_publication, names
from torchmark.publications.contract import Publication, PublishedTable
from torchmark.report.console import draw, quiet_table
from torchmark.report.json import pretty

_WIDTH = 80


def describe_publications(name: str | None, form: str) -> str:
    """All of them with their counts, or everything about one; for people or as JSON."""
    chosen = [find_publication(each) for each in ([name] if name else names())]
    if form == "json":
        return _json(chosen, whole=name is not None)
    return _page(chosen[0]) if name else _overview(chosen)


def _overview(publications: list[Publication]) -> str:
    counts = {each.name: _count(each) for each in publications} | {"all": _count(*publications)}
    wide = max(map(len, counts))
    lines = [f"{'publication':{wide}}" + "".join(f"  {title:>8}" for title in counts["all"])]
    lines += [
        f"{name:{wide}}" + "".join(f"  {count or '-':>8}" for count in each.values()) for name, each in counts.items()
    ]
    for each in publications:
        machines = ", ".join(machine.name for machine in each.machines)
        lines += [
            "",
            f"{each.name}: {_title(each)}",
            fill(machines, _WIDTH, initial_indent="  ", subsequent_indent="  "),
        ]
    example = publications[0].name
    return "\n".join(
        [
            *lines,
            "",
            f"torchmark list --publications {example}",
            "    every figure as it was printed",
            f"torchmark show {example}",
            "    the same per step, with what to be careful about",
        ]
    )


def _count(*publications: Publication) -> dict[str, int]:
    """How much there is, by kind."""
    return {
        "measured": sum(len(each.of_kind("measured")) for each in publications),
        "powers": sum(len(each.of_kind("power")) for each in publications),
        "speedups": sum(len(each.of_kind("derived")) for each in publications),
        "machines": sum(len(each.machines) for each in publications),
    }


def _title(publication: Publication) -> str:
    return publication.title + (f" ({publication.year})" if publication.year else "")


def _page(publication: Publication) -> str:
    machines = Table.grid(padding=(0, 2, 0, 0))
    for each in publication.machines:
        cores, memory = f", {each.cores} cores" * bool(each.cores), f", {each.memory_gib} GB" * bool(each.memory_gib)
        machines.add_row(each.name, each.device, each.hardware + cores + memory)
    parts: list[RenderableType] = [
        Text(f"{publication.name}: {_title(publication)}", style="bold"),
        Text(f"{publication.source}. {publication.about}"),
        Text("\n" + ", ".join(f"{count} {title}" for title, count in _count(publication).items() if count)),
        Padding(machines, (0, 0, 0, 2)),
    ]
    for table in publication.tables:
        parts += [Text(f"\n{table.title}", style="bold"), Text(table.protocol, style="dim"), Text(""), _table(table)]
    commands = f"\ntry\n  torchmark show {publication.name}\n  torchmark replicate {publication.name} --scale 0.01"
    return draw([*parts, Text(commands)], terminal_width(), use_color())


def _table(table: PublishedTable) -> RenderableType:
    """The table in its own shape: a line for each row, a column for each heading."""
    columns = list(dict.fromkeys(figure.column for figure in table.figures))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for figure in table.figures:
        cells.setdefault(figure.labels, {})[figure.column] = figure.printed
    rows = [[*labels, *(row.get(column, "") for column in columns)] for labels, row in cells.items()]
    drawn = quiet_table()
    for index, title in enumerate([*table.headers, *columns]):
        widest = max(len(row[index]) for row in rows)
        drawn.add_column(title, justify="left" if index < len(table.headers) else "right", min_width=widest)
    for row in rows:
        drawn.add_row(*row)
    return Padding(drawn, (0, 0, 0, 2))


def _json(publications: list[Publication], whole: bool) -> str:
    facts: list[Any] = [msgspec.to_builtins(each) | {"counts": _count(each)} for each in publications]
    if not whole:
        facts = [{key: value for key, value in each.items() if key not in ("tables", "notes")} for each in facts]
    return pretty({"publications": facts, "counts": _count(*publications)})
