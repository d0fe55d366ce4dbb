"""What a search for the fastest settings has found, as text: the winner, its gain, what each setting brought."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchmark.analyze.configurations import name_of, same_precision
from torchmark.analyze.confirmation import WIDEST
from torchmark.analyze.tuning import Tuned, recall_tuned, step_beside
from torchmark.errors import UnknownName
from torchmark.records import Result, Run
from torchmark.report import FORMATS, csv, figures, json, markdown, units
from torchmark.report.console import draw, fold_case, section
from torchmark.report.headings import longer, machine_line
from torchmark.report.snippet import snippet
from torchmark.report.terminal import pasting
from torchmark.report.text import Drawn, clean, clean_run, clean_values

_TITLES = ("settings", "per step", "rate", "as fast", "")
_CSV = (
    "case",
    "status",
    "reason",
    "step_s",
    "items_per_s",
    "gain_in_rounds",
    "winner",
    "same_precision",
    "gain",
    "low",
    "high",
)
_STOPPED = {
    "budget": "The budget was spent before everything was tried: give it more with --budget.",
    "interrupted": "It was interrupted.",
}
_STOPPED_EARLY = {"interrupted": "it was interrupted", "budget": "the budget was spent"}
_NARROWEST = 20
UNDECIDED = 1.25  # times as fast: where no less than this is possible, nobody should be told to stay with the default


def render_tuned(
    run: Run,
    tuned: Tuned,
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
) -> str:
    """The outcome in one of the formats that every command knows."""
    run, tuned = clean_run(run), msgspec.convert(clean_values(msgspec.to_builtins(tuned)), Tuned)
    run = replace(run, tuning=tuned.conclusion, results=tuned.results)
    match format:
        case "table":
            again = f"torchmark run {clean(tuned.winner.text)}\n"  # in one piece, however long: it is to be pasted
            return Drawn(draw(_parts(run, tuned, width), width, color) + again)
        case "md":
            return _markdown(run, tuned)
        case "csv":
            return csv.table(_CSV, [_csv_row(tuned, result) for result in tuned.results])
        case "json":
            return json.render_json(run, {"tuned": _facts(tuned)})
        case "jsonl":
            return json.lines([_facts(tuned)])
    raise UnknownName("format", format, FORMATS)


def answer(tuned: Tuned) -> str:
    """The answer in one sentence."""
    leader = tuned.unconfirmed or tuned.winner
    if leader.text == tuned.default.text and tuned.stopped != "done" and not tuned.relative:
        return f"Inconclusive: {_STOPPED_EARLY[tuned.stopped]} before any settings were compared."
    if leader.text == tuned.default.text:
        return "Nothing that was tried is faster than the default beyond chance."
    name = name_of(leader, tuned.default)
    if tuned.gain is None or tuned.low is None or tuned.high is None:
        return f"Inconclusive: {name} led the search, but that is not confirmed: {_why_unconfirmed(tuned)}."
    if tuned.unconfirmed and tuned.high > WIDEST * tuned.low:
        return f"Inconclusive: {name} led the search, but pairs of fresh processes differ too much to confirm it."
    known = f"{units.factor(tuned.gain)} as fast as the default ({_bound(tuned.low)} to {_bound(tuned.high)})"
    if tuned.unconfirmed and tuned.high > UNDECIDED:
        return f"Inconclusive: {name} led the search, but measured again it is {known}."
    if tuned.unconfirmed:
        return f"Stay with the default: {name} led the search, but measured again it is {known}."
    return f"{name} is {known}."


def _why_unconfirmed(tuned: Tuned) -> str:
    if tuned.disturbed:
        return f"other programs disturbed {tuned.disturbed} of {tuned.disturbed + tuned.pairs} pairs of processes"
    return _STOPPED_EARLY.get(tuned.stopped, "its processes failed when they were started again")


def notes(tuned: Tuned, command: str) -> list[str]:
    """What the answer rests on, what is missing, and what else is worth knowing, a sentence each."""
    found = []
    if tuned.gain is not None:
        found.append(f"95% interval over {tuned.pairs} pairs of fresh processes that took turns, after the search.")
    if tuned.unconfirmed and (tuned.gain is None or (tuned.high or 0.0) > UNDECIDED):
        found.append(f"To find out, close other programs and run: {longer(command)}")
    same, gain = tuned.same_precision, tuned.same_precision_gain
    if same.text != tuned.winner.text:
        best = "the default itself" if same.text == tuned.default.text else name_of(same, tuned.default)
        seen = f", {units.factor(gain)} as fast by the search" if gain and same.text != tuned.default.text else ""
        found.append(f"Best in {tuned.default.dtype}: {best}{seen}.")
    found += _peak_note(tuned)
    if tuned.break_even:
        even = tuned.break_even
        steps = f"{math.ceil(even.steps):,}".replace(",", " ")
        found.append(
            f"Compiling takes {units.duration(even.compiling_s)}, saves {units.duration(even.saved_s)} a step: "
            f"pays off after {steps} steps."
        )
    count = len(tuned.results)
    found.append(f"{count} configuration{'s' if count != 1 else ''} in {units.duration(tuned.duration_s)}.")
    return found + ([_STOPPED[tuned.stopped]] if tuned.stopped in _STOPPED else [])


def _peak_note(tuned: Tuned) -> list[str]:
    """How much of what the machine can do was used, where that is known of both."""
    shares = {result.case.text: result.peak.share for result in tuned.results if result.peak}
    before, after = (shares.get(case.text) for case in (tuned.default, tuned.winner))
    if before is None or after is None or tuned.winner.text == tuned.default.text:
        return []
    own = "" if same_precision(tuned.winner, tuned.default) else ", each of the peak of its own number format"
    return [
        f"Of this machine's peak it uses {units.percent(after)}, where the default uses {units.percent(before)}{own}."
    ]


def conclusion(run: Run) -> list[str]:
    """The answer and what belongs to it, as the command, `show` and the page all say it."""
    tuned = recall_tuned(run)
    return [answer(tuned), *notes(tuned, run.header.command)]


def _bound(value: float) -> str:
    return units.factor(value).removesuffix("×")


def _parts(run: Run, tuned: Tuned, width: int) -> list[RenderableType]:
    better = tuned.winner.text != tuned.default.text
    said, *more = conclusion(run)
    parts: list[RenderableType] = [
        Text(f"tuned {tuned.default.text}", style="bold"),
        Text(machine_line(run.header.machine), style="dim"),
        Text(f"\n{said}", style="green" if better else ""),
        *(Text(note, style="dim") for note in more),
    ]
    if len(tuned.contributions) > 1:
        brought = [(each.setting, units.factor(each.gain)) for each in tuned.contributions]
        parts += [Text("\nWhat each setting brought", style="bold"), Padding(_grid(("", ""), brought), (0, 0, 0, 2))]
    rows = _rows(tuned)
    room = width - sum(max(len(row[index]) for row in (_TITLES, *rows)) + 2 for index in range(1, len(_TITLES)))
    rows = [[fold_case(row[0].replace(" + ", "+"), max(room, _NARROWEST)), *row[1:]] for row in rows]
    parts += [
        Text("\nWhat was tried, the fastest first", style="bold"),
        Padding(_grid(_TITLES, rows, True), (0, 0, 0, 0)),
    ]
    parts += section("Without a figure", _failures(tuned))
    parts += pasting(tuned.default, tuned.winner)
    return [*parts, Text("\nAgain:", style="dim")]


def _grid(titles: Sequence[str], rows: Sequence[Sequence[str]], heads: bool = False) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD if heads else None,
        show_edge=False,
        show_header=heads,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    for index, title in enumerate(titles):
        last = heads and index == len(titles) - 1
        table.add_column(title, justify="right" if index and not last else "left", no_wrap=index > 0)
    for row in rows:
        table.add_row(*row)
    return table


def _measured(tuned: Tuned) -> list[Result]:
    """Fastest first, by what the rounds say: those disturb all contestants alike."""
    found = [result for result in tuned.results if result.estimate and result.status == "ok"]
    return sorted(found, key=lambda result: -tuned.relative.get(result.case.text, 0.0))


def _rows(tuned: Tuned) -> list[list[str]]:
    rows = []
    for result in _measured(tuned):
        text, equal = result.case.text, _on_equal_terms(tuned, result)
        assert equal.estimate is not None
        rate = units.rate(figures.step_rate(equal), result.work.unit if result.work else "")
        gain = units.factor(tuned.relative.get(text))
        step = figures.step_time(equal.estimate)
        rows.append([name_of(result.case, tuned.default), step, rate, gain, _mark(tuned, text)])
    return rows


def _mark(tuned: Tuned, text: str) -> str:
    known = {
        tuned.same_precision.text: f"best in {tuned.default.dtype}",
        tuned.winner.text: "fastest",
        tuned.default.text: "default",
    }
    if tuned.unconfirmed:
        known[tuned.unconfirmed.text] = "not confirmed"
    seen = tuned.relative
    return known.get(text) or ("within chance" if seen.get(text, 0.0) > seen.get(tuned.winner.text, math.inf) else "")


def _on_equal_terms(tuned: Tuned, result: Result) -> Result:
    """With the time that belongs to its gain."""
    gain = tuned.relative.get(result.case.text)
    default = next((each for each in tuned.results if each.case.text == tuned.default.text), None)
    if not gain or not result.estimate or not default or not default.estimate:
        return result
    return replace(result, estimate=replace(result.estimate, center_s=step_beside(default, result, gain)))


def _failures(tuned: Tuned) -> list[tuple[str, str]]:
    failed = [result for result in tuned.results if result.status != "ok"]
    return [(result.status, f"{name_of(result.case, tuned.default)}\n{result.explanation}") for result in failed]


def _markdown(run: Run, tuned: Tuned) -> str:
    escape = markdown.escape
    said, *more = conclusion(run)
    parts = [
        f"**tuned {escape(tuned.default.text)}** · {escape(machine_line(run.header.machine))}",
        f"**{escape(said)}** {escape(' '.join(more))}",
    ]
    if len(tuned.contributions) > 1:
        rows = [[escape(each.setting), units.factor(each.gain)] for each in tuned.contributions]
        parts.append(markdown.table(("setting", "brought"), rows, right=(1,)))
    parts.append(markdown.table((*_TITLES[:4], "note"), [[*map(escape, row)] for row in _rows(tuned)], right=(1, 2, 3)))
    failed = [f"- {status}: {escape(text.replace(chr(10), ': '))}" for status, text in _failures(tuned)]
    parts += ["\n".join(failed)] if failed else []
    code = snippet(tuned.default, tuned.winner)
    return "\n\n".join([*parts, *([f"```python\n{code}```"] if code else [])]) + "\n"


def _facts(tuned: Tuned) -> dict[str, object]:
    """Everything but the results, which stand in the run, and the case texts beside the cases."""
    facts: dict[str, object] = {
        name: msgspec.to_builtins(getattr(tuned, name)) for name in Tuned.__struct_fields__ if name != "results"
    }
    for name in ("default", "winner", "same_precision"):
        facts[name] = getattr(tuned, name).text
    facts["unconfirmed"] = tuned.unconfirmed.text if tuned.unconfirmed else None
    return facts | {"snippet": snippet(tuned.default, tuned.winner)}


def _csv_row(tuned: Tuned, result: Result) -> list[csv.Cell]:
    text, is_winner = result.case.text, result.case.text == tuned.winner.text
    equal = _on_equal_terms(tuned, result)
    cells: dict[str, csv.Cell] = {
        "case": text,
        "status": result.status,
        "reason": result.reason,
        "step_s": equal.estimate.center_s if equal.estimate else None,
        "items_per_s": figures.step_rate(equal),
        "gain_in_rounds": tuned.relative.get(text),
        "winner": str(is_winner).lower(),
        "same_precision": str(text == tuned.same_precision.text).lower(),
        "gain": tuned.gain if is_winner else None,
        "low": tuned.low if is_winner else None,
        "high": tuned.high if is_winner else None,
    }
    return [cells[name] for name in _CSV]
