"""Many machines: a leaderboard, and a fleet with its jobs and results."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from torchmark.analyze.efficiency import Scaling, find_scaling
from torchmark.analyze.machines import Board, Entry, KindRow, Outlier, Overall, Place, Standing, find_outliers, tabulate
from torchmark.analyze.pairing import grouped
from torchmark.analyze.wording import counted
from torchmark.records import DISTURBED, Remark, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import machine_line
from torchmark.report.run import scaling_section
from torchmark.report.text import clean_record, shorten

BOARDS_SHOWN = 100  # on a page and in Markdown; CSV and JSON have them all
FAILURES_SHOWN = 3  # of each board
PROBLEMS_SHOWN = 20
_OPEN = 3  # boards that a page shows unfolded

RULES = (
    "Only the same work is ranked: one task, version, precision and procedure. A machine has one place per choice of "
    "settings, by its latest undisturbed result. A rank is shared (=) where intervals overlap. A result graded poor "
    "has no rank: other programs were busy, or its ± is above 15% or unknown. Files were checked as by "
    "`torchmark check`, except for raw samples: those that fail are listed at the end."
)
_CSV = doc.fields("""
    task version dtype procedure rank tied cpu cores memory_gib device model setting rate low high unit
    center_s status reason verdict grade disturbed runs torch created label run file case
