"""Spreads of many cases together say more than each of them alone: few processes of one case leave its own in doubt.

Variances of the cases of a run scatter around a common one: by chance, because each stems from few values, and because
the cases truly differ. How much of the scatter chance explains tells how much weight the common variance deserves
beside each case's own (an empirical Bayes estimate under a scaled inverse chi-squared prior, as is usual where very
many things are measured a few times each: Smyth 2004, "Linear models and empirical Bayes methods").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

FEWEST = 8  # variances below which nothing is learnt from their scatter


class Common(Struct, frozen=True):
    """What the variances of many cases have in common, and how many degrees of freedom that knowledge is worth."""

    variance: float
    freedom: float

    def moderate(self, variance: float, freedom: float) -> tuple[float, float]:
        """A case's own variance beside the common one, each by its weight."""
        total = self.freedom + freedom
        return (self.freedom * self.variance + freedom * variance) / total, total


def find_common(variances: Sequence[tuple[float, float]]) -> Common | None:
    """From pairs of a variance and its degrees of freedom; None where there are too few to learn from."""
    known = [(variance, freedom) for variance, freedom in variances if variance > 0]
    if len(known) < FEWEST:
        return None
    logs = [math.log(variance) - digamma(freedom / 2) + math.log(freedom / 2) for variance, freedom in known]
    center = math.fsum(logs) / len(logs)
    scatter = math.fsum((each - center) ** 2 for each in logs) / (len(logs) - 1)
    real = scatter - math.fsum(trigamma(freedom / 2) for _, freedom in known) / len(known)
    # No more can be known of the common variance than all cases together tell.
    most = math.fsum(freedom for _, freedom in known)
    freedom = min(2 * trigamma_inverse(real), most) if real > 0 else most
    return Common(math.exp(center + digamma(freedom / 2) - math.log(freedom / 2)), freedom)


def digamma(x: float) -> float:
    """The derivative of the logarithm of the gamma function, for x above 0."""
    shift = 0.0
    while x < 10:
        shift, x = shift - 1 / x, x + 1
    square = 1 / (x * x)
    return shift + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))


def trigamma(x: float) -> float:
    """The derivative of digamma, for x above 0."""
    shift = 0.0
    while x < 10:
        shift, x = shift + 1 / (x * x), x + 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return shift + (1 + 0.5 / x + series) / x


def trigamma_inverse(value: float) -> float:
    """The x whose trigamma is `value`, above 0. It falls steadily, so halving the logarithm of x finds it."""
    low, high = -40.0, 40.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(math.exp(middle)) > value else (low, middle)
    return math.exp((low + high) / 2)
