"""A run as a calm table for a terminal, with everything that should be read beside the figures below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from torchmark.analyze.findings import find_all
from torchmark.analyze.headline import Headline
from torchmark.analyze.money import Prices
from torchmark.records import Case, Result, Run
from torchmark.report import figures, meters, money, scaling, units
from torchmark.report.conclusions import conclusion
from torchmark.report.console import FAINT, GAP, draw, fold_case, quiet_table, section
from torchmark.report.headings import machine_line, title
from torchmark.report.headline import render_headline
from torchmark.report.looks import grade_text, look_of
from torchmark.report.names import names_of
from torchmark.report.notes import Note, find_notes
from torchmark.report.snippet import snippet
from torchmark.report.text import shorten

WIDE = 120  # columns from which the first step and the tail are shown
WIDEST = 150  # columns from which the work per second is shown too
NARROWEST_CASE = 16
MOST_FINDINGS = 5
# What goes first where the terminal is narrow: no figure is ever cut.
_DROPPED = ("bandwidth", "arithmetic", "energy", "p99", "first step", "of peak", "rate", "published", "±")

Columns = list[tuple[str, list[str]]]


def render_table(
    run: Run, width: int = 80, color: bool = False, prices: Prices | None = None, headline: Headline | None = None
) -> str:
    """The whole report, the headline first. It fits into `width` columns."""
    parts = render_headline(headline, run.header.machine, width) if headline else []
    said = [Text(line) for line in conclusion(run)]
    parts += [_heading(run, bool(headline)), *said, *[Text("")] * bool(said)]
    parts.append(_results(run, width) if run.results else "No results")
    interval = figures.interval_note(run)
    if interval:
        parts.append(Text(f"\n{interval}", style=FAINT))
    if width < WIDE:
        parts += _peaks(run)
    parts += _findings(run)
    parts += _pasting(run)
    parts += _scaling(run)
    parts += _jobs(run)
    parts += _sustained(run)
    parts += _costs(run, prices) if prices else []
    parts += _failures(run)
    parts += _cautions(run)
    parts += _problems(run)
    return draw(parts, width, color)


def _heading(run: Run, machine_is_known: bool) -> RenderableType:
    name, *rest = title(run)
    first = Text(" · ").join([Text(name, style="bold"), *map(Text, rest)])
    names = names_of(run.results)
    machine = "" if machine_is_known else machine_line(run.header.machine, names.device)
    about = [Text(line, style=FAINT) for line in (machine, names.note) if line]
    return Padding(Text("\n").join([first, *about]), (0, 0, 1, 0))


def _results(run: Run, width: int) -> RenderableType:
    shown = names_of(run.results)
    names = [shown.of(result) for result in run.results]
    grades = [grade_text(result) for result in run.results]
    columns = _fitting(_columns(run.results, width), grades, width)
    widths = [max(map(len, (head, *cells))) for head, cells in columns]
    room = width - sum(widths) - GAP * (len(widths) + 1)
    case_width, grade_width = _outer_widths(names, grades, room)
    table = quiet_table()
    table.add_column("case", no_wrap=True, width=case_width)
    for (head, _), figure_width in zip(columns, widths, strict=True):
        table.add_column(head, justify="right", no_wrap=True, width=figure_width)
    if any(grades):
        table.add_column("grade", width=grade_width)
    for index, name in enumerate(names):
        cells = [cells[index] for _, cells in columns]
        grade = [Text(grades[index], style=look_of(grades[index]).style)] if any(grades) else []
        table.add_row(fold_case(name, case_width), *cells, *grade)
    return table


def _fitting(columns: Columns, grades: Sequence[str], width: int) -> Columns:
    """The columns that leave room for the case and the grade."""
    least = NARROWEST_CASE + _longest_word(grades)
    for name in _DROPPED:
        if least + sum(GAP + max(map(len, (head, *cells))) for head, cells in columns) + GAP > width:
            columns = [column for column in columns if column[0] != name]
    return columns


def _outer_widths(names: Sequence[str], grades: Sequence[str], room: int) -> tuple[int, int]:
    """How the columns of figures leave the rest to the case and the grade: both are broken before a figure is."""
    words = _longest_word(grades)
    longest = max(map(len, (*names, "case")))
    case_width = min(longest, max(NARROWEST_CASE, room - words))
    return case_width, max(words, min(max(map(len, (*grades, "grade"))), room - case_width))


def _longest_word(texts: Sequence[str]) -> int:
    return max(len(word) for text in (*texts, "grade") for word in text.split())


def _columns(results: Sequence[Result], width: int) -> Columns:
    """The columns of figures that fit, each with its cells; a failed case has none."""
    shown = [result if result.status == "ok" else None for result in results]

    def cells(title: str, figure: object) -> tuple[str, list[str]]:
        assert callable(figure)
        return title, [figure(result) if result and result.estimate else units.NOTHING for result in shown]

    published = all(map(figures.is_published, results))
    columns = [cells("per step", lambda result: figures.step_time(result.estimate))]
    if not published:
        columns.append(cells("±", lambda result: figures.margin(result.estimate)))
    if any(map(figures.is_printed, results)):
        columns.append(cells("published", figures.printed))
    columns.append(
        cells("rate", lambda result: units.rate(figures.step_rate(result), result.work.unit if result.work else ""))
    )
    if width >= WIDE and any(result.peak for result in results):
        columns.append(cells("of peak", figures.peak))
    if width >= WIDE and not published:
        columns += [
            cells("first step", lambda result: units.duration(figures.first_step(result))),
            cells("p99", lambda result: units.duration(figures.tail(result))),
        ]
    if width >= WIDE and any(map(meters.knows_energy, results)):
        columns.append(cells("energy", meters.energy))
    if width >= WIDEST:
        columns += [
            cells("arithmetic", lambda result: units.arithmetic(figures.step_flops(result))),
            cells("bandwidth", lambda result: units.bandwidth(figures.step_bandwidth(result))),
        ]
    return columns


def _peaks(run: Run) -> list[RenderableType]:
    """Where the table has no room for it: how close results come to the machine's best, by what bounds them."""
    names = names_of(run.results)
    rows = [
        (bound, ", ".join(f"{names.of(result)} {units.percent(share)}" for result, share in bounded))
        for bound, bounded in figures.by_bound(run)
    ]
    return section("Of this machine's peak, by what bounds it", rows)


