"""Runs compared case by case: how much faster or slower, how sure that is, and what could not be compared.

Step times are compared as logarithms, so that swapping the runs only turns every ratio over. Fresh processes of the
same case differ by more than the interval inside one of them tells, so the interval of a ratio rests on the spread
between processes: the case's own where it was measured in two or more, moderated by what the other cases of its run
tell, else the one that its run measured on a reference case. Two runs differ as wholes, too (RUN_SPREAD). Where no
spread is known, no answer is given.

A published figure has no interval. A pair with such a side is judged by an assumed uncertainty instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.differences import Difference, differences_of
from torchmark.analyze.evidence import (
    CHANCE,
    EVERYTHING,
    Side,
    chance_beyond,
    explained,
    holm,
    sides_of,
    variance_of_rounds,
)
from torchmark.analyze.pairing import PLACES, Match, Pairing, Places, Unpaired, pair_runs, pair_within
from torchmark.analyze.published import answer_within, band_of, flaws_of, is_published
from torchmark.analyze.repeat import DRIFT, MOST_FREEDOM, RUN_SPREAD, total_variance, with_known
from torchmark.analyze.student import critical
from torchmark.records import Caution, Result, Run

Answer = Literal["faster", "slower", "same", "similar", "unsure"]  # similar: as far as a published figure can say

# A difference counts only where the whole interval lies beyond this: nobody acts on less than 1%.
DIFFERENT = 0.01
# Two times count as the same only where the whole interval lies within this: a larger difference is ruled out.
SAME = 0.05


class Pair(Struct, frozen=True):
    """One case on both sides. `ratio` is the step time of b over that of a: below 1, b is faster.

    Where a step does another amount of work, as with more workers, the time of one item stands for that of a step.
    """

    case: str
    ratio: float
    verdict: Answer
    basis: str  # what the interval rests on, in words
    a: Result
    b: Result
    low: float | None = None  # 95% interval of the ratio, of this case alone
    high: float | None = None
    p_value: float | None = None  # of no difference beyond 1%, corrected for the number of cases
    differences: tuple[Difference, ...] = ()
    error: float | None = None  # standard error of the logarithm of the ratio
    freedom: float | None = None  # degrees of freedom of that error
    explained: float = 0.0  # how much of that logarithm others may be to blame for, who kept the slower side busy
    no_interval: str | None = None  # why there is none
    assumed: float | None = None  # where a side was published: how far the ratio may be off, as a share
    flaws: tuple[Caution, ...] = ()  # what is known to be wrong with the published sides
    visible: float | None = None  # the smallest difference that would have been called one, as a share


class Family(Struct, frozen=True):
    """All pairs of one workload: the geometric mean of their ratios."""

    name: str
    count: int
    ratio: float
    verdict: Answer = "unsure"
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    error: float | None = None
    freedom: float | None = None
    explained: float = 0.0


class Comparison(Struct, frozen=True):
    """Everything that two runs, or two settings inside one run, say about each other."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[Unpaired, ...]
    families: tuple[Family, ...] = ()
    axis: str | None = None  # what partners differ in on purpose
    visible: float | None = None  # of the measured pairs: the median of the smallest visible differences
    visible_worst: float | None = None  # and the largest


def compare_runs(a: Run, b: Run, by: str | None = None) -> Comparison:
    """Pair the cases of two runs that did the same work, and say for each whether b is faster than a.

    `faster` and `slower` hold over the whole table: p-values are corrected after Holm. `same` needs an interval that
    touches 1 ± 1% and stays within ±5%. Everything else is `unsure`. Partners may differ in `by`.
    """
    return compare_all((a, b), by)[0]


def compare_all(runs: Sequence[Run], by: str | None = None, places: Sequence[str] = ()) -> tuple[Comparison, ...]:
    """Every run after the first against the first; the answers hold over all of them together."""
    first, *others = runs
    named: Sequence[Places] = [(places[0], place) for place in places[1:]] if places else [PLACES] * len(others)
    return _judge_all(
        _compare(first, other, pair_runs(first, other, by, both), by) for other, both in zip(others, named, strict=True)
    )


def compare_within(runs: Sequence[Run], by: str) -> tuple[Comparison, ...]:
    """Inside each run the cases that differ in `by` alone, against a baseline; the answers hold over all runs."""
    return _judge_all(_compare(run, run, pair_within(run, by), by) for run in runs)


def find_slower(comparisons: Sequence[Comparison], share: float) -> tuple[Pair | Family, ...]:
    """Cases, and workloads with several cases, that are slower by more than `share`, beyond what chance explains."""
    found: list[Pair | Family] = [pair for comparison in comparisons for pair in comparison.pairs]
    found += [family for comparison in comparisons for family in comparison.families if family.count > 1]
    known = [each for each in found if each.error is not None]
    chances = [_chance(each, share) if each.ratio > 1 else 1.0 for each in known]
    slower = [each for each, chance in zip(known, holm(chances), strict=True) if chance < CHANCE]
    assumed = [each for each in found if isinstance(each, Pair) and each.assumed is not None]
    return (*slower, *(pair for pair in assumed if pair.ratio > (1 + share) * (1 + (pair.assumed or 0.0))))


