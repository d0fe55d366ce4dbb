"""Grades: how far a figure can be relied on, in one word, with the cause where it is not good."""

from __future__ import annotations

import math
from statistics import mean, stdev
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.records import Contention, Estimate, Result

Word = Literal["good", "fair", "poor"]

# The half-width of ± and the share of the processor that others took, up to which a grade is given.
_LIMITS: tuple[tuple[Word, float, float], ...] = (("good", 0.05, 0.02), ("fair", 0.15, 0.10))
_REACH = 1.96  # standard errors on each side of a 95% interval
_FIXES = {
    "contended": "stop other programs and run again",
    "throttled": "improve cooling or power, or take this as the sustained speed",
    "slowing": "measure longer with --budget",
    "drifting": "measure longer with --budget",
    "warming": "measure longer with --budget",
    "few processes": "measure longer with --budget",
    "noisy": "measure longer with --budget",
}


class Grade(Struct, frozen=True):
    """A word, and where it is not `good` what keeps it from being so and what to do about that."""

    word: Word
    cause: str = ""
    fix: str = ""

    @property
    def text(self) -> str:
        """fair: contended"""
        return f"{self.word}: {self.cause}" if self.cause else self.word


def grade_of(result: Result) -> Grade | None:
    """The grade of a measured figure; None where there is none, or where it was published."""
    estimate = result.estimate
    if result.status != "ok" or estimate is None or estimate.verdict == "as-published":
        return None
    margin, taken = margin_of(estimate), taken_share(estimate.contention)
    for word, widest, most in _LIMITS:
        if margin is not None and margin <= widest and taken <= most:
            return Grade(word) if word == "good" else _explained(word, estimate, taken)
    return _explained("poor", estimate, taken)


def margin_of(estimate: Estimate) -> float | None:
    """Half the interval in which a repeat would land, relative to the step; None where that is unknown."""
    return estimate.precision if estimate.spread is not None and estimate.center_s > 0 else None


def taken_share(contention: Contention) -> float:
    """The share of the processor that others took while the steps were timed."""
    shares = (contention.other_cpu_share, contention.steal_share, contention.throttled_share)
    return max((share for share in shares if share is not None), default=0.0)


def is_disturbed(result: Result) -> bool:
    """Whether no conclusion may rest on it: no figure, a poor grade, or others took over 10% of the processor."""
    grade = grade_of(result)
    if grade is None:  # failed, or published: a published figure has no grade
        return result.status != "ok" or result.estimate is None
    return grade.word == "poor"


def is_contended(estimate: Estimate) -> bool:
    """Whether others took more of the processor than any grade but `poor` allows; it can be judged by one process."""
    return taken_share(estimate.contention) > _LIMITS[-1][2]


def with_spread(result: Result, borrowed: float | None = None) -> Result:
    """The result with the spread between its processes, where its estimate does not say it: in files of older versions
    and in studies of few processes. A single process borrows one, and its interval widens by it."""
    estimate = result.estimate
    if estimate is None or estimate.spread is not None or estimate.verdict == "as-published":
        return result
    centers = [process.center_s for process in result.processes]
    if len(centers) > 1 and mean(centers) > 0:
        return replace(result, estimate=replace(estimate, spread=stdev(centers) / mean(centers)))
    if borrowed is None:
        return result
    center, reach = estimate.center_s, _REACH * borrowed * estimate.center_s
    low = center - math.hypot(center - estimate.low_s, reach)
    high = center + math.hypot(estimate.high_s - center, reach)
    return replace(result, estimate=replace(estimate, low_s=max(low, 0.0), high_s=high, spread=borrowed))


def worst(grades: list[Word]) -> Word:
    """Of several grades the lowest."""
    order: list[Word] = ["poor", "fair", "good"]
    return min(grades, key=order.index)


def _explained(word: Word, estimate: Estimate, taken: float) -> Grade:
    cause = _cause(estimate, taken)
    return Grade(word, cause, _FIXES[cause])


def _cause(estimate: Estimate, taken: float) -> str:
    if taken > _LIMITS[0][2]:
        return "contended"
    if estimate.verdict in ("throttled", "slowing", "drifting", "warming"):
        return estimate.verdict
    return "few processes" if estimate.spread is None or "single-process" in estimate.flags else "noisy"
