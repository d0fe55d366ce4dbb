"""Two runs compared case by case: how much faster or slower, how sure that is, and what could not be compared.

Step times are compared as logarithms, so that swapping the runs only turns every ratio over. Fresh processes of the
same case differ by more than the interval inside one of them tells, so the interval of a ratio rests on the spread
between processes: the case's own where it was measured in two or more, else the one that its run measured on a
reference case. Where neither is known, no answer is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from scipy.special import ndtri, stdtr, stdtrit

from torchmark.records import Estimand, Estimate, Result, Run

Answer = Literal["faster", "slower", "same", "unsure"]

CONFIDENCE = 0.95
# A difference counts only where the whole interval lies beyond this: nobody acts on less than 1%.
DIFFERENT = 0.01
# Two times count as the same only where the whole interval lies within this: a larger difference is ruled out.
SAME = 0.03
# A spread borrowed from the reference case stems from a handful of processes, and of another case: about as much
# evidence as five processes give.
BORROWED_FREEDOM = 4.0


class Pair(Struct, frozen=True):
    """One case in both runs. `ratio` is the step time of b over that of a: below 1, b is faster."""

    case: str
    ratio: float
    verdict: Answer
    basis: str  # what the interval rests on, in words
    a: Result
    b: Result
    low: float | None = None  # 95% interval of the ratio, of this case alone
    high: float | None = None
    p_value: float | None = None  # of no difference beyond 1%, corrected for the number of cases


class Unpaired(Struct, frozen=True):
    """A case that could not be compared, and why."""

    case: str
    reason: str


class Comparison(Struct, frozen=True):
    """Everything that two runs say about each other."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[Unpaired, ...]


class _Side(Struct, frozen=True):
    """One run's knowledge of the logarithm of a step time; the variance is None where it is unknown."""

    log_time: float
    variance: float | None
    freedom: float
    basis: str


def compare_runs(a: Run, b: Run) -> Comparison:
    """Pair the cases of two runs that did the same work, and say for each whether b is faster than a.

    `faster` and `slower` hold over the whole table: p-values are corrected after Holm. `same` needs an interval that
    touches 1 ± 1% and stays within ±3%. Everything else is `unsure`.
    """
    ours = {result.case.text: result for result in a.results}
    theirs = {result.case.text: result for result in b.results}
    pairs, unpaired = [], []
    for text in dict.fromkeys((*ours, *theirs)):
        reason = _obstacle(ours.get(text), theirs.get(text))
        if reason:
            unpaired.append(Unpaired(text, reason))
        else:
            pairs.append(_pair(ours[text], theirs[text], _spreads(a, b)))
    return Comparison(tuple(_judge(pairs)), tuple(unpaired))


def _obstacle(a: Result | None, b: Result | None) -> str | None:
    """Why two results cannot be compared, or None."""
    if a is None or b is None:
        return f"only in the {'first' if b is None else 'second'} run"
    if a.version != b.version:
        return f"the work changed: version {a.version} in the first run, {b.version} in the second"
    estimand = _shared_estimand(a, b)
    failures = {"first": _failure(a, estimand), "second": _failure(b, estimand)}
    reasons = [f"{why} in the {which} run" for which, why in failures.items() if why]
    return ", ".join(reasons) or None


def _failure(result: Result, estimand: Estimand) -> str | None:
    if result.status != "ok":
        return result.status
    if result.estimate is None or not all(0 < time < math.inf for time in _times(result, estimand)):
        return "no step time above zero"
    return None


def _spreads(a: Run, b: Run) -> tuple[float | None, float | None]:
    """The spread between processes of each run; one machine's spread serves both of its runs."""
    first, second = a.process_spread, b.process_spread
    if a.header.machine == b.header.machine:
        return second if first is None else first, first if second is None else second
    return first, second


