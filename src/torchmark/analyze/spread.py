"""How far fresh processes of one case differ, and the interval in which a repeat of a run would land: every ±.

docs/method.md explains the model. Student's t is computed here, as importing scipy takes too long.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, mean, stdev
from typing import NamedTuple

from msgspec.structs import replace

from torchmark.records import Estimate, Result

CHANCE = 0.05  # of intervals and tests to be wrong
MAD_TO_DEVIATION = 1.4826
MOST_FREEDOM = 1e9  # practically infinite, and a number in every format
LEAST_VARIANCES = 8  # from which their scatter can be learnt
# Two runs on a machine differ by this much in every case, and by this share of the spread between processes.
RUN_SPREAD, DRIFT = 0.01, 0.7
BORROWED_FREEDOM = 4.0  # about five processes of another case


class Interval(NamedTuple):
    center: float
    low: float  # 95%
    high: float

    @property
    def precision(self) -> float:
        return (self.high - self.low) / 2 / self.center


def two_sided(t: float, freedom: float) -> tuple[float, float]:
    """The probability that |T| is at least t, and t times its density, for t >= 0."""
    if freedom > 1e7:  # the normal distribution is the same to ten digits
        return math.erfc(t / math.sqrt(2)), t * math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    a, x, rest = freedom / 2, freedom / (freedom + t * t), t * t / (freedom + t * t)
    if x <= 0 or rest <= 0:
        return (0.0 if x <= 0 else 1.0), 0.0
    front = math.exp(math.lgamma(a + 0.5) - math.lgamma(a) - math.lgamma(0.5) + a * math.log(x) + math.log(rest) / 2)
    near = x < (a + 1) / (a + 2.5)  # the fraction converges quickly
    return (front * _fraction(x, a, 0.5) / a if near else 1.0 - front * _fraction(rest, 0.5, a) * 2), front


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, after Lentz."""
    numerator, denominator = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = denominator
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1.0 / (1.0 + term * denominator)
            numerator = 1.0 + term / numerator
            value *= denominator * numerator
        if abs(denominator * numerator - 1.0) < 1e-13:
            break
    return value


@lru_cache(maxsize=4096)
def critical(freedom: float, chance: float) -> float:
    """The t that |T| reaches with this small chance: the inverse of `two_sided`."""
    # The log of the chance is concave in log t, so Newton's method converges; no step doubles t.
    z = NormalDist().inv_cdf(1 - chance / 2)
    first, second = _expansion(z)
    log_t, step = math.log(z + first / freedom + second / freedom**2), 1.0
    while abs(step) >= 1e-6:  # after it Newton is off by about its square
        found, density = two_sided(math.exp(log_t), freedom)
        step = min((math.log(found) - math.log(chance)) * found / (2 * density), math.log(2))
        log_t += step
    return math.exp(log_t)


def _expansion(z: float) -> tuple[float, float]:
    """By how much t exceeds the normal distribution's z: the coefficients of 1 / freedom and 1 / freedom²."""
    return (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96


_NORMAL_REACH = critical(math.inf, CHANCE)
LEAST_MARGIN = 1.1 * _NORMAL_REACH * math.sqrt(2) * RUN_SPREAD  # about 3%: more processes bring it no lower


class Spread(NamedTuple):  # as of the log time of a process
    variance: float
    freedom: float


def pooled(spreads: Sequence[Spread]) -> Spread:
    total = math.fsum(each.freedom for each in spreads)
    return Spread(math.fsum(each.freedom * each.variance for each in spreads) / total, total)


def find_common(spreads: Sequence[Spread]) -> Spread | None:
    """What the spreads of many cases have in common; None for too few."""
    known = [each for each in spreads if each.variance > 0]
    if len(known) < LEAST_VARIANCES:
        return None

    def bias(freedom: float) -> float:
        return digamma(freedom / 2) - math.log(freedom / 2)

    logs = [math.log(each.variance) - bias(each.freedom) for each in known]
    real = variance(logs) - math.fsum(trigamma(each.freedom / 2) for each in known) / len(known)
    # The common variance is known no better than all cases together determine it.
    most = math.fsum(each.freedom for each in known)
    freedom = min(2 * trigamma_inverse(real), most) if real > 0 else most
    return Spread(math.exp(math.fsum(logs) / len(logs) + bias(freedom)), freedom)


def digamma(x: float) -> float:
    if x < 10:
        return digamma(x + 1) - 1 / x
    square = 1 / (x * x)
    return math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))


def trigamma(x: float) -> float:
    if x < 10:
        return trigamma(x + 1) + 1 / (x * x)
    square = 1 / (x * x)
    return (1 + 0.5 / x + square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))) / x


def trigamma_inverse(value: float) -> float:
    """The x > 0 whose trigamma is `value`, by bisection of its logarithm."""
    low, high = -40.0, 40.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(math.exp(middle)) > value else (low, middle)
    return math.exp((low + high) / 2)


