"""What every report says about a comparison, worked out once: speeds, intervals, remarks, what was left out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from string import ascii_letters

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, Family, Pair, overall
from torchmark.analyze.differences import written
from torchmark.analyze.evidence import per_item
from torchmark.analyze.pairing import axis_value
from torchmark.analyze.published import ASSUMED
from torchmark.records import Result, Run
from torchmark.report import figures, units
from torchmark.report.names import Names, shared_place

MARKS = {"faster": "▲", "slower": "▼", "same": "=", "similar": "≈", "unsure": "?"}
BASELINE = "baseline"
_SHOWN = 6
_DISTURBED = ("contended", "throttled")


class Side(Struct, frozen=True):
    """How one side of a comparison is called, in a heading and inside a sentence."""

    title: str
    place: str


class Sheet(Struct, frozen=True):
    """One comparison with everything that its rows need: who is compared, and what they all have in common."""

    comparison: Comparison
    a: Side
    b: Side
    shared: tuple[str, ...]  # remarks that hold for every pair
    names: Names  # as the rows call the cases
    axis: str | None = None  # what is compared inside a run
    letters: Mapping[str, str] = {}  # of known flaws, by their causes; of all sheets that are shown together

    @property
    def shown_axis(self) -> str | None:
        """The axis, where the rows must say themselves which two values of it they compare."""
        return self.axis if self.a.title == BASELINE else None


def letter(index: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def place(index: int) -> str:
    """in B"""
    return f"in {letter(index)}"


def sheets(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> list[Sheet]:
    """A comparison inside each run, where there are as many as runs; else one of each later run with the first."""
    if len(comparisons) == len(runs):
        found = [_inner_sheet(comparison) for comparison in comparisons]
    else:
        found = [
            _sheet(comparison, Side("A", "in A"), Side(letter(index), place(index)))
            for index, comparison in enumerate(comparisons, 1)
        ]
    return [replace(sheet, letters=flaw_letters(comparisons)) for sheet in found]


def _inner_sheet(comparison: Comparison) -> Sheet:
    """The columns are called by the two values where all rows compare the same two."""
    assert comparison.axis is not None
    axis = comparison.axis
    values = {(axis_value(pair.a, axis), axis_value(pair.b, axis)) for pair in comparison.pairs}
    names = [value if isinstance(value, str) else f"{axis} {written(value)}" for both in values for value in both]
    first, second = names if len(names) == 2 else (BASELINE, "other")
    return _sheet(comparison, Side(first, f"with {first}"), Side(second, f"with {second}"), axis)


def _sheet(comparison: Comparison, a: Side, b: Side, axis: str | None = None) -> Sheet:
    firsts = [pair.a for pair in comparison.pairs] or [each.a for each in comparison.unpaired if each.a]
    alike = [remarks(pair, a, b, axis) for pair in comparison.pairs]
    shared = [text for text in alike[0] if all(text in texts for texts in alike)] if alike else []
    return Sheet(comparison, a, b, tuple(shared), Names(shared_place(firsts)), axis)


def remarks(pair: Pair, a: Side, b: Side, axis: str | None) -> list[str]:
    """What should be known before the ratio is believed: what differs, what disturbed, why there is no interval."""
    found = [each.text for each in pair.differences if each.name != axis]
    for result, side in ((pair.a, a), (pair.b, b)):
        if result.estimate and result.estimate.verdict in _DISTURBED:
            found.append(f"{result.estimate.verdict} {side.place}")
    return found + ([f"no interval: {pair.no_interval}"] if pair.no_interval else [])


def own_remarks(pair: Pair, sheet: Sheet) -> list[str]:
    """The remarks that only some pairs have."""
    found = remarks(pair, sheet.a, sheet.b, sheet.axis)
    return [text for text in found if text not in sheet.shared]


def case_name(result: Result, sheet: Sheet) -> str:
    """The case as a row calls it."""
    return sheet.names.of(result)


def axis_values(pair: Pair, axis: str) -> str:
    """16 → 64"""
    return f"{written(axis_value(pair.a, axis))} → {written(axis_value(pair.b, axis))}"


def both_figures(pair: Pair) -> tuple[str, str]:
    """What was compared: two step times, or two rates where a step is not the same amount of work."""
    rates = per_item(pair.a, pair.b)
    first, second = (_rate(result) if rates else _time(result) for result in (pair.a, pair.b))
    return first, second


def speed(row: Pair | Family) -> str:
    """How many times as fast the second side is as the first; a published figure deserves two digits."""
    return units.factor(1 / row.ratio, rough=isinstance(row, Pair) and row.assumed is not None)


def interval(row: Pair | Family) -> str:
    """The 95% interval of the speed, or what is assumed instead."""
    if isinstance(row, Pair) and row.assumed is not None:
        return units.relative(row.assumed)
    if row.low is None or row.high is None:
        return units.NOTHING
    return f"{_bound(1 / row.high)} – {_bound(1 / row.low)}"


def interval_title(sheet: Sheet) -> str:
    """The heading over the intervals."""
    return "assumed ±" if all(pair.assumed is not None for pair in sheet.comparison.pairs) else "95% interval"


def flaw_letters(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """A letter for each known flaw of a published figure, by its cause: publications share some of them."""
    flaws = (flaw for comparison in comparisons for pair in comparison.pairs for flaw in pair.flaws)
    return dict(zip(dict.fromkeys(flaw.cause for flaw in flaws), ascii_letters, strict=False))


def flaw_marks(pair: Pair | Family | None, letters: Mapping[str, str]) -> str:
    """[ab]"""
    found = sorted(letters.get(flaw.cause, "") for flaw in pair.flaws) if isinstance(pair, Pair) else []
    return f" [{''.join(found)}]" if found else ""


def resolution(comparisons: Sequence[Comparison]) -> str:
    """What measured runs were found to differ in, and what would not have been seen."""
    pairs = [pair for each in comparisons for pair in each.pairs if pair.assumed is None and pair.visible is not None]
    if not pairs:
        return ""
    counts = {word: sum(pair.verdict == word for pair in pairs) for word in ("slower", "faster")}
    said = [f"{count or 'no'} {'row is' if count < 2 else 'rows are'} {word}" for word, count in counts.items()]
    shares = sorted(pair.visible or 0.0 for pair in pairs)
    middle, worst = units.percent(statistics.median(shares)), units.percent(shares[-1])
    more = f" (in the worst row, under {worst})" if worst != middle else ""
    found = said[0] if not counts["faster"] else ", ".join(said)
    return f"{found.capitalize()}; differences under {middle} would not be visible{more}."


def means(comparison: Comparison) -> list[tuple[str, Family]]:
    """The workloads with several cases, and all of them together where there are several and all were measured."""
    found = [(f"{each.name}, {each.count} cases", each) for each in comparison.families if each.count > 1]
    total = overall(comparison.families)
    measured = all(pair.assumed is None for pair in comparison.pairs)
    if total is not None and len(comparison.families) > 1 and measured:
        found.append((f"all {len(comparison.families)} workloads, each counted once", total))
    return found


def left_out(comparison: Comparison, names: Names) -> list[tuple[str, str, list[str]]]:
    """What was not compared: the kind, the reason, and the cases that share it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in comparison.unpaired:
        known = each.a or each.b
        name = names.of(known) if known else each.case
        groups.setdefault((each.kind, each.reason), []).append(name)
    return [(kind, reason, names) for (kind, reason), names in groups.items()]


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def footnote(comparisons: Sequence[Comparison], what: str, shown: bool = True) -> str:
    """On what footing the answers stand; `shown`: the intervals stand beside them."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    known = [pair for pair in pairs if pair.low is not None]
    beside = ", with its 95% interval over fresh processes" if shown and known else ""
    rows = f"; the verdicts hold for all {len(known)} of them together" if len(known) > 1 else ""
    assumed = f" Published figures have no interval: {units.relative(ASSUMED)} or more is assumed for each."
    return f"Speed: {what}{beside}{rows}." + assumed * any(pair.assumed is not None for pair in pairs)


def _bound(value: float) -> str:
    return f"{value:.2f}" if 0.095 <= value < 9.995 else f"{value:.2g}" if value < 1 else units.digits(value)


def _time(result: Result) -> str:
    return figures.step_time(result.estimate) if result.estimate else units.NOTHING


def _rate(result: Result) -> str:
    return units.rate(figures.step_rate(result), "").replace(" ", "")
