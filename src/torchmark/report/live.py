"""A live comparison as text: the answer in words, both sides' figures, what differs between them, what disturbed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from torchmark.analyze.live import LiveComparison, LiveSide, differences, recall_live
from torchmark.analyze.statistics import Interval
from torchmark.records import Case, Result, Run
from torchmark.report import csv, figures, json, markdown, units
from torchmark.report.console import draw, quiet_table
from torchmark.report.headings import machine_line
from torchmark.report.text import clean_values
from torchmark.settings import VARIABLES, shareable_version

_FIGURES = ("", "per step", "±", "rate", "first step", "memory")
_COLUMNS = (
    "case_a", "case_b", "verdict", "ratio", "low", "high", "pairs", "stopped", "status_a", "status_b",
    "step_a_s", "step_b_s", "first_step_a_s", "first_step_b_s", "memory_a_bytes", "memory_b_bytes",
    "torch_a", "torch_b",
)  # fmt: skip
_STYLES = {"faster": "green", "slower": "red", "same": "green", "similar": "dim", "unsure": "yellow"}
_STOPPED = {
    "clear": "It stopped when the answer was clear.",
    "precise": "It stopped at the precision that was asked for.",
    "pairs": "It stopped after as many pairs as it ever takes.",
    "budget": "It stopped when the budget was spent.",
    "failed": "It stopped when a process failed.",
    "interrupted": "It was interrupted.",
}
_MORE = {
    "budget": "Give it more time with --budget.",
    "pairs": "The machine is too restless: stop what else is running.",
}
_VARIABLE = "a variable"  # in place of a name that may be private
# What would spoil the comparison of two runs that were measured one after the other; here it met both.
_TOLD = ("contended", "throttled", "slowing", "paging", "oversubscribed")


def render_live(found: LiveComparison, format: str = "table", width: int = 80, color: bool = False) -> str:  # noqa: A002
    """The comparison in one of the formats; what processes printed is made safe first."""
    found = msgspec.convert(clean_values(msgspec.to_builtins(found)), LiveComparison)
    found = found if format == "table" else _shareable(found)
    match format:
        case "md":
            return _markdown(found)
        case "csv":
            return csv.table(_COLUMNS, [_csv_row(found)])
        case "json":
            return json.pretty(found)
        case "jsonl":
            return json.lines([found])
    return _table(found, width, color)


def _shareable(found: LiveComparison) -> LiveComparison:
    """All formats but the table are made to be passed on: only variables that torchmark knows are named."""
    unknown = [name for name in {**found.a.environment, **found.b.environment} if name not in VARIABLES]
    names = {name: f"{_VARIABLE} {number}" if number > 1 else _VARIABLE for number, name in enumerate(unknown, 1)}

    def shared(side: LiveSide) -> LiveSide:
        environment = {names.get(name, name): value for name, value in side.environment.items()}
        packages = {name: shareable_version(version) for name, version in side.packages.items()}
        return msgspec.structs.replace(side, environment=environment, packages=packages)

    return msgspec.structs.replace(found, a=shared(found.a), b=shared(found.b))


def so_far(interval: Interval | None) -> str:
    """What is known while pairs still come in."""
    if interval is None:
        return "no interval yet"
    reach = (interval.high - interval.low) / 2 / interval.center
    return f"B is {units.factor(1 / interval.center)} as fast {units.relative(reach)}"


def side_line(name: str, case: Case, python: str, environment: Mapping[str, str]) -> str:
    """One side as it was asked for."""
    return " ".join([f"{name}: {case.text} by {python}", *(f"{key}={value}" for key, value in environment.items())])


def answer(found: LiveComparison) -> str:
    """The answer in one sentence."""
    broken = [name for name, side in _named(found) if side.result.status not in ("ok", "interrupted")]
    if not found.ratios or found.ratio is None:
        return f"No answer: {' and '.join(broken) or 'nothing'} {'failed' if broken else 'was measured'}."
    verdict = {"same": "the same within 3%"}.get(found.verdict, found.verdict)
    speed = f"B is {units.factor(1 / found.ratio)} as fast as A"
    if found.low is None or found.high is None:
        return f"{speed}, by one pair of processes: {verdict}."
    return f"{speed} ({_bound(1 / found.high)} to {_bound(1 / found.low)}): {verdict}."


def basis(found: LiveComparison) -> str:
    """What the answer rests on, and what would make it better."""
    count = len(found.ratios)
    if not count:
        return _STOPPED[found.stopped]
    pairs = f"{count} pair{'s' if count > 1 else ''} of fresh processes that took turns"
    known = f"95% interval over {pairs}." if count > 1 else f"{pairs.capitalize()}."
    more = _MORE.get(found.stopped, "") if found.verdict == "unsure" else ""
    return " ".join(part for part in (known, _STOPPED[found.stopped], more) if part)


def conclusion(run: Run) -> list[str]:
    """The answer as the command gave it, and which side this run is."""
    if run.live is None:
        return []
    found = recall_live(run.live)
    other = run.live.a if run.live.side == "B" else run.live.b
    against = "" if found.a.result.case == found.b.result.case else f", measured against {other.text}"
    return [answer(found), basis(found), f"This run is side {run.live.side}{against}."]


def _bound(value: float) -> str:
    return units.factor(value).removesuffix("×")


def _named(found: LiveComparison) -> tuple[tuple[str, LiveSide], tuple[str, LiveSide]]:
    return ("A", found.a), ("B", found.b)


def _title(found: LiveComparison) -> str:
    a, b = found.a.result.case.text, found.b.result.case.text
    return f"{a} · A against B" if a == b else f"A {a} against B {b}"


def _row(name: str, result: Result) -> list[str]:
    estimate, memory = result.estimate, result.memory
    if estimate is None:
        return [name, *[units.NOTHING] * 5]
    return [
        name,
        figures.step_time(estimate),
        figures.margin(estimate),
        units.rate(figures.step_rate(result), result.work.unit if result.work else ""),
        units.duration(_first_step_s(result)),
        units.size((memory.device_peak_bytes or memory.host_peak_bytes) if memory else None),
    ]


def _first_step_s(result: Result) -> float | None:
    """Of the middle process: a single first step says little."""
    return median(process.first_step_s for process in result.processes) if result.processes else None


def _cautions(found: LiveComparison) -> list[tuple[str, str]]:
    """One for each kind, with the strongest side's cause: what met one side will have met the other."""
    told: dict[str, str] = {}
    for name, side in _named(found):
        for caution in side.result.cautions:
            if caution.kind in _TOLD:
                told.setdefault(caution.kind, f"{name}: {caution.cause}")
    return list(told.items())


