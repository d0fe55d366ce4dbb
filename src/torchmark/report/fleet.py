"""A fleet as text: how its jobs stand, and all that its nodes measured in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.analyze.kinds import KindRow, tabulate
from torchmark.analyze.outliers import Outlier, find_outliers
from torchmark.analyze.scaling import Scaling, find_scaling
from torchmark.errors import UnknownName
from torchmark.records import Run
from torchmark.report import FORMATS, csv, json, markdown, scaling, units
from torchmark.report.console import draw, fold_case, quiet_table, section
from torchmark.report.headings import machine_line
from torchmark.report.text import clean, clean_record

_STATES = {"done": "green", "running": "bold", "waiting": "dim"}
_NARROWEST_CASE, _GAP = 16, 2
_NOTE = "± is half the range between the nodes of a kind; of a single node it is half its 95% interval."


class Member(Struct, frozen=True):
    """One job of a fleet: who does it, how it stands, and what it has measured."""

    label: str
    kind: str
    about: str  # the kind, as the scheduler describes it
    state: str
    reason: str = ""
    measured: int = 0
    planned: int | None = None
    nodes: int = 1
    names: tuple[str, ...] = ()  # of the nodes, where they are asked for
    run: Run | None = None

    @property
    def cases(self) -> str:
        return units.NOTHING if self.planned is None else f"{self.measured}/{self.planned}"

    def facts(self) -> dict[str, Any]:
        """All but the run."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "run"}


class Gathered(Struct, frozen=True):
    """Everything that a fleet has to say."""

    members: tuple[Member, ...]
    rows: tuple[KindRow, ...]
    outliers: tuple[Outlier, ...]
    scalings: tuple[Scaling, ...]


def gather(members: Sequence[Member]) -> Gathered:
    """Put together what single nodes measured, and apart from it what several did together."""
    members = tuple(map(clean_record, members))
    alone = [(each, each.run) for each in members if each.run and each.nodes == 1]
    teams = any(each.nodes > 1 for each in members)
    results = [result for each in members if each.run for result in each.run.results]
    return Gathered(
        members=members,
        rows=() if teams else tabulate((each.kind, run) for each, run in alone),
        outliers=find_outliers([run for _, run in alone]),
        scalings=find_scaling(results) if teams else (),
    )


def render_gathered(found: Gathered, format: str = "table", width: int = 80, color: bool = False) -> str:  # noqa: A002
    """All of it, in one of FORMATS."""
    runs = [member.run for member in found.members if member.run]
    match format:
        case "table":
            return draw(_parts(found, width), width, color)
        case "md":
            return _markdown(found)
        case "csv":
            return csv.render_csv(*runs)
        case "json":
            more = {"nodes": [member.facts() for member in found.members], "kinds": found.rows}
            more |= {"outliers": [_facts(each) for each in found.outliers], "scaling": found.scalings}
            return json.render_runs(runs, more=more)
        case "jsonl":
            return "".join(map(json.render_jsonl, runs))
    raise UnknownName("format", format, FORMATS)


def render_status(members: Sequence[Member], format: str = "table", width: int = 80, color: bool = False) -> str:  # noqa: A002
    """How every job stands, as a table or as JSON."""
    members = [clean_record(msgspec.structs.replace(member, run=None)) for member in members]
    if format == "json":
        return json.pretty({"nodes": [member.facts() for member in members]})
    return draw([Text(summary(members), style="bold"), Text(""), status_table(members)], width, color)


def status_table(members: Sequence[Member]) -> Table:
    """A line for each job."""
    named = any(member.names for member in members)
    table = _table("node", *(["name"] if named else []), "kind", "state", "cases", "")
    for member in members:
        names = [",".join(member.names)] if named else []
        state = Text(member.state, style=_STATES.get(member.state, "red"))
        label, about, reason = (clean(text) for text in (member.label, member.about, member.reason))
        table.add_row(label, *names, about, state, member.cases, reason)
    return table


def summary(members: Sequence[Member]) -> str:
    """20 nodes of 3 kinds: 12 done, 8 running"""
    states = Counter(member.state for member in members)
    kinds = len({member.about for member in members})
    teams = any(member.nodes > 1 for member in members)
    what = f"{len(members)} job{'s' if len(members) != 1 else ''}" if teams else _nodes(len(members))
    of = f" of {kinds} kinds" if kinds > 1 else ""
    return f"{what}{of}: " + ", ".join(f"{count} {state}" for state, count in states.most_common())


