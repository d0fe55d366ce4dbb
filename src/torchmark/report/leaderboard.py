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
_OPEN = 3  # boards that a page shows without a click

RULES = (
    "Only the same work is ranked: one task, version, precision and procedure. A machine takes one place for each "
    "choice of settings, with its latest undisturbed result. A rank is shared (=) where intervals overlap. A result "
    "graded poor has no rank: other programs were busy, or its ± is above 15% or unknown. Every file was checked as by "
    "`torchmark check`, but for its raw samples: one that fails is left out, and named at the end."
)
_COLUMNS = (
    doc.Column("#", "figure"),
    doc.Column("machine"),
    doc.Column("rate", "figure"),
    doc.Column("±", "figure", minor=True),
    doc.Column("per step", "figure", minor=True),
    doc.Column("grade"),
    doc.Column("torch", minor=True),
    doc.Column("measured", minor=True),
    doc.Column("runs", "figure", minor=True),
)
_OVERALL = (doc.Column("#", "figure"), doc.Column("machine"), doc.Column("speed", "figure"), doc.Column("±", "figure"))
_CSV_COLUMNS = (
    "task", "version", "dtype", "procedure", "rank", "tied", "cpu", "cores", "memory_gib", "device", "model", "setting",
    "rate", "low", "high", "unit", "center_s", "status", "reason", "verdict", "grade", "disturbed", "runs", "torch",
    "created", "label", "run", "file", "case",
)  # fmt: skip


class Source(Struct, frozen=True):
    """What a leaderboard is made of: how much was read, and what could not be. The folder is not shared."""

    files: int
    results: int
    problems: tuple[str, ...] = ()


def leaderboard_document(
    boards: Sequence[Board], source: Source, version: str = "", overall: Overall | None = None
) -> doc.Document:
    """The boards with the most places first."""

    def rows() -> Iterator[list[doc.CsvValue]]:
        records = (_record(board, place) for board in boards for place in _places(board))
        return ([record[column] for column in _CSV_COLUMNS] for record in records)

    def json() -> dict[str, Any]:
        return {"source": source, "overall": overall, "boards": [_plain(board) for board in boards]}

    return doc.Document(lambda: _blocks(boards, source, overall), doc.Records(_CSV_COLUMNS, rows, json), version)


def _blocks(boards: Sequence[Board], source: Source, overall: Overall | None) -> Iterator[doc.Block]:
    facts = (_count(source.files, "run file"), _count(source.results, "result"), _count(len(boards), "board"))
    yield doc.Title("Leaderboard", facts)
    if overall:
        rows = [_overall_row(each) for each in overall.standings]
        table = doc.Table(_OVERALL, rows, caption="Machines over the cases they share.")
        yield doc.Section("Overall", [table], _about_overall(overall), "overall")
    shown = [
        doc.Section(_title(board), _board(board), _about(board), folded="open" if number < _OPEN else "closed")
        for number, board in enumerate(boards[:BOARDS_SHOWN])
    ]
    cut = f"Shown are the {BOARDS_SHOWN} boards with the most places of {len(boards):,}; CSV and JSON have them all."
    yield doc.Section("Boards", shown, RULES + f" {cut}" * (len(boards) > BOARDS_SHOWN), "boards")
    problems = [Remark("file", shorten(each)) for each in source.problems[:PROBLEMS_SHOWN]]
    more = len(source.problems) - PROBLEMS_SHOWN
    problems += [Remark("file", f"and {more:,} more")] if more > 0 else []
    yield from [doc.Section("Files that were left out", [doc.Remarks(problems)], anchor="problems")] if problems else []


