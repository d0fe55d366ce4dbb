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
        return {name: each for name, each in msgspec.structs.asdict(self).items() if name != "run"}


def gathered_document(members: Sequence[Member]) -> doc.Document:
    """What single nodes measured, and apart from it what several did together."""
    members = tuple(map(clean_record, members))
    runs = [member.run for member in members if member.run]
    alone = [(each.kind, each.run) for each in members if each.run and each.nodes == 1]
    teams = any(each.nodes > 1 for each in members)
    kinds = () if teams else tabulate(alone)
    outliers = find_outliers([run for _, run in alone])
    scalings = find_scaling([result for run in runs for result in run.results]) if teams else ()

    def json() -> dict[str, Any]:
        return {
            "nodes": [member.facts() for member in members],
            "kinds": kinds,
            "outliers": [msgspec.structs.asdict(each) | {"text": each.text} for each in outliers],
            "scaling": scalings,
            "runs": [run_object(run) for run in runs],
        }

    return doc.Document(lambda: _blocks(members, kinds, outliers, scalings), run_records(runs, json=json))


def status_document(members: Sequence[Member], shown: Sequence[Member] | None = None) -> doc.Document:
    """The state of every job, or of those that there is room for."""
    shown = members if shown is None else shown
    named = any(member.names for member in shown)
    columns = [
        doc.Column("node", "name", of="label"),
        doc.Column("name", shown=named, of=lambda each: ",".join(each.names)),
        doc.Column("kind", of="about"),
        doc.Column("state", "name", of=lambda each: doc.judged(each.state)),
        doc.Column("cases", "name", of="cases"),
        doc.Column("", of="reason"),
    ]
    table = doc.table(columns, shown)
    records = doc.Records(json=lambda: {"nodes": [member.facts() for member in members]})
    return doc.Document(lambda: [doc.Title(summary(members)), table], records)


def summary(members: Sequence[Member]) -> str:
    """20 nodes of 3 kinds: 12 done, 8 running"""
    kinds = len({member.about for member in members})
    teams = any(member.nodes > 1 for member in members)
    of = f" of {kinds} kinds" if kinds > 1 else ""
    counts = ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in members).most_common())
    return f"{counted(len(members), 'job' if teams else 'node')}{of}: {counts}"


def _blocks(
    members: Sequence[Member], rows: Sequence[KindRow], outliers: Sequence[Outlier], scalings: Sequence[Scaling]
) -> Iterator[doc.Block]:
    several = len({row.kind for row in rows}) > 1
    columns = [
        doc.Column("case", "case", repeats="blank", of="case"),
        doc.Column("kind", "name", shown=several, of="kind"),
        doc.Column("nodes", "figure", of=lambda row: str(row.machines)),
        doc.Column("per step", "figure", of=lambda row: units.duration(row.step_s)),
        doc.Column("±", "figure", of=lambda row: units.relative(row.spread)),
        doc.Column("rate", "figure", of=lambda row: units.rate(row.rate, row.unit)),
        doc.Column("verdict", of=lambda row: ", ".join(row.verdicts)),
    ]
    kinds: dict[str, str] = {}  # in words: as its nodes describe themselves, else as the scheduler does
    for member in members:
        if member.run and member.run.header.machine.cpu:
            kinds[member.kind] = machine_line(member.run.header.machine)
        else:
            kinds.setdefault(member.kind, member.about)
    yield doc.Title(summary(members))
    yield doc.Facts(sorted(kinds.items()))
    yield doc.table(columns, rows)
    note = "± is half the range between the nodes of a kind; of a single node it is half its 95% interval."
    yield doc.quiet(note if rows else "")
    yield from (scaling_section(each, nodes=True) for each in scalings)
    disturbed = doc.grouped(  # rows of a scaling table that something else slowed down
        (result.estimate.verdict, f"{member.label} with {counted(result.case.workers, 'worker')}")
        for member in members
        for result in (member.run.results if member.run and scalings else ())
        if result.estimate and result.estimate.verdict in DISTURBED
    )
    slowed = [Remark(verdict, ", ".join(dict.fromkeys(names))) for verdict, names in disturbed.items()]
    yield doc.Section("Disturbed", [doc.Remarks(slowed)])
    yield doc.remarks("Outliers", [outlier.text for outlier in outliers])
    lost: list[Remark] = []  # of teams: unlike the table of kinds, a scaling table has no failures
    for member in members:
        results = member.run.results if member.run and not rows else ()
        found_here = failures(results, lambda result: result.case.text).remarks
        lost += [replace(each, cases=tuple(f"{member.label}: {case}" for case in each.cases)) for each in found_here]
    yield doc.Section("Without a figure", [doc.Remarks(lost)])
    undone = doc.grouped(
        ((each.state, each.reason), each.label + ("" if each.planned is None else f" ({each.cases} cases)"))
        for each in members
        if each.state != "done"
    )
    missing = [Remark(key[0], ": ".join(filter(None, (", ".join(names), key[1])))) for key, names in undone.items()]
    yield doc.Section("Not measured, or not all", [doc.Remarks(missing)])
