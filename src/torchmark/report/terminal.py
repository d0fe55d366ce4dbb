"""A run as a calm table for a terminal, with everything that should be read beside the figures below it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence, Set

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.analyze.findings import find_all
from torchmark.analyze.money import Prices
from torchmark.records import Case, Machine, Result, Run
from torchmark.report import figures, meters, money, scaling, units
from torchmark.report.snippet import snippet
from torchmark.report.text import shorten

WIDE = 120  # columns from which the first step and the tail are shown
WIDEST = 150  # columns from which the work per second is shown too
NARROWEST_CASE = 16
MOST_FINDINGS = 5
_GAP = 2

_GOOD, _BAD, _MIXED, _FAINT = "green", "red", "yellow", "dim"
_STYLES = {"stable": _GOOD, "contended": _BAD, "throttled": _BAD}


def render_table(run: Run, width: int = 80, color: bool = False, prices: Prices | None = None) -> str:
    """The whole report. It fits into `width` columns."""
    parts: list[RenderableType] = (
        [_heading(run), _results(run, width)] if run.results else [_heading(run), "No results"]
    )
    interval = figures.interval_note(run)
    if interval:
        parts.append(Text(f"\n{interval}", style=_FAINT))
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


def draw(parts: Sequence[RenderableType], width: int, color: bool) -> str:
    """Rich's drawing as a string that depends on nothing but its arguments."""
    console = Console(
        file=io.StringIO(),
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def machine_line(machine: Machine, device: str | None = None) -> str:
    """Who measured: processor, or the one device that all cases used, with cores, memory and torch."""
    models = {info.name: info.model for info in machine.devices}
    cores = f"{machine.physical_cores} core{'s' if machine.physical_cores != 1 else ''}"
    memory = f"{machine.memory_gib} GiB"
    processor = [(machine.cpu, machine.cpu), (cores, machine.physical_cores), (memory, machine.memory_gib)]
    who = [models[device]] if device in models and device != "cpu" else []
    who.append(", ".join(text for text, known in processor if known))
    who += [f"torch {machine.torch}"] if machine.torch else []
    return " · ".join(part for part in who if part)


def title(run: Run) -> list[str]:
    """What a heading says of a run: its name first, then when it was measured, and where most of its cases ran."""
    header = run.header
    names = [header.id] if header.label == header.id else [f"run {header.id}", header.label]
    return [part for part in (*names, moment(header.created), figures.place_note(run.results)) if part]


def moment(created: str) -> str:
    """2026-11-15 19:45:49 UTC"""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:Z|\+00:00)$", r"\1 \2 UTC", created)


def fold_case(text: str, width: int) -> str:
    """A case on as many lines as it needs, broken where a person would break it."""
    if len(text) <= width:
        return text
    width -= 2  # for the indent of the lines after the first
    lines: list[str] = [""]
    for piece in re.findall(r"[:@+]?[^:@+,]*,?", text):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        while len(lines[-1]) + len(piece) > width:
            room = width - len(lines[-1])
            lines[-1] += piece[:room]
            piece = piece[room:]
            lines.append("")
        lines[-1] += piece
    return "\n  ".join(line for line in lines if line)


def _heading(run: Run) -> RenderableType:
    header, shared = run.header, figures.shared_place(run.results)
    name, *rest = title(run)
    first = Text(" · ").join([Text(name, style="bold"), *map(Text, rest)])
    device = shared.partition("/")[0] if shared else None
    return Padding(Text("\n").join([first, Text(machine_line(header.machine, device), style=_FAINT)]), (0, 0, 1, 0))


def _results(run: Run, width: int) -> RenderableType:
    shared = figures.shared_place(run.results)
    names = [figures.short_name(result, shared) for result in run.results]
    hidden = figures.common_flags(run.results)
    verdicts = [_verdict(result, hidden) for result in run.results]
    columns = _columns(run.results, width)
    widths = [max(map(len, (title, *cells))) for title, cells in columns]
    room = width - sum(widths) - _GAP * (len(widths) + 1)
    case_width, verdict_width = _outer_widths(names, [text.plain for text in verdicts], room)
    # The box itself puts one space between columns, the padding a second one.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style=_FAINT)
    table.add_column("case", no_wrap=True, width=case_width)
    for (title, _), figure_width in zip(columns, widths, strict=True):
        table.add_column(title, justify="right", no_wrap=True, width=figure_width)
    table.add_column("verdict", width=verdict_width)
    for index, name in enumerate(names):
        table.add_row(fold_case(name, case_width), *(cells[index] for _, cells in columns), verdicts[index])
    return table