def _board(board: Board) -> list[doc.Block]:
    shown = _places(board, FAILURES_SHOWN)
    most = max((min(place.high, 2 * place.rate) for place in shown if place.rate), default=1.0)
    table = doc.Table(_COLUMNS, [_row(place, board.unit, most) for place in shown])
    ranked = board.ranked_count - len(board.places)
    disturbed = board.disturbed_count - len(board.disturbed[:FAILURES_SHOWN])
    failed = board.failed_count - len(board.failed[:FAILURES_SHOWN])
    left = [_count(ranked, "slower place")] if ranked else []
    left += [f"{disturbed:,} graded poor"] if disturbed else []
    left += [f"{failed:,} that failed"] if failed else []
    return [table, *([doc.Lines([f"Not shown: {', '.join(left)}."])] if left else [])]


def _row(place: Place, unit: str, most: float) -> list[str | doc.Cell]:
    entry = place.entry
    origin = " · ".join(filter(None, (shorten(entry.label or "", 40), shorten(entry.run, 12))))
    machine = " ".join(filter(None, (_machine(entry), f"({_about_machine(entry)})", shorten(entry.setting, 80))))
    known = bool(place.rate)
    scale = 100 / most
    bar = (scale * place.low, scale * place.rate, min(scale * place.high, 100.0)) if known else None
    precision = (place.high - place.low) / 2 / place.rate if known and entry.verdict != "as-published" else None
    failure = ": ".join(filter(None, (entry.status, shorten(entry.reason or "", 120))))
    return [
        f"{place.rank}{'=' if place.tied else ''}" if place.rank else units.NOTHING,
        machine,
        doc.Cell(units.rate(place.rate, unit), bar=bar),
        units.relative(precision),
        units.duration(entry.center_s) if known else units.NOTHING,
        doc.judged(entry.grade if known else failure),
        shorten(entry.torch or units.NOTHING, 20),
        doc.Cell(entry.created[:10], note=origin),
        f"{place.runs:,}",
    ]


def _plain(board: Board) -> dict[str, object]:
    about = asdict(board)
    kinds = ("places", "disturbed", "failed")
    return about | {name: [_record(board, place) for place in about[name]] for name in kinds}


def _places(board: Board, most: int | None = None) -> list[Place]:
    """All places: ranked, then disturbed, then failed; of the last two at most so many."""
    return [*board.places, *board.disturbed[:most], *board.failed[:most]]


def _about_overall(overall: Overall) -> str:
    """What the ranking rests on, and which machines are not in it."""
    rests = f"Geometric mean speed over the {_count(len(overall.tasks), 'case')} that at least half of all machines did"
    text = f"{rests}, relative to the fastest at each: {shorten(', '.join(overall.tasks), 300)}."
    missing = overall.missing_count
    return text + (f" {_count(missing, 'machine')} without all of them: not ranked here." if missing else "")


def _overall_row(each: Standing) -> list[str]:
    return [
        f"{each.rank}{'=' if each.tied else ''}",
        f"{_machine(each)} ({_about_machine(each)})",
        units.percent(each.score),
        units.relative((each.high - each.low) / 2 / each.score),
    ]


def _title(board: Board) -> str:
    return shorten(f"{board.task} {board.dtype}{board.procedure} version {board.version}", 200)


def _about(board: Board) -> str:
    places = _count(board.ranked_count + board.disturbed_count + board.failed_count, "place")
    return f"{places} · first: {_machine(board.places[0].entry)}" if board.places else places


def _machine(entry: Entry | Standing) -> str:
    return shorten(entry.cpu if entry.device == "cpu" else entry.model or entry.device, 80)


def _about_machine(entry: Entry | Standing) -> str:
    cores = f"{_count(entry.cores, 'core')}, {entry.memory_gib} GiB"
    return cores if entry.device == "cpu" else f"{shorten(entry.cpu, 80)}, {cores}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _record(board: Board, place: Place) -> dict[str, doc.CsvValue]:
    """A place under the names of its records, in base units."""
    about: dict[str, doc.CsvValue] = asdict(place.entry)
    return about | {
        "unit": board.unit,
        "rank": place.rank,
        "tied": place.tied,
        "runs": place.runs,
        "rate": place.rate or None,
        "low": place.low or None,
        "high": place.high if 0 < place.high < math.inf else None,
    }
