"""A leaderboard: boards with their places, and what a reader must know about ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.analyze.machines import Board, Entry, Overall, Place, Standing
from torchmark.records import Remark
from torchmark.report import document as doc
from torchmark.report import units
from torchmark.report.text import shorten

FORMATS = ("html", "md", "csv", "json")
BOARDS_SHOWN = 100  # on a page and in Markdown; CSV and JSON have them all
FAILURES_SHOWN = 3  # of each board
PROBLEMS_SHOWN = 20
_KINDS = ("places", "disturbed", "failed")
_OPEN = 3  # boards that a page shows without a click

RULES = (
    "Only the same work is ranked: one task, version, precision and procedure. A machine takes one place for each "
    "choice of settings, with its latest undisturbed result. A rank is shared (=) where intervals overlap. A result "
    "graded poor has no rank: other programs were busy, or its ± is above 15% or unknown. Every file was checked as by "
    "`torchmark check`, but for its raw samples: one that fails is left out, and named at the end."
)
_FIELDS = """task version dtype procedure rank tied cpu cores memory_gib device model setting rate low high unit
    center_s status reason verdict grade disturbed runs torch created label run file case"""
_CSV: dict[str, doc.Field] = {name: name for name in _FIELDS.split()}


class Source(Struct, frozen=True):
    """What a leaderboard is made of: how much was read, and what could not be. The folder is not shared."""

    files: int
    results: int
    problems: tuple[str, ...] = ()


def leaderboard_document(
    boards: Sequence[Board], source: Source, version: str = "", overall: Overall | None = None
) -> doc.Document:
    """The boards with the most places first."""

    def json() -> dict[str, Any]:
        places = [{kind: [_record(each, place) for place in getattr(each, kind)] for kind in _KINDS} for each in boards]
        all_boards = [asdict(board) | own for board, own in zip(boards, places, strict=True)]
        return {"source": source, "overall": overall, "boards": all_boards}

    records = doc.Records(_CSV, lambda: (_record(each, place) for each in boards for place in _places(each)), json)
    return doc.Document(lambda: _blocks(boards, source, overall), records, version)


def _blocks(boards: Sequence[Board], source: Source, overall: Overall | None) -> Iterator[doc.Block]:
    facts = (_count(source.files, "run file"), _count(source.results, "result"), _count(len(boards), "board"))
    yield doc.Title("Leaderboard", facts)
    if overall:
        columns = [
            doc.Column("#", "figure", of=_rank),
            doc.Column("machine", of=_described),
            doc.Column("speed", "figure", of=lambda each: units.percent(each.score)),
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

    def rate(place: Place) -> doc.Cell:
        low, middle, high = (100 / most * rate for rate in (place.low, place.rate, place.high))
        return doc.Cell(units.rate(place.rate, board.unit), bar=(low, middle, min(high, 100.0)) if place.rate else None)

    def precision(place: Place) -> str:
        known = place.rate and place.entry.verdict != "as-published"
        return units.relative((place.high - place.low) / 2 / place.rate if known else None)

    def step(place: Place) -> str:
        return units.duration(place.entry.center_s if place.rate else None)

    def grade(place: Place) -> doc.Cell:
        failure = ": ".join(filter(None, (place.entry.status, shorten(place.entry.reason or "", 120))))
        return doc.judged(place.entry.grade if place.rate else failure)

    def measured(place: Place) -> doc.Cell:
        origin = (shorten(place.entry.label or "", 40), shorten(place.entry.run, 12))
        return doc.Cell(place.entry.created[:10], note=" · ".join(filter(None, origin)))

    columns = [
        doc.Column("#", "figure", of=lambda place: _rank(place) if place.rank else units.NOTHING),
        doc.Column("machine", of=lambda place: f"{_described(place.entry)} {shorten(place.entry.setting, 80)}".strip()),
        doc.Column("rate", "figure", of=rate),
        doc.Column("±", "figure", minor=True, of=precision),
        doc.Column("per step", "figure", minor=True, of=step),
        doc.Column("grade", of=grade),
        doc.Column("torch", minor=True, of=lambda place: shorten(place.entry.torch or units.NOTHING, 20)),
        doc.Column("measured", minor=True, of=measured),
        doc.Column("runs", "figure", minor=True, of=lambda place: f"{place.runs:,}"),
    ]
    ranked = board.ranked_count - len(board.places)
    disturbed = board.disturbed_count - min(len(board.disturbed), FAILURES_SHOWN)
    failed = board.failed_count - min(len(board.failed), FAILURES_SHOWN)
    more = {_count(ranked, "slower place"): ranked, f"{disturbed:,} graded poor": disturbed}
    left = [text for text, count in (more | {f"{failed:,} that failed": failed}).items() if count]
    return [doc.table(columns, shown), doc.Lines([f"Not shown: {', '.join(left)}." if left else ""])]


def _rank(each: Place | Standing) -> str:
    return f"{each.rank}{'=' if each.tied else ''}"


def _places(board: Board, most: int | None = None) -> list[Place]:
    return [*board.places, *board.disturbed[:most], *board.failed[:most]]


def _machine(entry: Entry | Standing) -> str:
    return shorten(entry.cpu if entry.device == "cpu" else entry.model or entry.device, 80)


def _described(entry: Entry | Standing) -> str:
    """Xeon Gold (32 cores, 64 GiB); H100 (Xeon Gold, 32 cores, 64 GiB)"""
    cores = f"{_count(entry.cores, 'core')}, {entry.memory_gib} GiB"
    return f"{_machine(entry)} ({cores if entry.device == 'cpu' else f'{shorten(entry.cpu, 80)}, {cores}'})"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _record(board: Board, place: Place) -> dict[str, Any]:
    about = asdict(place.entry) | {"unit": board.unit, "rank": place.rank, "tied": place.tied, "runs": place.runs}
    high = place.high if 0 < place.high < math.inf else None
    return about | {"rate": place.rate or None, "low": place.low or None, "high": high}
