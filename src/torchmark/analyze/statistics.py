"""What a series of step times says: where warm-up ends, how correlated it is, its centre and interval, its trend."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtri, stdtrit

Series = NDArray[np.float64]

CONFIDENCE = 0.95
WINSOR_MADS = 4.0
MAD_TO_DEVIATION = 1.4826
GEWEKE_Z = 1.64
BATCHES = 8
GROUPS = 12
STEADY_RISE = 0.87  # Kendall's tau of 12 group medians; chance reaches it about once in 100,000 series
TAIL_CAUTION = 1.5  # Hill's estimate rests on few samples
WIDEST_REACH = 0.45  # share of the samples on one side; beyond it a single spike would decide
FEW_SAMPLES = 6  # below this, order statistics cannot reach 95%


class Interval(NamedTuple):
    """An estimate with its 95% interval."""

    center: float
    low: float
    high: float


def winsorised_logs(times: Series) -> Series:
    """Logarithms with outliers pulled in to what the second half calls usual, so that no spike steers a decision."""
    logs = np.log(times)
    tail = logs[len(logs) // 2 :]
    middle = np.median(tail)
    reach = WINSOR_MADS * MAD_TO_DEVIATION * np.median(np.abs(tail - middle)) + 1e-9
    return np.asarray(np.clip(logs, middle - reach, middle + reach), dtype=np.float64)


def marginal_error_cut(values: Series) -> int:
    """MSER: the start, at most half-way, from which the mean's standard error is smallest."""
    count = len(values)
    backwards = values[::-1] - values[-1]
    lengths = np.arange(1, count + 1)
    means = np.cumsum(backwards) / lengths
    variances = np.maximum(np.cumsum(backwards * backwards) / lengths - means * means, 1e-12)
    return int(np.argmin((variances / lengths)[::-1][: count // 2 + 1]))


def integrated_time(values: Series) -> float:
    """Integrated autocorrelation time with Sokal's self-consistent window, corrected for the removed mean."""
    count = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / count
    if variance <= 0 or count < 4:
        return 1.0
    spectrum = np.fft.rfft(centred, _fast_length(2 * count))
    autocovariance = np.fft.irfft(spectrum * np.conj(spectrum), _fast_length(2 * count))[: count // 2]
    times = 2 * np.cumsum(autocovariance / (count * variance)) - 1
    windows = np.arange(len(times))
    enough = np.nonzero(windows >= 5 * times)[0]
    window = int(enough[0]) if len(enough) else len(times) - 1
    time = max(float(times[window]), 1.0)
    return max(time * (1 + (2 * window + 1) / count), 1.0) if window > 5 else time


def _fast_length(count: int) -> int:
    return 1 << (count - 1).bit_length()


def first_order_time(values: Series) -> float:
    """What a first-order autoregression would give, its correlation corrected for bias; 1 where none is significant."""
    count = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if power <= 0 or count < 4:
        return 1.0
    correlation = float(centred[1:] @ centred[:-1]) / power
    if correlation <= 2 / math.sqrt(count):
        return 1.0
    correlation = min(correlation + (1 + 3 * correlation) / count, 0.98)
    return (1 + correlation) / (1 - correlation)


def batch_time(values: Series) -> float:
    """Batch means: only what exceeds the 95% envelope of independent samples counts."""
    variance = float(values.var())
    if variance <= 0 or len(values) < 2 * BATCHES:
        return 1.0
    size = len(values) // BATCHES
    means = values[-size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    envelope = float(chdtri(BATCHES - 1, 0.05)) / (BATCHES - 1)
    return float(means.var(ddof=1)) * size / variance / envelope


def autocorrelation_time(indicator: Series, values: Series) -> float:
    """How many samples are worth one independent one; the most pessimistic of three estimators."""
    return max(integrated_time(indicator), first_order_time(values), batch_time(values), 1.0)


def ranks(values: Series) -> Series:
    """Ranks from 1; ties share theirs, so that a coarse clock makes no order of its own."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


def rank_difference(first: Series, second: Series, time: float) -> float:
    """Mann-Whitney z of `first` against `second`, deflated by the autocorrelation time; negative: first is faster."""
    m, n = len(first), len(second)
    if not m or not n:
        return 0.0
    order = np.sort(second)
    below = np.searchsorted(order, first, "left") + np.searchsorted(order, first, "right")
    wins = float(below.sum()) / 2
    return (wins - m * n / 2) / math.sqrt(m * n * (m + n + 1) / 12 * time)


def below_median(values: Series) -> Series:
    return (values <= np.median(values)).astype(np.float64)


class TrendTest(NamedTuple):
    """A trend in log-times: its strength, the total relative change, and the autocorrelation time around it."""

    z: float
    change: float
    time: float
    steady_rise: bool


def trend_of(values: Series) -> TrendTest:
    """Spearman's rank trend, with the autocorrelation time taken from the detrended residuals.

    Where the path is bent, those residuals look correlated and hide it; group medians that rise almost
    without exception tell it all the same.
    """
    count = len(values)
    groups = min(GROUPS, count // 3)
    if groups < 3:
        return TrendTest(0.0, 0.0, 1.0, False)
    edges = np.linspace(0, count, groups + 1).astype(int)
    medians = np.array([np.median(values[a:b]) for a, b in itertools.pairwise(edges)])
    i, j = np.triu_indices(groups, 1)
    total = float(np.median((medians[j] - medians[i]) / (j - i))) * (groups - 1)
    residuals = values - np.linspace(0, total, count)
    time = autocorrelation_time(below_median(residuals), residuals)
    place = np.arange(count) - (count - 1) / 2
    rank = ranks(values) - (count + 1) / 2
    correlation = float(place @ rank) / float(place @ place)
    rises = float(np.sign(medians[j] - medians[i]).sum()) / len(i)
    return TrendTest(
        z=correlation * math.sqrt((count - 1) / time),
        change=math.expm1(total),
        time=time,
        steady_rise=groups == GROUPS and rises >= STEADY_RISE,
    )


def median_interval(times: Series, time: float) -> Interval:
    """The median by order statistics, widened for correlation."""
    count = len(times)
    center = float(np.median(times))
    if count < FEW_SAMPLES:
        return _few_samples_interval(times, center)
    ordered = np.sort(times)
    effective = max(count / time, 2.0)
    if time < 1.01 and count < 100:
        rank = exact_median_rank(count)
        return Interval(center, float(ordered[rank]), float(ordered[count - 1 - rank]))
    reach = float(stdtrit(max(effective - 1, 2.0), 0.5 + CONFIDENCE / 2)) * math.sqrt(count * time) / 2
    low, high = _between_ranks(ordered, reach)
    if 2 * reach > WIDEST_REACH * count:
        return Interval(center, low, high)
    # The same width taken from ranks twice as far out: narrow by luck, or with another mode close by, is not precise.
    low_wide, high_wide = _between_ranks(ordered, 2 * reach)
    return Interval(center, min(low, (center + low_wide) / 2), max(high, (center + high_wide) / 2))


def _between_ranks(ordered: Series, reach: float) -> tuple[float, float]:
    count = len(ordered)
    low, high = max(math.floor(count / 2 - reach), 0), min(math.ceil(count / 2 + reach), count - 1)
    return float(ordered[low]), float(ordered[high])


def exact_median_rank(count: int) -> int:
    """The largest r for which [x(r), x(n-1-r)], counted from 0, holds the median with 95% confidence."""
    rank = max(math.floor(count / 2 - math.sqrt(count)) - 1, 0)
    while rank + 1 < count / 2 and 2 * float(bdtr(rank + 1, count, 0.5)) <= 1 - CONFIDENCE:
        rank += 1
    return rank


def _few_samples_interval(times: Series, center: float) -> Interval:
    """With so few samples, assume log-normal noise and say honestly how little is known; one sample: a factor of 2."""
    if len(times) < 2:
        return Interval(center, center / 2, center * 2)
    logs = np.log(np.maximum(times, 1e-12))
    # 1.25: the median of normal samples is that much less precise than their mean
    reach = (
        1.25 * float(stdtrit(len(times) - 1, 0.5 + CONFIDENCE / 2)) * float(logs.std(ddof=1)) / math.sqrt(len(times))
    )
    return Interval(
        center,
        min(center * math.exp(-min(reach, 3.0)), float(times.min())),
        max(center * math.exp(min(reach, 3.0)), float(times.max())),
    )


def mean_interval(times: Series, time: float) -> Interval:
    """The mean ± Student's t; upwards also for skewness (Johnson) and for the part of a heavy tail not yet seen."""
    count, center = len(times), float(times.mean())
    if count < FEW_SAMPLES:
        return _few_samples_interval(times, center)
    deviation = float(times.std(ddof=1))
    effective = max(count / time, 2.0)
    error = deviation / math.sqrt(effective)
    if error <= 0:
        return Interval(center, center, center)
    t = float(stdtrit(max(effective - 1, 2.0), 0.5 + CONFIDENCE / 2))
    skewness = max(float(np.mean(((times - center) / deviation) ** 3)), 0.0)
    lean = error * skewness / (6 * math.sqrt(effective)) * (1 + 2 * t * t)
    return Interval(center, max(center - t * error, 0.0), center + t * error + lean + _unseen_tail(times))


def _unseen_tail(times: Series) -> float:
    """What steps rarer than one in this series would add to the mean, from Hill's estimate of how heavy the tail is."""
    count = len(times)
    top = max(10, math.isqrt(count))
    if count < 4 * top:
        return 0.0
    excess = np.sort(times)[-top - 1 :] - np.median(times)
    if excess[0] <= 0:
        return 0.0
    heaviness = max(1 / max(float(np.mean(np.log(excess[1:] / excess[0]))), 1e-9), 1.2)
    return TAIL_CAUTION * float(excess[0]) * math.pow(top, 1 / heaviness) / (count * (heaviness - 1))


def tail_bound(ordered: Series, share: float) -> float | None:
    """A 95% upper bound of a high quantile by the binomial distribution; None where too few samples reach it."""
    count = len(ordered)
    rank = math.ceil(count * share)
    while rank < count and float(bdtr(rank, count, share)) < CONFIDENCE:
        rank += 1
    return float(ordered[rank]) if rank < count else None