def own_spread(processes: Sequence[Estimate]) -> Spread | None:
    if len(processes) < 2 or any(process.center_s <= 0 for process in processes):
        return None
    return Spread(variance([math.log(process.center_s) for process in processes]), len(processes) - 1.0)


def relative_spread(centers: Sequence[float]) -> float | None:
    return stdev(centers) / mean(centers) if len(centers) > 1 and mean(centers) > 0 else None


def variance(values: Sequence[float]) -> float:
    center = math.fsum(values) / len(values)
    return math.fsum((value - center) ** 2 for value in values) / (len(values) - 1)


def total_variance(parts: Sequence[tuple[float, float]]) -> Spread:
    """The sum of independent variances and its degrees of freedom (Welch and Satterthwaite)."""
    largest = max(variance for variance, _ in parts)
    if largest == 0:
        return Spread(0.0, math.inf)
    shares = [(variance / largest, freedom) for variance, freedom in parts]  # squares of tiny ones would underflow
    total = math.fsum(share for share, _ in shares)
    doubt = math.fsum(share**2 / freedom for share, freedom in shares)
    return Spread(total * largest, total**2 / doubt if doubt > 0 else math.inf)


def with_known(variance: float, freedom: float, known: float) -> Spread:
    """An estimated plus a known variance, and the freedom at which an interval of the sum reaches as far as both."""
    # Satterthwaite's freedom would be too large if the estimate is small by chance.
    total = variance + known
    if total == 0 or known == 0 or freedom >= MOST_FREEDOM:
        return Spread(total, freedom)
    if variance == 0:
        return Spread(total, MOST_FREEDOM)
    # The secant method: log excess is nearly a linear function of log freedom.
    place, height, slope = math.log(freedom), math.log(_excess(freedom)), -1.0
    wanted = height + math.log(variance / total)
    for _ in range(30):
        following = min(max(place + (wanted - height) / slope, math.log(freedom)), math.log(MOST_FREEDOM))
        reached = math.log(_excess(math.exp(following)))
        if abs(reached - wanted) < 1e-7 or following == place:
            break
        slope = (reached - height) / (following - place)
        place, height = following, reached
    return Spread(total, math.exp(following))


def _excess(freedom: float) -> float:
    # How far the square of the critical value lies beyond that of the normal distribution.
    if freedom < 1e4:  # beyond, two terms of the expansion give seven digits
        return critical(freedom, CHANCE) ** 2 - _NORMAL_REACH**2
    first, second = _expansion(_NORMAL_REACH)
    return 2 * _NORMAL_REACH * first / freedom + (first**2 + 2 * _NORMAL_REACH * second) / freedom**2


def with_interval(estimate: Estimate, spread: Spread, count: int) -> Estimate:
    whole = with_known(2 * spread.variance * (1 / count + DRIFT**2), spread.freedom, 2 * RUN_SPREAD**2)
    reach = min(critical(whole.freedom, CHANCE) * math.sqrt(whole.variance), 10.0)
    low_s, high_s = estimate.center_s * math.exp(-reach), estimate.center_s * math.exp(reach)
    known = {"spread": math.sqrt(spread.variance), "freedom": min(spread.freedom, MOST_FREEDOM)}
    return replace(estimate, low_s=low_s, high_s=high_s, **known)


def with_intervals(results: Sequence[Result], borrowed: float | None = None) -> list[Result]:
    """Add the interval in which a repeat would land. Cases share their spread; a single process borrows it."""
    common, lent = _common_and_lent(results, borrowed)
    found = []
    for result in results:
        estimate, processes = result.estimate, result.processes
        if estimate is not None and estimate.center_s > 0 and estimate.verdict != "as-published":
            if own := own_spread(processes):
                estimate = with_interval(estimate, pooled((own, common)) if common else own, len(processes))
            elif lent and len(processes) == 1:
                alone = Spread(lent.variance + within_variance(processes[0]), lent.freedom)
                estimate = with_interval(estimate, alone, 1)
        found.append(replace(result, estimate=estimate))
    return found


def typical_spread(results: Sequence[Result]) -> float | None:
    _, lent = _common_and_lent(results, None)
    return math.sqrt(lent.variance) if lent else None


def _common_and_lent(results: Sequence[Result], borrowed: float | None) -> tuple[Spread | None, Spread | None]:
    own = [spread for result in results if (spread := own_spread(result.processes))]
    if common := find_common(own):
        return common, Spread(common.variance, max(min(common.freedom, BORROWED_FREEDOM), 1.0))
    if own:
        mean = pooled(own)
        return None, Spread(mean.variance, min(mean.freedom, BORROWED_FREEDOM))
    return None, None if borrowed is None else Spread(math.log1p(borrowed) ** 2, BORROWED_FREEDOM)


def within_variance(estimate: Estimate, low_s: float | None = None, high_s: float | None = None) -> float:
    """The variance of the log time by the interval inside one process."""
    low, high = low_s or estimate.low_s, high_s or estimate.high_s
    return (math.log(high / low) / (2 * _NORMAL_REACH)) ** 2 if 0 < low <= high < math.inf else 0.0
