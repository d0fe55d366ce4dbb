"""What a series of step times says: where warm-up ends, how correlated it is, its centre, interval and trend.

The reading drops a start that differs from the rest, and reports a start that was faster: a slow-down, not a warm-up.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmark.analyze.spread import critical
from torchmark.records import Estimand, Trend

Series = NDArray[np.float64]

CONFIDENCE = 0.95
WINSOR_MADS = 4.0
MAD_TO_DEVIATION = 1.4826
GEWEKE_Z = 1.64
BATCHES = 8
CHI_SQUARED = 14.067140449  # what the chi-squared distribution of BATCHES - 1 degrees reaches in 5% of cases
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
    return float(means.var(ddof=1)) * size / variance / (CHI_SQUARED / (BATCHES - 1))


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
    without exception show it all the same.
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
    reach = critical(max(effective - 1, 2.0), 1 - CONFIDENCE) * math.sqrt(count * time) / 2
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
    return max(int(np.searchsorted(binomial(count, 0.5), (1 - CONFIDENCE) / 2, side="right")) - 1, 0)


def binomial(count: int, share: float) -> Series:
    """How likely at most 0, 1, 2 … of so many are, each of which has this chance."""
    chosen = np.arange(count)
    growth = np.log((count - chosen) / (chosen + 1)) + math.log(share) - math.log1p(-share)
    logs = count * math.log1p(-share) + np.concatenate([[0.0], np.cumsum(growth)])
    return np.cumsum(np.exp(logs))


def _few_samples_interval(times: Series, center: float) -> Interval:
    """Assume log-normal noise; for one sample, a factor of 2."""
    if len(times) < 2:
        return Interval(center, center / 2, center * 2)
    logs = np.log(np.maximum(times, 1e-12))
    # 1.25: the median of normal samples is that much less precise than their mean
    reach = 1.25 * critical(len(times) - 1, 1 - CONFIDENCE) * float(logs.std(ddof=1)) / math.sqrt(len(times))
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
    t = critical(max(effective - 1, 2.0), 1 - CONFIDENCE)
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
    rank = max(math.ceil(count * share), int(np.searchsorted(binomial(count, share), CONFIDENCE)))
    return float(ordered[rank]) if rank < count else None


TREND_Z = 2.8
FASTER_Z = -3.0
START_CHANCE = 5e-3  # how rarely a quiet series may look as if it had started faster
SHORTEST_SEGMENT = 5  # samples; a block of many steps counts as that many
ONE_SIDED = 0.8  # share of a warm-up's samples that lie on the same side of the steady median


class Reading(NamedTuple):
    """What a series says so far."""

    interval: Interval
    cut: int
    time: float  # autocorrelation time, in samples
    trend: Trend
    warming: bool
    trending: bool
    slowing: bool
    evidence_time: float  # the longest correlation time seen at any level, for deciding whether there is enough

    @property
    def precision(self) -> float:
        return (self.interval.high - self.interval.low) / 2 / self.interval.center

    def effective(self, count: int) -> float:
        return (count - self.cut) / self.time


def read_series(
    times: Series, target: float, estimand: Estimand = "median", block_size: int = 1, cut: int | None = None
) -> Reading:
    """Cut the warm-up, unless the cut is known, estimate the centre of the rest with its interval, test for trends."""
    count = len(times)
    logs = winsorised_logs(times)
    found = 0
    if cut is None:
        found = _steady_from(logs)
        cut = min(found + (count - found) // 8 if found > 5 else found, count // 2)
    kept, kept_logs = times[cut:], logs[cut:]
    time = autocorrelation_time(below_median(kept), kept_logs)
    interval = (mean_interval if estimand == "mean" else median_interval)(kept, time)
    trend = trend_of(kept_logs)
    return Reading(
        interval=interval,
        cut=cut,
        time=time,
        trend=Trend(change=trend.change, z=trend.z),
        warming=count >= 8 and found >= count // 2 - 1,
        trending=abs(trend.z) > trend_threshold(len(kept), trend.time) and abs(trend.change) > target,
        slowing=_slowing(times, logs, cut, time, target, block_size),
        evidence_time=max(time, _excursion_time(kept)),
    )


def _excursion_time(kept: Series) -> float:
    """How long the series stays slow once it is slow, at several levels of slowness."""
    middle = float(np.median(kept))
    unusual = middle + WINSOR_MADS * MAD_TO_DEVIATION * float(np.median(np.abs(kept - middle)))
    levels = (*np.quantile(kept, (0.75, 0.9)), unusual)
    return max(integrated_time((kept > level).astype(np.float64)) for level in levels)


def _steady_from(logs: Series) -> int:
    """MSER first, then trimming as long as the first quarter differs from the last half (Geweke)."""
    count = len(logs)
    start = marginal_error_cut(logs)
    while start < count // 2:
        rest = logs[start:]
        quarter, half = rest[: len(rest) // 4], rest[len(rest) // 2 :]
        if abs(rank_difference(quarter, half, autocorrelation_time(below_median(rest), rest))) < GEWEKE_Z:
            break
        start += max(1, len(rest) // 10)
    return _one_sided(logs, min(start, count // 2))


def _one_sided(logs: Series, start: int) -> int:
    """Warm-up is slow (or fast) nearly throughout; what comes and goes is the machine's habit and must be kept."""
    if start < SHORTEST_SEGMENT:
        return start
    above = logs[:start] > np.median(logs[start:])
    share = np.cumsum(above) / np.arange(1, start + 1)
    sided = np.nonzero(np.maximum(share, 1 - share) >= ONE_SIDED)[0]
    return int(sided[-1]) + 1 if len(sided) else 0


def _slowing(times: Series, logs: Series, cut: int, time: float, target: float, block_size: int) -> bool:
    """Warm-up makes a start slow; a start that was faster than the rest is a slow-down, however short it was."""
    trend = trend_of(logs)
    if trend.change > target and (trend.steady_rise or trend.z > trend_threshold(len(times), trend.time)):
        return True
    return _faster_segment(times, cut, time, target) or _faster_start(times, time, target, block_size)


def trend_threshold(count: int, time: float) -> float:
    """Few correlation times make a poor estimate of the correlation, and so a false trend likelier."""
    return TREND_Z * math.sqrt(1 + 10 * time / count)


def _faster_segment(times: Series, cut: int, time: float, target: float) -> bool:
    kept = times[cut:]
    bound = float(np.median(kept)) * (1 - target)
    pieces = [piece for piece in np.array_split(times[:cut], 4) if len(piece) >= SHORTEST_SEGMENT]
    whole = [times[:cut]] if cut >= SHORTEST_SEGMENT else []
    return any(np.median(piece) < bound and rank_difference(piece, kept, time) < FASTER_Z for piece in pieces + whole)


def _faster_start(times: Series, time: float, target: float, block_size: int) -> bool:
    """The very first samples lie so deep among all that chance is no explanation."""
    count = len(times)
    shortest = max(1, math.ceil(3 * SHORTEST_SEGMENT / block_size))
    bound = float(np.median(times)) * (1 - target)
    logs = np.log(times)
    middle = np.median(logs)
    deviation = 1.4826 * np.median(np.abs(logs - middle)) + 1e-9
    for length in (shortest, 2 * shortest, 4 * shortest):
        if length > count // 4:
            continue
        slowest = float(times[:length].max())
        depth = np.count_nonzero(times <= slowest) / count * time
        if (
            slowest < bound
            and (math.log(slowest) - middle) / deviation < -4
            and depth ** max(length / time, 1.0) < START_CHANCE
        ):
            return True
    return False
