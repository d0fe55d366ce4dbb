"""Student's t distribution in plain Python: scipy's takes longer to import than a whole comparison takes to run."""

from __future__ import annotations

import math
from functools import lru_cache

_CLOSE = 1e-13
_TINY = 1e-300
_NORMAL = 1e7  # degrees of freedom from which the normal distribution is the same to ten digits


def two_sided(t: float, freedom: float) -> float:
    """How often |T| is at least t, which must not be negative."""
    if freedom > _NORMAL:
        return math.erfc(t / math.sqrt(2))
    square = t * t
    return _incomplete_beta(freedom / (freedom + square), square / (freedom + square), freedom / 2)


@lru_cache(maxsize=4096)
def critical(freedom: float, chance: float) -> float:
    """The t that |T| reaches with this chance, which must be small: the inverse of `two_sided`.

    The logarithm of the chance is a concave function of log t, so that Newton's steps lead to its one root; none of
    them doubles t, or the chance there could be too small for a computer.
    """
    log_t = math.log(1.96)
    for _ in range(100):
        t = math.exp(log_t)
        found = two_sided(t, freedom)
        slope = -2 * t * _density(t, freedom) / found
        step = min((math.log(chance) - math.log(found)) / slope, math.log(2))
        log_t += step
        if abs(step) < _CLOSE:
            break
    return math.exp(log_t)


def _density(t: float, freedom: float) -> float:
    if freedom > _NORMAL:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _incomplete_beta(x: float, rest: float, a: float) -> float:
    """The regularised incomplete beta function of a and one half; `rest` is 1 - x without its rounding."""
    b = 0.5
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    if x < (a + 1) / (a + b + 2):  # where the fraction converges quickly
        return math.exp(front) * _fraction(x, a, b) / a
    return 1.0 - math.exp(front) * _fraction(rest, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, after Lentz."""
    numerator, denominator = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = denominator
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + term * denominator)
            numerator = _away_from_zero(1.0 + term / numerator)
            value *= denominator * numerator
        if abs(denominator * numerator - 1.0) < _CLOSE:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