""")


class Source(Struct, frozen=True):  # of a leaderboard; its folder is not shared
    files: int
    results: int
    problems: tuple[str, ...] = ()


def leaderboard_document(
    boards: Sequence[Board], source: Source, version: str = "", overall: Overall | None = None
) -> doc.Document:

    def json() -> dict[str, Any]:
        kinds = ("places", "disturbed", "failed")
        places = [{kind: [_record(each, place) for place in getattr(each, kind)] for kind in kinds} for each in boards]
        plain = [asdict(board) | own for board, own in zip(boards, places, strict=True)]
        return {"source": source, "overall": overall, "boards": plain}

    records = doc.Records(_CSV, lambda: (_record(each, place) for each in boards for place in _places(each)), json)
    return doc.Document(lambda: _blocks(boards, source, overall), records, version)


def _blocks(boards: Sequence[Board], source: Source, overall: Overall | None) -> Iterator[doc.Block]:
    facts = (_count(source.files, "run file"), _count(source.results, "result"), _count(len(boards), "board"))
    yield doc.Title("Leaderboard", facts)
    if overall:
        columns = [
            doc.Column("#", "figure", of=_rank),
            doc.Column("machine", of=_described),
            doc.Column("speed", "figure", of="score", written=units.percent),
            doc.Column("±", "figure", of=lambda each: units.relative((each.high - each.low) / 2 / each.score)),
        ]
        table = doc.table(columns, overall.standings, caption="Machines over the cases they share.")
        rests = f"Geometric mean speed over the {_count(len(overall.tasks), 'case')} that at least half of all machines"
        lead = f"{rests} did, relative to the fastest at each: {shorten(', '.join(overall.tasks), 300)}."
        missing = f" {_count(overall.missing_count, 'machine')} without all of them: not ranked here."
        yield doc.Section("Overall", [table], lead + missing * bool(overall.missing_count), "overall")
    shown = []
    for number, board in enumerate(boards[:BOARDS_SHOWN]):
        title = shorten(f"{board.task} {board.dtype}{board.procedure} version {board.version}", 200)
        about = _count(board.ranked_count + board.disturbed_count + board.failed_count, "place")
        about += f" · first: {_machine(board.places[0].entry)}" if board.places else ""
        shown.append(doc.Section(title, _board(board), about, folded="open" if number < _OPEN else "closed"))
    cut = f"Shown are the {BOARDS_SHOWN} boards with the most places of {len(boards):,}; CSV and JSON have them all."
    yield doc.Section("Boards", shown, RULES + f" {cut}" * (len(boards) > BOARDS_SHOWN), "boards")
    problems = [Remark("file", shorten(each)) for each in source.problems[:PROBLEMS_SHOWN]]
    more = len(source.problems) - PROBLEMS_SHOWN
    problems += [Remark("file", f"and {more:,} more")] if more > 0 else []
    yield doc.Section("Files that were left out", [doc.Remarks(problems)], anchor="problems")


def _board(board: Board) -> list[doc.Block]:
    shown = _places(board, FAILURES_SHOWN)
    most = max((min(place.high, 2 * place.rate) for place in shown if place.rate), default=1.0)

    def row(place: Place) -> tuple[str | doc.Cell, ...]:
        entry, rate = place.entry, place.rate
        low, middle, high = (100 / most * each for each in (place.low, rate, place.high))
        bar = (low, middle, min(high, 100.0)) if rate else None
        half = (place.high - place.low) / 2 / rate if rate and entry.verdict != "as-published" else None
        failure = ": ".join(filter(None, (entry.status, shorten(entry.reason or "", 120))))
        origin = " · ".join(filter(None, (shorten(entry.label or "", 40), shorten(entry.run, 12))))
        return (
            _rank(place),
            f"{_described(entry)} {shorten(entry.setting, 80)}".strip(),
            doc.Cell(units.rate(rate, board.unit), bar=bar),
            units.relative(half),
            units.duration(entry.center_s if rate else None),
            doc.judged(entry.grade if rate else failure),
            shorten(entry.torch or units.NOTHING, 20),
            doc.Cell(entry.created[:10], note=origin),
            f"{place.runs:,}",
        )

    numbers, minor = ("#", "rate", "±", "per step", "runs"), ("±", "per step", "torch", "measured", "runs")
    titles = ("#", "machine", "rate", "±", "per step", "grade", "torch", "measured", "runs")
    columns = [doc.Column(it, "figure" if it in numbers else "text", minor=it in minor) for it in titles]
    ranked = board.ranked_count - len(board.places)
    disturbed = board.disturbed_count - len(board.disturbed[:FAILURES_SHOWN])
    failed = board.failed_count - len(board.failed[:FAILURES_SHOWN])
    left = [_count(ranked, "slower place")] if ranked else []
    left += [f"{count:,} {what}" for count, what in ((disturbed, "graded poor"), (failed, "that failed")) if count]
    return [doc.Table(columns, list(map(row, shown))), doc.Lines([f"Not shown: {', '.join(left)}." if left else ""])]


def _rank(each: Place | Standing) -> str:
    return f"{each.rank}{'=' if each.tied else ''}" if each.rank else units.NOTHING


def _places(board: Board, most: int | None = None) -> list[Place]:
    return [*board.places, *board.disturbed[:most], *board.failed[:most]]


def _machine(entry: Entry | Standing) -> str:
    return shorten(entry.cpu if entry.device == "cpu" else entry.model or entry.device, 80)


def _described(entry: Entry | Standing) -> str:
    """Xeon Gold (32 cores, 64 GiB); H100 (Xeon Gold, 32 cores, 64 GiB)"""
    cpu = "" if entry.device == "cpu" else f"{shorten(entry.cpu, 80)}, "
    return f"{_machine(entry)} ({cpu}{_count(entry.cores, 'core')}, {entry.memory_gib} GiB)"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _record(board: Board, place: Place) -> dict[str, Any]:
    about = asdict(place.entry) | {"unit": board.unit, "rank": place.rank, "tied": place.tied, "runs": place.runs}
    high = place.high if 0 < place.high < math.inf else None
    return about | {"rate": place.rate or None, "low": place.low or None, "high": high}


class Member(Struct, frozen=True):  # one job of a fleet
    label: str
    kind: str
    about: str  # the kind in the scheduler's words
    state: str
    reason: str = ""
    nodes: int = 1
    names: tuple[str, ...] = ()  # of the nodes, if asked for
    run: Run | None = None

    @property
    def measured(self) -> int:  # cases that have a result, even a failure
        return sum(result.status != "interrupted" for result in self.run.results) if self.run else 0

    @property
    def planned(self) -> int | None:  # cases to measure; None until the node knows
        return len(self.run.header.cases) if self.run else None

    @property
    def cases(self) -> str:
        return units.NOTHING if self.planned is None else f"{self.measured}/{self.planned}"

    @property
    def facts(self) -> dict[str, Any]:
        names = ("label", "kind", "about", "state", "reason", "measured", "planned", "nodes", "names")
        return {name: getattr(self, name) for name in names}


def gathered_document(members: Sequence[Member]) -> doc.Document:
    members = tuple(map(clean_record, members))
    runs = [member.run for member in members if member.run]
    alone = [(each.kind, each.run) for each in members if each.run and each.nodes == 1]
    teams = any(each.nodes > 1 for each in members)
    kinds = () if teams else tabulate(alone)
    outliers = find_outliers([run for _, run in alone])
    scalings = find_scaling([result for run in runs for result in run.results]) if teams else ()

    def json() -> dict[str, Any]:
        return {
            "nodes": [each.facts for each in members],
            "kinds": kinds,
            "outliers": [asdict(each) | {"text": each.text} for each in outliers],
            "scaling": scalings,
            "runs": [figures.run_object(run) for run in runs],
        }

    return doc.Document(lambda: _fleet_blocks(members, kinds, outliers, scalings), figures.records_of(runs, json=json))


def status_document(members: Sequence[Member], shown: Sequence[Member] = ()) -> doc.Document:
    """The state of all jobs; the table may show a part of them."""
    shown = shown or members
    columns = [
        doc.Column("node", "name", of="label"),
        doc.Column("name", shown=any(member.names for member in shown), of="names", written=",".join),
        doc.Column("kind", of="about"),
        doc.Column("state", "name", of=lambda each: doc.judged(each.state)),
        doc.Column("cases", "name", of="cases"),
        doc.Column("", of="reason"),
    ]
    table = doc.table(columns, shown)
    records = doc.Records(json=lambda: {"nodes": [each.facts for each in members]})
    return doc.Document(lambda: [_summary(members), table], records)


def _summary(members: Sequence[Member]) -> doc.Title:
    """20 nodes of 3 kinds: 12 done, 8 running"""
    kinds = len({member.about for member in members})
    noun = "job" if any(member.nodes > 1 for member in members) else "node"
    counts = ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in members).most_common())
    return doc.Title(f"{counted(len(members), noun)}{f' of {kinds} kinds' if kinds > 1 else ''}: {counts}")


def _fleet_blocks(
    members: Sequence[Member], rows: Sequence[KindRow], outliers: Sequence[Outlier], scalings: Sequence[Scaling]
) -> Iterator[doc.Block]:
    columns = [
        doc.Column("case", "case", repeats="blank", of="case"),
        doc.Column("kind", "name", shown=len({row.kind for row in rows}) > 1, of="kind"),
        doc.Column("nodes", "figure", of="machines", written=str),
        doc.Column("per step", "figure", of="step_s", written=units.duration),
        doc.Column("±", "figure", of="spread", written=units.relative),
        doc.Column("rate", "figure", of=lambda row: units.rate(row.rate, row.unit)),
        doc.Column("verdict", of="verdicts", written=", ".join),
    ]
    # In words: of the nodes themselves, else of the scheduler.
    kinds = {member.kind: member.about for member in reversed(members)}
    known = [(member.kind, member.run.header.machine) for member in members if member.run]
    kinds |= {kind: machine_line(machine) for kind, machine in known if machine.cpu}
    yield _summary(members)
    yield doc.Facts(sorted(kinds.items()))
    yield doc.table(columns, rows)
    note = "± is half the range between the nodes of a kind; of a single node it is half its 95% interval."
    yield doc.quiet(note if rows else "")
    yield from (scaling_section(each, nodes=True) for each in scalings)
    disturbed: dict[str, dict[str, None]] = {}  # what slowed rows of a scaling table
    lost: list[Remark] = []  # unlike the table of kinds, a scaling table has no failures
    for label, run in [(member.label, member.run) for member in members if member.run]:
        for result in run.results if scalings else ():
            if result.estimate and result.estimate.verdict in DISTURBED:
                job = f"{label} with {counted(result.case.workers, 'worker')}"
                disturbed.setdefault(result.estimate.verdict, {})[job] = None
        failures = () if rows else figures.failures(run.results, lambda result: result.case.text).remarks
        lost += [replace(each, cases=tuple(f"{label}: {case}" for case in each.cases)) for each in failures]
    yield doc.remarks("Disturbed", [Remark(verdict, ", ".join(jobs)) for verdict, jobs in disturbed.items()])
    yield doc.remarks("Outliers", [outlier.text for outlier in outliers])
    yield doc.remarks("Without a figure", lost)
    undone = grouped((each for each in members if each.state != "done"), attrgetter("state", "reason"))
    missing = []
    for (state, reason), jobs in undone.items():
        names = (each.label + ("" if each.planned is None else f" ({each.cases} cases)") for each in jobs)
        missing.append(Remark(state, ": ".join(filter(None, (", ".join(names), reason)))))
    yield doc.remarks("Not measured, or not all", missing)