def find_lost(comparisons: Sequence[Comparison]) -> tuple[Unpaired, ...]:
    """Cases that succeeded on the first side, and on the other failed or are not there."""
    unpaired = [each for comparison in comparisons for each in comparison.unpaired]
    return tuple(each for each in unpaired if each.a and each.a.status == "ok" and each.kind != "refused")


def overall(families: Sequence[Family]) -> Family | None:
    """The geometric mean in which every workload counts once, however many cases of it there are.

    The errors of workloads are independent of one another, except that two runs may differ as wholes.
    """
    if not families:
        return None
    count = len(families)
    center = math.fsum(math.log(family.ratio) for family in families) / count
    blame = math.fsum(family.explained for family in families) / count
    mean = Family("all workloads", sum(family.count for family in families), math.exp(center), explained=blame)
    known = [(family.error, family.freedom or 1.0) for family in families if family.error is not None]
    if len(known) < count:
        return mean
    parts = [((error / count) ** 2, freedom) for error, freedom in known]
    variance, freedom = with_known(*total_variance(parts), 2 * RUN_SPREAD**2)
    return _judge([_with_interval(mean, math.sqrt(variance), freedom)])[0]


def _compare(a: Run, b: Run, pairing: Pairing, axis: str | None) -> Comparison:
    spreads = _spreads(a, b)
    matches, known, unpaired = [], [], []
    for match in pairing.matches:
        both = sides_of(match.a, match.b, spreads)
        if both is None:
            unpaired.append(Unpaired(match.a.case.text, "no step time above zero", "refused", match.a, match.b))
            continue
        matches.append(match)
        known.append(both)
    apart = 0.0 if a is b else 2 * RUN_SPREAD**2
    pairs = [
        _pair(match, both, differences_of(match.a, match.b, a.header, b.header), apart)
        for match, both in zip(matches, known, strict=True)
    ]
    families = [_with_published(family, pairs) for family in _families(pairs, known, apart)]
    return Comparison(tuple(pairs), (*unpaired, *pairing.unpaired), tuple(families), axis)


def _spreads(a: Run, b: Run) -> tuple[float | None, float | None]:
    """The spread between processes of each run; one machine's spread serves both of its runs."""
    first, second = a.process_spread, b.process_spread
    if a.header.machine == b.header.machine:
        return second if first is None else first, first if second is None else second
    return first, second


def _pair(match: Match, sides: tuple[Side, Side], differences: tuple[Difference, ...], apart: float) -> Pair:
    """`apart` is the variance that two runs add as wholes."""
    first, second = sides
    difference = min(max(second.center - first.center, -EVERYTHING), EVERYTHING)
    pair = Pair(
        match.a.case.text,
        math.exp(difference),
        "unsure",
        f"{first.basis} against {second.basis}",
        match.a,
        match.b,
        differences=differences,
        explained=explained(match.b if difference > 0 else match.a),
        no_interval=first.doubt or second.doubt,
    )
    if is_published(match.a) or is_published(match.b):
        return _published(pair)
    if first.variance is None or second.variance is None:
        return pair
    drift = DRIFT**2 if apart else 0.0  # inside one run, cases share the state of the machine
    parts = [(first.variance + drift * first.spread, first.freedom)]
    parts.append((second.variance + drift * second.spread, second.freedom))
    variance, freedom = with_known(*total_variance(parts), apart)
    return _with_interval(pair, math.sqrt(variance), freedom)


def _published(pair: Pair) -> Pair:
    """A pair with a side that was published: judged by what such figures are assumed to be off."""
    band = band_of(pair.a, pair.b)
    flaws = dict.fromkeys((*flaws_of(pair.a), *flaws_of(pair.b)))
    return replace(
        pair,
        verdict=answer_within(pair.ratio, band),
        basis="the assumed uncertainty of published figures",
        no_interval=None,
        assumed=band,
        flaws=tuple(flaws),
        visible=band,
    )


def _with_published(family: Family, pairs: Sequence[Pair]) -> Family:
    """The verdict on a mean that rests on published figures: their errors may all point the same way."""
    own = [pair.assumed for pair in pairs if pair.a.case.workload == family.name]
    known = [band for band in own if band is not None]
    return replace(family, verdict=answer_within(family.ratio, statistics.fmean(known))) if known else family


Row = TypeVar("Row", Pair, Family)