def _parts(found: Gathered, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(summary(found.members), style="bold")]
    parts += [Text(f"{kind}  {about}", style="dim") for kind, about in _kinds(found.members).items()]
    if found.rows:
        parts += [Text(""), _figures(found.rows, width), Text(f"\n{_NOTE}", style="dim")]
    for name, rows, note in scaling.tables_of_nodes(found.scalings):
        table = _table(*scaling.COLUMNS_OF_NODES, right=range(6))
        for cells in rows:
            table.add_row(*cells)
        parts += [Text(f"\nScaling of {name}", style="bold"), Padding(table, (0, 0, 0, 2))]
        parts.append(Padding(Text(note, style="dim"), (0, 0, 0, 2)))
    parts += section("Disturbed", _disturbed(found))
    parts += section("Standing out", [("", outlier.text) for outlier in found.outliers])
    return [*parts, *section("Not measured, or not all", _missing(found.members))]


def _figures(rows: Sequence[KindRow], width: int) -> Table:
    """The case and the verdicts are broken before a figure is."""
    titles = ["case", *(["kind"] if len({row.kind for row in rows}) > 1 else []), "nodes", "per step", "±", "rate"]
    lines = [[row.case, *([row.kind] if "kind" in titles else []), *_cells(row)] for row in rows]
    word = max(len(word) for row in rows for verdict in (*row.verdicts, "verdict") for word in verdict.split())
    taken = [max(len(line[column]) for line in (titles, *lines)) + _GAP for column in range(1, len(titles))]
    room = max(width - sum(taken) - _GAP - word, _NARROWEST_CASE)
    table = _table(*titles, "verdict", right=range(1, len(titles)))
    table.columns[0].no_wrap, table.columns[-1].min_width = True, word
    for before, row, (case, *cells) in zip((None, *rows), rows, lines, strict=False):
        name = "" if before and before.case == case else fold_case(case, room)
        table.add_row(name, *cells, ", ".join(row.verdicts))
    return table


def _cells(row: KindRow) -> list[str]:
    rate = units.rate(row.rate, row.unit)
    return [str(row.machines), units.duration(row.step_s), units.relative(row.spread), rate]


def _kinds(members: Sequence[Member]) -> dict[str, str]:
    """Each kind in words: as its nodes describe themselves, else as the scheduler does."""
    found: dict[str, str] = {}
    for member in members:
        if member.run and member.run.header.machine.cpu:
            found[member.kind] = machine_line(member.run.header.machine)
        else:
            found.setdefault(member.kind, member.about)
    return dict(sorted(found.items()))


def _disturbed(found: Gathered) -> list[tuple[str, str]]:
    """What a scaling table does not say of its rows: which of them something else slowed down."""
    alike: dict[str, list[str]] = {}
    for member in found.members if found.scalings else ():
        for result in member.run.results if member.run else ():
            if result.estimate and result.estimate.verdict in ("contended", "throttled"):
                name = f"{member.label} with {result.case.workers} worker{'s' if result.case.workers != 1 else ''}"
                alike.setdefault(result.estimate.verdict, []).append(name)
    return [(verdict, ", ".join(dict.fromkeys(names))) for verdict, names in alike.items()]


def _missing(members: Sequence[Member]) -> list[tuple[str, str]]:
    alike: dict[tuple[str, str], list[str]] = {}
    for member in members:
        if member.state != "done":
            cases = "" if member.planned is None else f" ({member.cases} cases)"
            alike.setdefault((member.state, member.reason), []).append(f"{member.label}{cases}")
    return [(state, ", ".join(names) + (f"\n{reason}" if reason else "")) for (state, reason), names in alike.items()]


def _markdown(found: Gathered) -> str:
    escape, code = markdown.escape, markdown.code
    parts = [f"**{escape(summary(found.members))}**"]
    parts.append("\n".join(f"- {kind}: {escape(about)}" for kind, about in _kinds(found.members).items()))
    if found.rows:
        cells = [
            [code(row.case), row.kind, *map(escape, _cells(row)), escape(", ".join(row.verdicts))] for row in found.rows
        ]
        columns = ("case", "kind", "nodes", "per step", "±", "rate", "verdict")
        parts += [markdown.table(columns, cells, right=range(2, 6)), _NOTE]
    for name, rows, note in scaling.tables_of_nodes(found.scalings):
        table = markdown.table(scaling.COLUMNS_OF_NODES, [list(map(escape, row)) for row in rows], right=range(6))
        parts += [f"Scaling of {code(name)}", table, escape(note)]
    notes = [f"- {verdict}: {escape(names)}" for verdict, names in _disturbed(found)]
    notes += [f"- {escape(outlier.text)}" for outlier in found.outliers]
    notes += [f"- {state}: {escape(text)}".replace("\n", ": ") for state, text in _missing(found.members)]
    return "\n\n".join(part for part in (*parts, "\n".join(notes)) if part) + "\n"


def _table(*titles: str, right: Sequence[int] = ()) -> Table:
    table = quiet_table()
    for index, title in enumerate(titles):
        figure = index in right and title not in ("kind", "verdict")
        table.add_column(title, justify="right" if figure else "left", no_wrap=figure)
    return table


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def _facts(outlier: Outlier) -> dict[str, Any]:
    return msgspec.structs.asdict(outlier) | {"text": outlier.text}
