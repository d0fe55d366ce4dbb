"""Runs compared case by case: how much faster or slower, how sure that is, and what could not be compared.

Step times are compared as logarithms, so that swapping the runs only inverts every ratio. Fresh processes of the same
case differ by more than the interval inside one of them, so the interval of a ratio rests on the spread between
processes: the case's own where it was measured in two or more, moderated by the other cases of its run, else the one
measured on a reference case. Two runs also differ as wholes (RUN_SPREAD). Where no spread is known, there is no answer.

A published figure has no interval. A pair with such a side is judged by an assumed uncertainty instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import answer_within, band_of, flaws_of, is_published
from torchmark.analyze.pairing import (
    PLACES,
    Difference,
    Match,
    Pairing,
    Places,
    Unpaired,
    differences_of,
    pair_runs,
    pair_within,
)
from torchmark.analyze.spread import (
    BORROWED_FREEDOM,
    DRIFT,
    MOST_FREEDOM,
    RUN_SPREAD,
    critical,
    total_variance,
    two_sided,
    variance,
    with_known,
    within_variance,
)
from torchmark.records import Estimand, Estimate, Remark, Result, Run

if TYPE_CHECKING:
    from torchmark.analyze.interleaved import (
        LiveComparison,  # imports numpy, which a comparison of stored runs does not need
    )


CONFIDENCE = 0.95
CHANCE = 1 - CONFIDENCE
EVERYTHING = 700.0  # logarithm of about the largest ratio that a computer can hold


class Side(Struct, frozen=True):
    """One run's knowledge of the logarithm of a time; the variance is None where it is unknown."""

    logs: tuple[float, ...]  # of each process
    variance: float | None
    freedom: float
    basis: str
    doubt: str | None = None
    spread: float = 0.0  # the variance of one process

    @property
    def center(self) -> float:
        return math.fsum(self.logs) / len(self.logs)


def explained(result: Result) -> float:
    """How much of the logarithm of a contended time others may be to blame for: a share of it that cannot be larger
    than what they took, twice over, because a step waits for the last of its threads. From half of the time on, all."""
    if result.estimate is None or result.estimate.verdict != "contended":
        return 0.0
    seen = result.estimate.contention
    shares = (seen.wait_share, seen.other_cpu_share, seen.steal_share, seen.throttled_share)
    worst = max((share for share in shares if share is not None), default=0.0)
    taken = max(worst, (seen.probe_dilation or 1.0) - 1.0)
    return -math.log1p(-2 * taken) if taken < 0.499 else EVERYTHING


def per_item(a: Result, b: Result) -> bool:
    """Whether the two results are compared by the time of an item, because a step does not do the same amount."""
    return bool(a.work and b.work and a.work.items != b.work.items and a.work.items > 0 and b.work.items > 0)


def sides_of(a: Result, b: Result, spreads: tuple[float | None, float | None]) -> tuple[Side, Side] | None:
    """What is known of either side, as the same kind of figure; None where a time is no time."""
    estimand, scaled = _shared_estimand(a, b), per_item(a, b)
    for result in (a, b):
        if result.estimate is None or not all(0 < time < math.inf for time in _times(result, estimand)):
            return None
    first, second = (
        _side(result, estimand, spread, result.work.items if scaled and result.work else 1.0)
        for result, spread in zip((a, b), spreads, strict=True)
    )
    return first, second