def _with_interval(row: Row, error: float, freedom: float) -> Row:
    center = math.log(row.ratio)
    reach = error * critical(freedom, CHANCE) if error > 0 else 0.0
    row = replace(
        row,
        low=math.exp(max(center - reach, -EVERYTHING)),
        high=math.exp(min(center + reach, EVERYTHING)),
        error=error,
        freedom=min(freedom, MOST_FREEDOM),
    )
    return replace(row, p_value=_chance(row, DIFFERENT))


def _chance(row: Pair | Family, share: float) -> float:
    """How often chance alone, and others who kept the slower side busy, would part equals so far."""
    assert row.error is not None
    assert row.freedom is not None
    return chance_beyond(abs(math.log(row.ratio)) - row.explained, row.error, row.freedom, share)


def _families(pairs: Sequence[Pair], sides: Sequence[tuple[Side, Side]], apart: float) -> Iterable[Family]:
    groups: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.a.case.workload, []).append(index)
    for name, members in groups.items():
        yield _family(name, [pairs[index] for index in members], [sides[index] for index in members], apart)


def _family(name: str, pairs: Sequence[Pair], sides: Sequence[tuple[Side, Side]], apart: float) -> Family:
    """The mean of a workload's cases; `apart` is the variance that two runs add as wholes."""
    count = len(pairs)
    center = math.fsum(math.log(pair.ratio) for pair in pairs) / count
    blame = math.fsum(explained(pair.b if center > 0 else pair.a) for pair in pairs) / count
    family = Family(name, count, math.exp(center), explained=blame)
    known = [(pair.error, pair.freedom) for pair in pairs if pair.error is not None and pair.freedom is not None]
    if len(known) < count:
        return family
    rounds = [variance_of_rounds([both[side].logs for both in sides]) for side in (0, 1)]
    first, second = rounds
    if count == 1 or first is None or second is None:
        # With one process each nothing tells how far the errors depend on one another: assume the worst.
        return _with_interval(
            family, math.fsum(error for error, _ in known) / count, min(freedom for _, freedom in known)
        )
    own, own_freedom = total_variance([(error**2 / count**2, freedom) for error, freedom in known])
    # Processes of one round share what disturbed the machine then: means of rounds differ by more than their cases do.
    together, freedom = total_variance([first, second])
    parts = [(own, own_freedom), (max(together - own, 0.0), freedom), (apart, math.inf)]
    variance, freedom = total_variance(parts)
    return _with_interval(family, math.sqrt(variance), freedom)


def _judge_all(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """All pairs are one table and all families another: with more rows, each needs more evidence."""
    comparisons = tuple(comparisons)
    pairs = iter(_with_visible(_judge([pair for comparison in comparisons for pair in comparison.pairs])))
    families = iter(_judge([family for comparison in comparisons for family in comparison.families]))
    return tuple(
        _with_resolution(
            replace(
                comparison,
                pairs=tuple(next(pairs) for _ in comparison.pairs),
                families=tuple(next(families) for _ in comparison.families),
            )
        )
        for comparison in comparisons
    )


def _with_visible(pairs: Sequence[Pair]) -> list[Pair]:
    """Each with the smallest difference that the test, corrected for the number of pairs, would have called one."""
    chance = CHANCE / max(1, sum(pair.error is not None for pair in pairs))
    return [
        replace(pair, visible=_visible(pair.error, pair.freedom, pair.explained, chance))
        if pair.error is not None and pair.freedom is not None
        else pair
        for pair in pairs
    ]


def _visible(error: float, freedom: float, blame: float, chance: float) -> float:
    reach = error * critical(freedom, chance) if error > 0 else 0.0
    return math.expm1(min(math.log1p(DIFFERENT) + blame + reach, EVERYTHING))


def _with_resolution(comparison: Comparison) -> Comparison:
    known = [pair.visible for pair in comparison.pairs if pair.visible is not None and pair.assumed is None]
    return replace(comparison, visible=statistics.median(known), visible_worst=max(known)) if known else comparison


def _judge(rows: Sequence[Row]) -> list[Row]:
    known = [index for index, row in enumerate(rows) if row.p_value is not None]
    corrected = dict(zip(known, holm([rows[index].p_value or 0.0 for index in known]), strict=True))
    return [
        replace(row, p_value=corrected[index], verdict=_answer(row, corrected[index])) if index in corrected else row
        for index, row in enumerate(rows)
    ]


def _answer(row: Pair | Family, p_value: float) -> Answer:
    assert row.low is not None
    assert row.high is not None
    if p_value < CHANCE:
        return "faster" if row.ratio < 1 else "slower"
    touches = row.low <= 1 + DIFFERENT and row.high >= 1 / (1 + DIFFERENT)
    inside = row.low >= 1 / (1 + SAME) and row.high <= 1 + SAME
    return "same" if touches and inside else "unsure"