def _pair(a: Result, b: Result, spreads: tuple[float | None, float | None]) -> Pair:
    estimand = _shared_estimand(a, b)
    first, second = _side(a, estimand, spreads[0]), _side(b, estimand, spreads[1])
    difference = second.log_time - first.log_time
    basis = f"{first.basis} against {second.basis}"
    pair = Pair(a.case.text, math.exp(difference), "unsure", basis, a, b)
    if first.variance is None or second.variance is None:
        return pair
    error, freedom = _welch(first.variance, first.freedom, second.variance, second.freedom)
    reach = error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) if error > 0 else 0.0
    return replace(
        pair,
        low=math.exp(difference - reach),
        high=math.exp(difference + reach),
        p_value=_p_value(difference, error, freedom),
    )


def _shared_estimand(*results: Result) -> Estimand:
    """What all estimates estimate; where they differ, the mean, which every one of them has."""
    kinds = {estimate.estimand for result in results for estimate in _estimates(result)}
    return kinds.pop() if len(kinds) == 1 else "mean"


def _estimates(result: Result) -> tuple[Estimate, ...]:
    return result.processes if len(result.processes) > 1 or not result.estimate else (result.estimate,)


def _times(result: Result, estimand: Estimand) -> list[float]:
    return [estimate.center_s if estimate.estimand == estimand else estimate.mean_s for estimate in _estimates(result)]


def _side(result: Result, estimand: Estimand, spread: float | None) -> _Side:
    logs = [math.log(time) for time in _times(result, estimand)]
    count, center = len(logs), math.fsum(logs) / len(logs)
    within = math.fsum(_within_variance(estimate, estimand) for estimate in _estimates(result)) / count
    if count == 1:
        variance = None if spread is None else math.log1p(spread) ** 2 + within
        return _Side(center, variance, BORROWED_FREEDOM, "one process" if spread is None else "a borrowed spread")
    # Few processes may agree by chance more closely than each of them is known: the spread is never below that.
    between = max(math.fsum((log - center) ** 2 for log in logs) / (count - 1), within)
    return _Side(center, between / count, count - 1.0, f"{count} processes")


def _within_variance(estimate: Estimate, estimand: Estimand) -> float:
    """The variance of the log time that the interval inside one process stands for."""
    own = estimate.estimand == estimand
    low, high = (estimate.low_s, estimate.high_s) if own else (estimate.mean_low_s, estimate.mean_high_s)
    if not 0 < low <= high < math.inf:
        return 0.0
    return (math.log(high / low) / (2 * float(ndtri((1 + CONFIDENCE) / 2)))) ** 2


def _welch(a: float, a_freedom: float, b: float, b_freedom: float) -> tuple[float, float]:
    """Standard error of a difference, and the degrees of freedom that it may claim."""
    largest = max(a, b)
    if largest == 0:
        return 0.0, math.inf
    first, second = a / largest, b / largest  # squares of tiny variances would underflow
    freedom = (first + second) ** 2 / (first**2 / a_freedom + second**2 / b_freedom)
    return math.sqrt(a + b), freedom


def _p_value(difference: float, error: float, freedom: float) -> float:
    """How often so large a difference would be seen, were the true one within ±1%."""
    beyond = abs(difference) - math.log1p(DIFFERENT)
    if error == 0:
        return 0.0 if beyond > 0 else 1.0
    return min(1.0, 2 * float(stdtr(freedom, -beyond / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, step by step from the smallest."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, floor = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = floor
    return corrected


def _judge(pairs: Sequence[Pair]) -> list[Pair]:
    known = [index for index, pair in enumerate(pairs) if pair.p_value is not None]
    corrected = dict(zip(known, holm([pairs[index].p_value or 0.0 for index in known]), strict=True))
    return [
        replace(pair, p_value=corrected[index], verdict=_answer(pair, corrected[index])) if index in corrected else pair
        for index, pair in enumerate(pairs)
    ]


def _answer(pair: Pair, p_value: float) -> Answer:
    assert pair.low is not None
    assert pair.high is not None
    if p_value < 1 - CONFIDENCE:
        return "faster" if pair.ratio < 1 else "slower"
    touches = pair.low <= 1 + DIFFERENT and pair.high >= 1 / (1 + DIFFERENT)
    inside = pair.low >= 1 / (1 + SAME) and pair.high <= 1 + SAME
    return "same" if touches and inside else "unsure"
