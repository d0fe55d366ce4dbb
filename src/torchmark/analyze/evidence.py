"""How sure the time of a step is on either side of a comparison, and how often chance alone would part them so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from torchmark.analyze.repeat import BORROWED_FREEDOM, variance, within_variance
from torchmark.analyze.student import two_sided
from torchmark.records import Estimand, Estimate, Result

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
    """What all estimates estimate; where they differ, the mean, which every one of them has."""
    kinds = {estimate.estimand for result in results for estimate in _estimates(result)}
    return kinds.pop() if len(kinds) == 1 else "mean"


def _estimates(result: Result) -> tuple[Estimate, ...]:
    return result.processes or ((result.estimate,) if result.estimate else ())


def _times(result: Result, estimand: Estimand) -> list[float]:
    return [estimate.center_s if estimate.estimand == estimand else estimate.mean_s for estimate in _estimates(result)]


def _side(result: Result, estimand: Estimand, spread: float | None, items: float) -> Side:
    """By the spread that the result's own run found for it, else by that of its processes, else by a borrowed one."""
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
    alone = math.log1p(spread) ** 2 + _within_variance(estimates[0], estimand)
    return Side(logs, alone, BORROWED_FREEDOM, "a borrowed spread", spread=alone)


def _within_variance(estimate: Estimate, estimand: Estimand) -> float:
    if estimate.estimand == estimand:
        return within_variance(estimate)
    return within_variance(estimate, estimate.mean_low_s, estimate.mean_high_s)