def _outer_widths(names: Sequence[str], verdicts: Sequence[str], room: int) -> tuple[int, int]:
    """How the columns of figures leave the rest to the case and the verdict: both are broken before a figure is."""
    words = max(len(word) for text in (*verdicts, "verdict") for word in text.split())
    longest = max(map(len, (*names, "case")))
    case_width = min(longest, max(NARROWEST_CASE, room - words))
    return case_width, max(words, min(max(map(len, (*verdicts, "verdict"))), room - case_width))


def _columns(results: Sequence[Result], width: int) -> list[tuple[str, list[str]]]:
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


def _verdict(result: Result, hidden: Set[str] = frozenset()) -> Text:
    if result.status != "ok" or result.estimate is None:
        return Text(result.status, style=_BAD)
    verdict = result.estimate.verdict
    text = Text().append(verdict, style=_STYLES.get(verdict, _MIXED))
    for flag in result.estimate.flags:
        if flag not in hidden:
            text.append(f" {flag}", style=_FAINT)
    return text


def _peaks(run: Run) -> list[RenderableType]:
    """Where the table has no room for it: how close results come to the machine's best, by what bounds them."""
    shared = figures.shared_place(run.results)
    rows = [
        (bound, ", ".join(f"{figures.short_name(result, shared)} {units.percent(share)}" for result, share in bounded))
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
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style=_FAINT)
        for title in scaling.COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
        for cells in rows:
            table.add_row(*cells)
        parts += [Text(f"\nScaling of {name}", style="bold"), Padding(table, (0, 0, 0, 2))]
        parts.append(Padding(Text(note, style=_FAINT), (0, 0, 0, 2)))
    return parts


def _jobs(run: Run) -> list[RenderableType]:
    shared = figures.shared_place(run.results)
    rows = [("", f"{figures.short_name(result, shared)}: {text}") for result, text in figures.jobs(run)]
    return section("Whole jobs", rows)


def _sustained(run: Run) -> list[RenderableType]:
    shared = figures.shared_place(run.results)
    rows = [("", f"{figures.short_name(result, shared)}: {shorten(text)}") for result, text in meters.sustained(run)]
    return section("Kept going", rows)


def _costs(run: Run, prices: Prices) -> list[RenderableType]:
    """Prices are the user's, and said to be."""
    shared = figures.shared_place(run.results)
    rows = [
        ("", f"{figures.short_name(result, shared)}: {money.text(result, cost)}")
        for result, cost in money.costs(run, prices)
    ]
    note = money.note(run, prices)
    return section(money.heading(prices), [*rows, *([("", shorten(note))] if note else [])])


def _failures(run: Run) -> list[RenderableType]:
    """What failed for the same reason stands together."""
    shared = figures.shared_place(run.results)
    alike: dict[tuple[str, str], list[str]] = {}
    for result, reason in figures.failures(run):
        alike.setdefault((result.status, shorten(reason)), []).append(figures.short_name(result, shared))
    rows = [(status, f"{', '.join(names)}\n{reason}") for (status, reason), names in alike.items()]
    return section("Without a figure", rows)


def _cautions(run: Run) -> list[RenderableType]:
    """One entry for each kind, with the first cause as its example: `show --details` has every case's own."""
    kinds: dict[str, list[figures.Note]] = {}
    for note in figures.notes(run):
        kinds.setdefault(note.kind, []).append(note)
    rows = []
    for kind, notes in kinds.items():
        advice = f"\n→ {shorten(notes[0].cure)}" if notes[0].cure else ""
        rows.append((kind, f"{_where(notes)}: {shorten(notes[0].cause)}{advice}"))
    return section("Cautions", rows)


def _where(notes: Sequence[figures.Note]) -> str:
    names = [name for note in notes for name in note.cases]
    if not names:
        return "all cases"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _problems(run: Run) -> list[RenderableType]:
    return section("About the file", [("", shorten(problem)) for problem in run.problems])


def section(title: str, rows: Sequence[tuple[str, str]]) -> list[RenderableType]:
    """A heading and its entries: the kind in a narrow column, what there is to say beside it."""
    if not rows:
        return []
    grid = Table.grid(padding=(0, 2, 0, 0))
    if any(kind for kind, _ in rows):
        grid.add_column(style=_MIXED, no_wrap=True)
    grid.add_column()
    for kind, text in rows:
        first, _, rest = text.partition("\n")
        body = Text(first)
        if rest:
            body.append(f"\n{rest}", style=_FAINT)
        grid.add_row(*([Text(kind)] if len(grid.columns) > 1 else []), body)
    return [Text(f"\n{title}", style="bold"), Padding(grid, (0, 0, 0, 2))]