def _findings(run: Run) -> list[RenderableType]:
    """What several results say together. That some were disturbed is among the cautions."""
    found = [finding for finding in find_all([run]) if finding.kind != "disturbed"] if len(run.results) > 1 else []
    return section("Findings", [("", finding.text) for finding in found[:MOST_FINDINGS]])


def _pasting(run: Run) -> list[RenderableType]:
    """What a search has found as lines for a script."""
    return pasting(run.tuning.case, run.tuning.winner) if run.tuning else []


def pasting(default: Case, winner: Case) -> list[RenderableType]:
    """The lines that make the one configuration of the other; nothing where they are the same."""
    code = snippet(default, winner)
    title = Text("\nTo paste into a script that has a `model`", style="bold")
    return [title, Padding(Text(code.rstrip()), (0, 0, 0, 2))] if code else []


def _scaling(run: Run) -> list[RenderableType]:
    """What more workers bring, for every case that was measured with several counts of them."""
    parts: list[RenderableType] = []
    for name, rows, note in scaling.tables(run):
        table = quiet_table()
        for head in scaling.COLUMNS:
            table.add_column(head, justify="right", no_wrap=True)
        for cells in rows:
            table.add_row(*cells)
        parts += [Text(f"\nScaling of {name}", style="bold"), Padding(table, (0, 0, 0, 2))]
        parts.append(Padding(Text(note, style=FAINT), (0, 0, 0, 2)))
    return parts


def _jobs(run: Run) -> list[RenderableType]:
    names = names_of(run.results)
    rows = [("", f"{names.of(result)}: {text}") for result, text in figures.jobs(run)]
    return section("Whole jobs", rows)


def _sustained(run: Run) -> list[RenderableType]:
    names = names_of(run.results)
    rows = [("", f"{names.of(result)}: {shorten(text)}") for result, text in meters.sustained(run)]
    return section("Kept going", rows)


def _costs(run: Run, prices: Prices) -> list[RenderableType]:
    """Prices are the user's, and said to be."""
    names = names_of(run.results)
    rows = [("", f"{names.of(result)}: {money.text(result, cost)}") for result, cost in money.costs(run, prices)]
    note = money.note(run, prices)
    return section(money.heading(prices), [*rows, *([("", shorten(note))] if note else [])])


def _failures(run: Run) -> list[RenderableType]:
    """What failed for the same reason stands together."""
    names = names_of(run.results)
    alike: dict[tuple[str, str], list[str]] = {}
    for result, _ in figures.failures(run):
        alike.setdefault((result.status, result.explanation), []).append(names.of(result))
    rows = [(status, f"{', '.join(names)}\n{reason}") for (status, reason), names in alike.items()]
    return section("Without a figure", rows)


def _cautions(run: Run) -> list[RenderableType]:
    """One entry for each kind, with the first cause as its example: `show --details` has every case's own."""
    kinds: dict[str, list[Note]] = {}
    for note in find_notes(run, names_of(run.results)):
        kinds.setdefault(note.kind, []).append(note)
    rows = []
    for kind, notes in kinds.items():
        advice = f"\n→ {shorten(notes[0].cure)}" if notes[0].cure else ""
        rows.append((kind, f"{_where(notes)}: {shorten(notes[0].cause)}{advice}"))
    return section("Cautions", rows)


def _where(notes: Sequence[Note]) -> str:
    names = [name for note in notes for name in note.cases]
    if not names:
        return "all cases"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _problems(run: Run) -> list[RenderableType]:
    return section("About the file", [("", shorten(problem)) for problem in run.problems])
