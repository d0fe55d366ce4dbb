"""A leaderboard as a page, Markdown, CSV or JSON: boards with their places, and what a reader must know about ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from torchmark.analyze.entries import Entry
from torchmark.analyze.leaderboard import Board, Overall, Place, Standing
from torchmark.errors import UnknownName
from torchmark.report import csv, json, markdown, units
from torchmark.report.text import clean_values, shorten

if TYPE_CHECKING:
    from torchmark.report.page import Section

FORMATS = ("html", "md", "csv", "json")
BOARDS_SHOWN = 100  # on a page and in Markdown; CSV and JSON have them all
FAILURES_SHOWN = 3  # of each board
PROBLEMS_SHOWN = 20
OPEN = 3  # boards that a page shows without a click

RULES = (
    "Only the same work is ranked: one task, version, precision and procedure. A machine takes one place for each "
    "choice of settings, with its latest undisturbed result. A rank is shared (=) where intervals overlap. A result "
    "graded poor has no rank: other programs were busy, or its ± is above 15% or unknown. Every file was checked as by "
    "`torchmark check`, but for its raw samples: one that fails is left out, and named at the end."
)
_COLUMNS = ("#", "machine", "rate", "±", "per step", "grade", "torch", "measured", "runs")
_KINDS = {"good": "good", "fair": "mixed", "poor": "bad", "as-published": "quiet"}
_OVERALL = ("#", "machine", "speed", "±")
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


class Line(Struct, frozen=True):
    """A place in words."""

    rank: str
    machine: str
    about: str
    setting: str
    rate: str
    margin: str
    step: str
    grade: str
    reason: str
    torch: str
    measured: str
    origin: str
    runs: str
    kind: str  # good, mixed, bad, quiet
    bar: tuple[float, float, float]  # low, rate and high, in percent of the most that the board reaches


def render_leaderboard(
    boards: Sequence[Board],
    source: Source,
    format: str,  # noqa: A002
    version: str,
    overall: Overall | None = None,
) -> str:
    """The boards in one of FORMATS; strings that came from files are made safe first."""
    overall = overall and msgspec.convert(clean_values(msgspec.to_builtins(overall)), Overall)
    boards = msgspec.convert(clean_values(msgspec.to_builtins(boards)), tuple[Board, ...])
    source = msgspec.convert(clean_values(msgspec.to_builtins(source)), Source)
    match format:
        case "html":
            return _page(boards, source, version, overall)
        case "md":
            return _markdown(boards, source, overall)
        case "csv":
            records = [_record(board, place) for board in boards for place in _places(board)]
            return csv.table(_CSV_COLUMNS, [[record[column] for column in _CSV_COLUMNS] for record in records])
        case "json":
            return json.pretty({"source": source, "overall": overall, "boards": [_plain(board) for board in boards]})
    raise UnknownName("format", format, FORMATS)


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


def _overall_rows(overall: Overall) -> list[list[str]]:
    return [
        [
            f"{each.rank}{'=' if each.tied else ''}",
            f"{_machine(each)} ({_about_machine(each)})",
            units.percent(each.score),
            units.relative((each.high - each.low) / 2 / each.score),
        ]
        for each in overall.standings
    ]


def _overall_section(overall: Overall) -> Section:
    from torchmark.report.elements import Cell, Column, data_table
    from torchmark.report.page import Section

    columns = [Column(title, number=title != "machine") for title in _OVERALL]
    rows = [[Cell(text) for text in row] for row in _overall_rows(overall)]
    table = data_table("overall-table", "Machines over the cases they share.", columns, rows)
    return Section("overall", "Overall", table, _about_overall(overall))


def _page(boards: Sequence[Board], source: Source, version: str, overall: Overall | None) -> str:
    from torchmark.report.page import Section, fill, render_page

    shown = [
        {"title": _title(board), "about": _about(board), "lines": _lines(board), "rest": _rest(board)}
        for board in boards[:BOARDS_SHOWN]
    ]
    lead = " ".join((RULES, _cut(boards)))
    sections = [_overall_section(overall)] if overall else []
    sections += [Section("boards", "Boards", fill("boards.html.jinja", anchor="boards", boards=shown, open=OPEN), lead)]
    if source.problems:
        listed = fill("problems.html.jinja", problems=_problems(source))
        sections.append(Section("problems", "Files that were left out", listed))
    facts = (_count(source.files, "run file"), _count(source.results, "result"), _count(len(boards), "board"))
    return render_page(
        "Leaderboard",
        sections,
        version=version,
        facts=facts,
        footer=(f"Made by torchmark {version}.",),
    )


def _markdown(boards: Sequence[Board], source: Source, overall: Overall | None) -> str:
    parts = [f"**Leaderboard** of {_count(source.files, 'run file')}, {_count(source.results, 'result')}"]
    parts += [markdown.escape(text) for text in (RULES, _cut(boards)) if text]
    if overall:
        rows = [list(map(markdown.escape, row)) for row in _overall_rows(overall)]
        parts += ["### Overall", markdown.escape(_about_overall(overall)), markdown.table(_OVERALL, rows, right=(2, 3))]
    for board in boards[:BOARDS_SHOWN]:
        parts.append(f"### {markdown.code(_title(board))}")
        rows = [list(map(markdown.escape, _texts(line))) for line in _lines(board)]
        parts.append(markdown.table(_COLUMNS, rows, right=(2, 3, 4, 8)))
        parts += [markdown.escape(note) for note in (_rest(board),) if note]
    left_out = [f"- {markdown.escape(problem)}" for problem in _problems(source)]
    parts += ["### Files that were left out", "\n".join(left_out)] if left_out else []
    return "\n\n".join(parts) + "\n"


def _title(board: Board) -> str:
    return shorten(f"{board.task} {board.dtype}{board.procedure} version {board.version}", 200)


def _about(board: Board) -> str:
    places = _count(board.ranked_count + board.disturbed_count + board.failed_count, "place")
    return f"{places} · first: {_machine(board.places[0].entry)}" if board.places else places


def _cut(boards: Sequence[Board]) -> str:
    """What is left out, said."""
    if len(boards) <= BOARDS_SHOWN:
        return ""
    return f"Shown are the {BOARDS_SHOWN} boards with the most places of {len(boards):,}; CSV and JSON have them all."


def _rest(board: Board) -> str:
    ranked = board.ranked_count - len(board.places)
    disturbed = board.disturbed_count - len(board.disturbed[:FAILURES_SHOWN])
    failed = board.failed_count - len(board.failed[:FAILURES_SHOWN])
    told = [_count(ranked, "slower place")] if ranked else []
    told += [f"{disturbed:,} graded poor"] if disturbed else []
    told += [f"{failed:,} that failed"] if failed else []
    return f"Not shown: {', '.join(told)}." if told else ""


def _problems(source: Source) -> list[str]:
    more = len(source.problems) - PROBLEMS_SHOWN
    return [shorten(each) for each in source.problems[:PROBLEMS_SHOWN]] + ([f"and {more:,} more"] if more > 0 else [])


def _lines(board: Board) -> list[Line]:
    shown = _places(board, FAILURES_SHOWN)
    most = max((min(place.high, 2 * place.rate) for place in shown if place.rate), default=1.0)
    return [_line(place, board.unit, most) for place in shown]


def _line(place: Place, unit: str, most: float) -> Line:
    entry = place.entry
    return Line(
        rank=f"{place.rank}{'=' if place.tied else ''}" if place.rank else units.NOTHING,
        machine=_machine(entry),
        about=_about_machine(entry),
        setting=shorten(entry.setting, 80),
        rate=units.rate(place.rate, unit),
        margin=_margin(place),
        step=units.duration(entry.center_s) if place.rate else units.NOTHING,
        grade=entry.grade if place.rate else entry.status,
        reason="" if place.rate else shorten(entry.reason or "", 120),
        torch=shorten(entry.torch or units.NOTHING, 20),
        measured=entry.created[:10],  # the day
        origin=" · ".join(filter(None, (shorten(entry.label or "", 40), shorten(entry.run, 12)))),
        runs=f"{place.runs:,}",
        kind=_KINDS.get(entry.grade.partition(":")[0], "mixed") if place.rate else "bad",
        bar=(100 * place.low / most, 100 * place.rate / most, min(100 * place.high / most, 100.0)),
    )


def _machine(entry: Entry | Standing) -> str:
    return shorten(entry.cpu if entry.device == "cpu" else entry.model or entry.device, 80)


def _about_machine(entry: Entry | Standing) -> str:
    cores = f"{_count(entry.cores, 'core')}, {entry.memory_gib} GiB"
    return cores if entry.device == "cpu" else f"{shorten(entry.cpu, 80)}, {cores}"


def _margin(place: Place) -> str:
    if not place.rate or place.entry.verdict == "as-published":
        return units.NOTHING
    return units.relative((place.high - place.low) / 2 / place.rate)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _texts(line: Line) -> list[str]:
    """A line as cells of a plain table."""
    machine = " ".join(filter(None, (line.machine, f"({line.about})", line.setting)))
    grade = ": ".join(filter(None, (line.grade, line.reason)))
    return [line.rank, machine, line.rate, line.margin, line.step, grade, line.torch, line.measured, line.runs]


def _record(board: Board, place: Place) -> dict[str, csv.Cell]:
    """A place under the names of its records, in base units."""
    about: dict[str, csv.Cell] = asdict(place.entry)
    return about | {
        "unit": board.unit,
        "rank": place.rank,
        "tied": place.tied,
        "runs": place.runs,
        "rate": place.rate or None,
        "low": place.low or None,
        "high": place.high if 0 < place.high < math.inf else None,
    }