def variance_of_rounds(cases: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Variance of the mean over all cases and rounds of processes, and its degrees of freedom."""
    rounds = min(map(len, cases))
    if rounds < 2:
        return None
    means = [math.fsum(logs[index] for logs in cases) / len(cases) for index in range(rounds)]
    return variance(means) / rounds, rounds - 1.0


def chance_beyond(distance: float, error: float, freedom: float, beyond: float) -> float:
    """How often so large a distance would be seen, were the true one no larger than `beyond`, a share."""
    excess = distance - math.log1p(beyond)
    if error == 0 or excess <= 0:
        return 0.0 if excess > 0 else 1.0
    return two_sided(excess / error, freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, step by step from the smallest."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, floor = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = floor
    return corrected


def _shared_estimand(*results: Result) -> Estimand:
    """The common estimand; where they differ, the mean, which every estimate has."""
    kinds = {estimate.estimand for result in results for estimate in _estimates(result)}
    return kinds.pop() if len(kinds) == 1 else "mean"


def _estimates(result: Result) -> tuple[Estimate, ...]:
    return result.processes or ((result.estimate,) if result.estimate else ())


def _times(result: Result, estimand: Estimand) -> list[float]:
    return [estimate.center_s if estimate.estimand == estimand else estimate.mean_s for estimate in _estimates(result)]


def _side(result: Result, estimand: Estimand, spread: float | None, items: float) -> Side:
    """Use the spread that the run found for the case, else that of its processes, else a borrowed one."""
    estimates, known = _estimates(result), result.estimate
    logs = tuple(math.log(time / items) for time in _times(result, estimand))
    count = len(logs)
    if count == 1 and estimates[0].verdict == "as-published":
        doubt = "a published figure" if "printed" in result.settings else "timed as published"
        return Side(logs, None, 1.0, doubt, doubt)
    if known is not None and known.spread is not None and known.freedom:
        basis = f"{count} processes" if count > 1 else "a borrowed spread"
        return Side(logs, known.spread**2 / count, known.freedom, basis, spread=known.spread**2)
    if count > 1:
        between = variance(logs)
        return Side(logs, between / count, count - 1.0, f"{count} processes", spread=between)
    if spread is None:
        return Side(logs, None, 1.0, "one process", "one process, and no spread between processes is known")
    only = estimates[0]
    ends = () if only.estimand == estimand else (only.mean_low_s, only.mean_high_s)
    alone = math.log1p(spread) ** 2 + within_variance(only, *ends)
    return Side(logs, alone, BORROWED_FREEDOM, "a borrowed spread", spread=alone)


Answer = Literal["faster", "slower", "same", "similar", "unsure"]  # similar: as far as a published figure can say

# A difference counts only where the whole interval lies beyond this: less than 1% changes no decision.
DIFFERENT = 0.01
# Two times count as the same only where the whole interval lies within this: a larger difference is ruled out.
SAME = 0.05


class Pair(Struct, frozen=True):
    """One case on both sides. `ratio` is the step time of b over that of a: below 1, b is faster.

    Where a step does another amount of work, as with more workers, the times of one item are compared instead.
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
    flaws: tuple[Remark, ...] = ()  # what is known to be wrong with the published sides
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
    """The probability of so large a difference by chance and by the disturbance of the slower side."""
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
        # With one process each, the correlation of the errors is unknown: assume the worst.
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
    pairs = _with_visible(_judge([pair for comparison in comparisons for pair in comparison.pairs]))
    families = iter(_judge([family for comparison in comparisons for family in comparison.families]))
    judged = []
    for each in comparisons:
        own = tuple(next(pairs) for _ in each.pairs)
        known = [pair.visible for pair in own if pair.visible is not None and pair.assumed is None]
        found = replace(each, pairs=own, families=tuple(next(families) for _ in each.families))
        if known:
            found = replace(found, visible=statistics.median(known), visible_worst=max(known))
        judged.append(found)
    return tuple(judged)


def _with_visible(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Each with the smallest difference that the test, corrected for the number of pairs, would have called one."""
    chance = CHANCE / max(1, sum(pair.error is not None for pair in pairs))
    for pair in pairs:
        if pair.error is None or pair.freedom is None:
            yield pair
            continue
        reach = pair.error * critical(pair.freedom, chance) if pair.error > 0 else 0.0
        visible = math.expm1(min(math.log1p(DIFFERENT) + pair.explained + reach, EVERYTHING))
        yield replace(pair, visible=visible)


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


Word = Literal["PASS", "FAIL", "INCONCLUSIVE"]


class Gate(Struct, frozen=True):
    """The answer to one limit. PASS needs data in which a difference of that size would have been visible."""

    word: Word
    limit: float
    visible: float | None = None  # the largest of the smallest visible differences; None: nothing could be seen
    decidable: float | None = None  # the smallest limit that this data decides; None: it decides none
    slower: tuple[Pair | Family, ...] = ()
    lost: tuple[Unpaired, ...] = ()
    blind: tuple[Pair, ...] = ()  # cases in which a difference of the limit would not be visible


def gate_runs(comparisons: Sequence[Comparison], limit: float, inside: bool = False) -> Gate:
    """The gate on stored runs. Inside one run nothing can have gone missing."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    slower = find_slower(comparisons, limit)
    lost = tuple(each for each in find_lost(comparisons) if each.kind == "failed" or not inside)
    blind = tuple(pair for pair in pairs if pair.visible is None or pair.visible > limit)
    visible = max((math.inf if pair.visible is None else pair.visible for pair in pairs), default=math.inf)
    word: Word = "FAIL" if slower or lost else "INCONCLUSIVE" if blind else "PASS"
    return Gate(word, limit, visible if visible < math.inf else None, _decidable(visible), slower, lost, blind)


def gate_live(found: LiveComparison, limit: float) -> Gate:
    """The gate on two sides that took turns: B must be shown to be slower by more, or not to be."""
    failed = found.b.result.status not in ("ok", "interrupted")
    if found.ratio is None or found.low is None or found.high is None:
        return Gate("FAIL" if failed else "INCONCLUSIVE", limit)
    visible = found.high / found.ratio * (1 + DIFFERENT) - 1
    slower, undecided = found.low > 1 + limit, found.high > 1 + limit
    word: Word = "FAIL" if slower or failed else "INCONCLUSIVE" if undecided else "PASS"
    return Gate(word, limit, visible, _decidable(found.high - 1))


def _decidable(share: float) -> float | None:
    """Rounded up to a whole percentage."""
    percent = math.ceil(share * 100 - 1e-9) / 100 if share < 1 else 1.0
    return max(percent, 0.01) if percent < 1 else None