_ALIKE = "Both sides took turns, so the ratio suffers less than the times; on a quiet machine the interval is narrower."


def _failures(found: LiveComparison) -> list[tuple[str, Result, tuple[str, ...]]]:
    failed = [(name, side) for name, side in _named(found) if side.result.status != "ok"]
    return [(name, side.result, side.last_words) for name, side in failed if side.result.status != "interrupted"]


def _table(found: LiveComparison, width: int, color: bool) -> str:
    machine = found.a.machine or found.b.machine
    parts: list[RenderableType] = [Text(_title(found), style="bold")]
    if machine:
        parts.append(Text(machine_line(msgspec.structs.replace(machine, torch=None)), style="dim"))
    parts += [Text("\n" + answer(found), style=_STYLES[found.verdict]), Text(basis(found), style="dim")]
    if found.ratios:
        rows = [_row(name, side.result) for name, side in _named(found)]
        parts += [Text(""), _grid(_FIGURES, rows, right=True)]
    changed = differences(found.a, found.b)
    rows = [[each.name, each.a, each.b] for each in changed]
    if rows:
        parts += [Text(""), _grid(("differs", "A", "B"), rows)]
    elif found.ratios:
        parts.append(Text(f"\n{_NOTHING_DIFFERS}", style="dim"))
    for name, result, words in _failures(found):
        parts += [Text(f"\n{name} {result.status}", style="red"), _indented(result.explanation)]
        parts += [_indented("\n".join(words), "dim")] if words else []
    told = _cautions(found)
    if told:
        parts.append(Text("\nCautions", style="bold"))
        parts += [_indented(f"{kind} {cause}") for kind, cause in told] + [_indented(f"→ {_ALIKE}", "dim")]
    return draw(parts, width, color)


_NOTHING_DIFFERS = "Nothing is known to differ between A and B: a difference would be chance."


def _indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def _grid(titles: Sequence[str], rows: Sequence[Sequence[str]], right: bool = False) -> RenderableType:
    table = quiet_table()
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if right and index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _markdown(found: LiveComparison) -> str:
    escape = markdown.escape
    parts = [f"**{escape(_title(found))}**", f"**{escape(answer(found))}** {escape(basis(found))}"]
    if found.ratios:
        rows = [[*map(escape, _row(name, side.result))] for name, side in _named(found)]
        parts.append(markdown.table(_FIGURES, rows, right=range(1, len(_FIGURES))))
    changed = differences(found.a, found.b)
    if changed:
        rows = [[*map(escape, (each.name, each.a, each.b))] for each in changed]
        parts.append(markdown.table(("differs", "A", "B"), rows))
    notes = [f"- {name} {result.status}: {escape(result.reason or '')}" for name, result, _ in _failures(found)]
    notes += [f"- **{kind}** {escape(cause)}" for kind, cause in _cautions(found)]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def _csv_row(found: LiveComparison) -> list[csv.Cell]:
    cells: dict[str, csv.Cell] = {
        name: getattr(found, name) for name in ("verdict", "ratio", "low", "high", "stopped")
    } | {"pairs": len(found.ratios)}
    for name, side in _named(found):
        result, suffix = side.result, name.lower()
        estimate, memory = result.estimate, result.memory
        cells |= {
            f"case_{suffix}": result.case.text,
            f"status_{suffix}": result.status,
            f"step_{suffix}_s": estimate.center_s if estimate else None,
            f"first_step_{suffix}_s": _first_step_s(result),
            f"memory_{suffix}_bytes": (memory.device_peak_bytes or memory.host_peak_bytes) if memory else None,
            f"torch_{suffix}": side.machine.torch if side.machine else None,
        }
    return [cells.get(column) for column in _COLUMNS]
