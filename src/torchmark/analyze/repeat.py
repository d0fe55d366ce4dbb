"""Where a repeat of a run would land: the interval behind every ±.

Fresh processes of one case differ by more than the interval inside each of them, and mostly by modes (memory layout,
huge pages, placement of threads) rather than by a bell curve. Twenty short processes of fourteen cases were recorded,
and runs of three to five of them held against later ones (docs/method.md has the figures): the geometric mean, with a
variance that the cases of a run share in part, covers 97% of the repeats with a half-width of 4%. Without the
machine's own drift from one run to the next, it would be 87%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.moderation import Common, find_common
from torchmark.analyze.student import critical
from torchmark.records import Estimate, Result

CHANCE = 0.05
# Two runs on one machine differ by more than their processes say: by this much in every case, and by this share of the
# spread between the processes of a case, which share the state that the machine is in.
RUN_SPREAD, DRIFT = 0.01, 0.7
# A borrowed spread stems from a handful of processes of another case: about as much evidence as five processes give.
BORROWED_FREEDOM = 4.0
MOST_FREEDOM = 1e9  # as good as endless, and a number in every format
_NORMAL_REACH = critical(math.inf, CHANCE)
LEAST_MARGIN = 1.1 * _NORMAL_REACH * math.sqrt(2) * RUN_SPREAD  # about 3%: more processes bring it no lower


class Spread(Struct, frozen=True):
    """The variance of the logarithm of one process's time, and how many degrees of freedom that is worth."""

    variance: float
    freedom: float


def own_spread(processes: Sequence[Estimate]) -> Spread | None:
    """What the processes of a case say by themselves; None where there are fewer than two, or one took no time."""
    if len(processes) < 2 or any(process.center_s <= 0 for process in processes):
        return None
    return Spread(variance([math.log(process.center_s) for process in processes]), len(processes) - 1.0)


def variance(values: Sequence[float]) -> float:
    """The sample variance."""
    center = math.fsum(values) / len(values)
    return math.fsum((value - center) ** 2 for value in values) / (len(values) - 1)


def total_variance(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent variances and its degrees of freedom (Welch and Satterthwaite)."""
    largest = max(variance for variance, _ in parts)
    if largest == 0:
        return 0.0, math.inf
    shares = [(variance / largest, freedom) for variance, freedom in parts]  # squares of tiny ones would underflow
    total = math.fsum(share for share, _ in shares)
    doubt = math.fsum(share**2 / freedom for share, freedom in shares)
    return total * largest, total**2 / doubt if doubt > 0 else math.inf


def with_known(variance: float, freedom: float, known: float) -> tuple[float, float]:
    """An estimated variance and one that is known: their sum, and the freedom at which an interval of it reaches as far
    as those of both together. (Satterthwaite's would be too large where the estimate is small by chance.)"""
    total = variance + known
    if total == 0 or known == 0 or freedom >= MOST_FREEDOM:
        return total, freedom
    squares = critical(freedom, CHANCE) ** 2 * variance + _NORMAL_REACH**2 * known
    wanted = math.sqrt(squares / total)
    low, high = math.log(freedom), math.log(MOST_FREEDOM)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if critical(math.exp(middle), CHANCE) > wanted else (low, middle)
    return total, math.exp(high)


def with_interval(estimate: Estimate, spread: Spread, count: int) -> Estimate:
    """The estimate over `count` processes with the interval in which a repeat would land."""
    total, freedom = with_known(2 * spread.variance * (1 / count + DRIFT**2), spread.freedom, 2 * RUN_SPREAD**2)
    reach = min(critical(freedom, CHANCE) * math.sqrt(total), 10.0)
    return replace(
        estimate,
        low_s=estimate.center_s * math.exp(-reach),
        high_s=estimate.center_s * math.exp(reach),
        spread=math.sqrt(spread.variance),
        freedom=min(spread.freedom, MOST_FREEDOM),
    )


def with_intervals(results: Sequence[Result], borrowed: float | None = None) -> list[Result]:
    """The results of one run, each with the interval in which a repeat would land.

    Cases with several processes share what they know of the spread. A case with one process borrows it: from the
    others, else `borrowed`, which a reference case or an earlier run gave; where neither is known, so is its interval.
    """
    own = [own_spread(result.processes) for result in results]
    common = find_common([(spread.variance, spread.freedom) for spread in own if spread])
    lent = _lent([spread for spread in own if spread], common, borrowed)
    return [_with_interval(result, spread, common, lent) for result, spread in zip(results, own, strict=True)]


def typical_spread(results: Sequence[Result]) -> float | None:
    """How far fresh processes of this run differ, over all of its cases."""
    own = [spread for result in results if (spread := own_spread(result.processes))]
    lent = _lent(own, find_common([(spread.variance, spread.freedom) for spread in own]), None)
    return math.sqrt(lent.variance) if lent else None


def _lent(own: Sequence[Spread], common: Common | None, borrowed: float | None) -> Spread | None:
    """What a case with one process may borrow."""
    if common:
        return Spread(common.variance, max(min(common.freedom, BORROWED_FREEDOM), 1.0))
    if own:
        total = math.fsum(spread.freedom for spread in own)
        pooled = math.fsum(spread.freedom * spread.variance for spread in own) / total
        return Spread(pooled, min(total, BORROWED_FREEDOM))
    return Spread(math.log1p(borrowed) ** 2, BORROWED_FREEDOM) if borrowed is not None else None


def _with_interval(result: Result, own: Spread | None, common: Common | None, lent: Spread | None) -> Result:
    estimate, count = result.estimate, len(result.processes)
    if estimate is None or estimate.center_s <= 0 or estimate.verdict == "as-published":
        return result
    if own:
        moderated = Spread(*common.moderate(own.variance, own.freedom)) if common else own
        return replace(result, estimate=with_interval(estimate, moderated, count))
    if lent is None or count != 1:
        return result
    alone = Spread(lent.variance + within_variance(result.processes[0]), lent.freedom)
    return replace(result, estimate=with_interval(estimate, alone, 1))


def within_variance(estimate: Estimate, low_s: float | None = None, high_s: float | None = None) -> float:
    """The variance of the log time that the interval inside one process stands for."""
    low, high = low_s or estimate.low_s, high_s or estimate.high_s
    return (math.log(high / low) / (2 * _NORMAL_REACH)) ** 2 if 0 < low <= high < math.inf else 0.0
