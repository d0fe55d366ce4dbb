"""A run as Markdown, for an issue or a chat: one table, and the notes that belong to it as a list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchmark.analyze.headline import Block, Headline
from torchmark.analyze.money import Prices
from torchmark.records import Result, Run
from torchmark.report import figures, meters, money, scaling, units
from torchmark.report import headline as areas
from torchmark.report.conclusions import conclusion
from torchmark.report.headings import machine_line, title
from torchmark.report.looks import grade_cell
from torchmark.report.names import Names, names_of
from torchmark.report.notes import find_notes

_COLUMNS = ("case", "per step", "±", "rate", "of peak", "p99", "first step", "grade")
_PUBLISHED = ("case", "per step", "published", "rate")


def render_markdown(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> str:
    """The whole report; it renders the same wherever tables are understood."""
    names = names_of(run.results)
    about = [line for line in (machine_line(run.header.machine, names.device), names.note) if line]
    parts = _headline(headline, run) if headline else []
    parts.append("  \n".join([f"**{escape(' · '.join(title(run)))}**", *map(escape, about)]))
    said = conclusion(run)
    parts += [f"**{escape(said[0])}** {escape(' '.join(said[1:]))}".rstrip()] if said else []
    if run.results:
        parts.append(_results(run, names))
    parts += [escape(note) for note in (figures.interval_note(run),) if note]
    for name, rows, note in scaling.tables(run):
        parts.append(f"Scaling of {code(name)}")
        parts.append(table(scaling.COLUMNS, [[escape(cell) for cell in cells] for cells in rows], right=range(5)))
        parts.append(escape(note))
    if prices:
        parts.append("\n".join([f"{escape(money.heading(prices))}\n", *_costs(run, prices, names)]))
    notes = _notes(run, names)
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts) + "\n"


def _headline(headline: Headline, run: Run) -> list[str]:
    parts = [part for block in headline.blocks for part in _block(headline, block, run)]
    notes = [f"{mark} {flaw}" for flaw, mark in areas.footnotes(headline).items()]
    return [*parts, *(["  \n".join(map(escape, notes))] if notes else [])]


def _block(headline: Headline, block: Block, run: Run) -> list[str]:
    rows = [list(map(escape, row.cells)) for row in areas.rows(headline, block)]
    said = [f"**{name}:** {escape(text)}" for name, text in areas.sentences(headline, block)]
    about = f"**{escape(areas.about(run.header.machine, block))}**"
    return [about, table(areas.COLUMNS, rows), "  \n".join(said)]


def _results(run: Run, names: Names) -> str:
    rows = [_row(result, names) for result in run.results]
    if not all(map(figures.is_printed, run.results)):
        return table(_COLUMNS, rows, right=range(1, 7))
    rows = [
        [name, time, escape(figures.printed(result)), rate]
        for result, (name, time, _, rate, *_) in zip(run.results, rows, strict=True)
    ]
    return table(_PUBLISHED, rows, right=range(1, 4))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table whose cells are Markdown already; columns with figures are aligned to the right."""
    rule = ["---:" if index in right else "---" for index in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))


def code(text: str) -> str:
    """The text as code; a backquote or a bar in it cannot end the cell."""
    return "`" + text.replace("`", "'").replace("|", "/") + "`"


def escape(text: str) -> str:
    """The text as itself, whatever Markdown or HTML it holds."""
    return re.sub(r"([\\`*_\[\]#|~])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _row(result: Result, names: Names) -> list[str]:
    name, estimate = code(names.of(result)), result.estimate
    if result.status != "ok" or estimate is None:
        return [name, *[units.NOTHING] * 6, escape(result.status)]
    return [
        name,
        figures.step_time(estimate),
        figures.margin(estimate),
        escape(units.rate(figures.step_rate(result), result.work.unit if result.work else "")),
        figures.peak(result),
        units.duration(figures.tail(result)),
        units.duration(figures.first_step(result)),
        escape(grade_cell(result)),
    ]


def _costs(run: Run, prices: Prices, names: Names) -> list[str]:
    found = [
        f"- {code(names.of(result))}: {escape(money.text(result, cost))}" for result, cost in money.costs(run, prices)
    ]
    note = money.note(run, prices)
    return [*found, *([f"- {escape(note)}"] if note else [])]


def _notes(run: Run, names: Names) -> list[str]:
    lines = [f"- whole job of {code(names.of(result))}: {escape(text)}" for result, text in figures.jobs(run)]
    lines += [f"- kept going, {code(names.of(result))}: {escape(text)}" for result, text in meters.sustained(run)]
    lines += [
        f"- {escape(result.status)}: {code(names.of(result))}: {escape(reason)}"
        for result, reason in figures.failures(run)
    ]
    for note in find_notes(run, names):
        cases = ", ".join(map(code, note.cases)) or "all cases"
        lines.append(f"- **{escape(note.kind)}** ({cases}): {escape(note.cause)} → {escape(note.cure)}")
    return lines + [f"- {escape(problem)}" for problem in run.problems]
