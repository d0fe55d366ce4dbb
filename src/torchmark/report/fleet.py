"""A fleet: the state of its jobs, and all that its nodes measured in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.efficiency import Scaling, find_scaling
from torchmark.analyze.machines import KindRow, Outlier, find_outliers, tabulate
from torchmark.analyze.wording import counted
from torchmark.records import DISTURBED, Remark, Run
from torchmark.report import document as doc
from torchmark.report import units
from torchmark.report.names import machine_line
from torchmark.report.results import failures, run_object, run_records
from torchmark.report.run import scaling_section
from torchmark.report.text import clean_record

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


def gathered_document(found: Gathered) -> doc.Document:
    """Everything that a fleet has measured."""
    runs = [member.run for member in found.members if member.run]

    def json() -> dict[str, Any]:
        about = {"nodes": [member.facts() for member in found.members], "kinds": found.rows}
        about |= {
            "outliers": [msgspec.structs.asdict(each) | {"text": each.text} for each in found.outliers],
            "scaling": found.scalings,
        }
        return about | {"runs": [run_object(run) for run in runs]}

    return doc.Document(lambda: _blocks(found), run_records(runs, json=json))


def status_document(members: Sequence[Member], shown: Sequence[Member] | None = None) -> doc.Document:
    """The state of every job, or of those that there is room for."""
    records = doc.Records(json=lambda: {"nodes": [member.facts() for member in members]})
    return doc.Document(
        lambda: [doc.Title(summary(members)), _status_table(members if shown is None else shown)], records
    )


def _status_table(members: Sequence[Member]) -> doc.Table:
    named = any(member.names for member in members)
    titles = ("node", *(["name"] if named else []), "kind", "state", "cases", "")
    rows: list[doc.Row] = []
    for each in members:
        names = [",".join(each.names)] if named else []
        rows.append([each.label, *names, each.about, doc.judged(each.state), each.cases, each.reason])
    kept = ("node", "state", "cases")
    return doc.Table([doc.Column(title, "name" if title in kept else "text") for title in titles], rows)


def summary(members: Sequence[Member]) -> str:
    """20 nodes of 3 kinds: 12 done, 8 running"""
    states = Counter(member.state for member in members)
    kinds = len({member.about for member in members})
    teams = any(member.nodes > 1 for member in members)
    of = f" of {kinds} kinds" if kinds > 1 else ""
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{counted(len(members), 'job' if teams else 'node')}{of}: {counts}"


def _blocks(found: Gathered) -> Iterator[doc.Block]:
    yield doc.Title(summary(found.members))
    yield doc.Facts(list(_kinds(found.members).items()))
    if found.rows:
        yield _figures(found.rows)
        yield doc.Lines([doc.Cell(_NOTE, "quiet")])
    yield from (scaling_section(each, nodes=True) for each in found.scalings)
    groups = {
        "Disturbed": _disturbed(found),
        "Outliers": [Remark("", outlier.text) for outlier in found.outliers],
        "Without a figure": [] if found.rows else _failed(found.members),
        "Not measured, or not all": _missing(found.members),
    }
    yield from (doc.Section(title, [doc.Remarks(remarks)]) for title, remarks in groups.items() if remarks)


def _figures(rows: Sequence[KindRow]) -> doc.Table:
    kinds = [doc.Column("kind", "name")] if len({row.kind for row in rows}) > 1 else []
    figures = [doc.Column(title, "figure") for title in ("nodes", "per step", "±", "rate")]
    columns = [doc.Column("case", "case", repeats="blank"), *kinds, *figures, doc.Column("verdict")]
    cells = []
    for row in rows:
        step, spread, rate = units.duration(row.step_s), units.relative(row.spread), units.rate(row.rate, row.unit)
        kind = [row.kind] if kinds else []
        cells.append([row.case, *kind, str(row.machines), step, spread, rate, ", ".join(row.verdicts)])
    return doc.Table(columns, cells)


def _kinds(members: Sequence[Member]) -> dict[str, str]:
    """Each kind in words: as its nodes describe themselves, else as the scheduler does."""
    found: dict[str, str] = {}
    for member in members:
        if member.run and member.run.header.machine.cpu:
            found[member.kind] = machine_line(member.run.header.machine)
        else:
            found.setdefault(member.kind, member.about)
    return dict(sorted(found.items()))


def _disturbed(found: Gathered) -> list[Remark]:
    """Which rows of a scaling table something else slowed down."""
    alike: dict[str, list[str]] = {}
    for member in found.members if found.scalings else ():
        for result in member.run.results if member.run else ():
            if result.estimate and result.estimate.verdict in DISTURBED:
                name = f"{member.label} with {counted(result.case.workers, 'worker')}"
                alike.setdefault(result.estimate.verdict, []).append(name)
    return [Remark(verdict, ", ".join(dict.fromkeys(names))) for verdict, names in alike.items()]


def _failed(members: Sequence[Member]) -> list[Remark]:
    """Cases of nodes that work together: unlike the table of kinds, a scaling table has no row for a failure."""
    found: list[Remark] = []
    for member in members:
        named = (failures(member.run.results, lambda each: each.case.text) if member.run else doc.Remarks(())).remarks
        found += [replace(each, cases=tuple(f"{member.label}: {case}" for case in each.cases)) for each in named]
    return found


def _missing(members: Sequence[Member]) -> list[Remark]:
    alike: dict[tuple[str, str], list[str]] = {}
    for member in members:
        if member.state != "done":
            cases = "" if member.planned is None else f" ({member.cases} cases)"
            alike.setdefault((member.state, member.reason), []).append(f"{member.label}{cases}")
    return [
        Remark(state, ": ".join(filter(None, (", ".join(names), reason)))) for (state, reason), names in alike.items()
    ]
