"""A series of step times: where warm-up ends, how correlated it is, its centre, interval and trend."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmark.analyze.spread import CHANCE, MAD_TO_DEVIATION, Interval, critical
from torchmark.records import Estimand, Trend

Series = NDArray[np.float64]

# docs/method.md explains these.
CONFIDENCE = 1 - CHANCE
WINSOR_MADS = 4.0
GEWEKE_Z, TREND_Z, FASTER_Z = 1.64, 2.8, -3.0
BATCHES, CHI_SQUARED = 8, 14.067140449  # and the 95% quantile at BATCHES - 1 degrees of freedom
GROUPS, STEADY_RISE = 12, 0.87  # chance reaches it about once in 100,000 series
FEW_SAMPLES = 6
START_CHANCE = 5e-3
SHORTEST_SEGMENT = 5  # samples; a block of many steps counts as that many
ONE_SIDED = 0.8


def median(values: Series | Sequence[float]) -> float:
    """As numpy's, which takes ten times as long for few numbers, and imports its masked arrays for 15 ms."""
    ordered, half = np.sort(values), len(values) // 2
    return float(ordered[half] + ordered[~half]) / 2


def deviation_of(values: Series) -> float:
    return median(np.abs(values - median(values)))


def winsorised_logs(times: Series) -> Series:
    """Logarithms with outliers clipped to the usual range of the second half."""
    logs = np.log(times)
    tail = logs[len(logs) // 2 :]
    middle, reach = median(tail), WINSOR_MADS * MAD_TO_DEVIATION * deviation_of(tail) + 1e-9
    return np.asarray(np.clip(logs, middle - reach, middle + reach), dtype=np.float64)


def marginal_error_cut(values: Series) -> int:
    """MSER: the start, at most half-way, from which the standard error of the mean is smallest."""
    backwards, lengths = values[::-1] - values[-1], np.arange(1, len(values) + 1)
    means = np.cumsum(backwards) / lengths
    variances = np.maximum(np.cumsum(backwards * backwards) / lengths - means * means, 1e-12)
    return int(np.argmin((variances / lengths)[::-1][: len(values) // 2 + 1]))


def integrated_time(values: Series) -> float:
    """By Sokal's self-consistent window, corrected for the removed mean."""
    count, centred = len(values), values - values.mean()
    variance, length = float(centred @ centred) / count, 1 << (2 * count - 1).bit_length()
    if variance <= 0 or count < 4:
        return 1.0
    spectrum = np.fft.rfft(centred, length)
    autocovariance = np.fft.irfft(spectrum * np.conj(spectrum), length)[: count // 2]
    times = 2 * np.cumsum(autocovariance / (count * variance)) - 1
    enough = np.nonzero(np.arange(len(times)) >= 5 * times)[0]
    window = int(enough[0]) if len(enough) else len(times) - 1
    time = max(float(times[window]), 1.0)
    return max(time * (1 + (2 * window + 1) / count), 1.0) if window > 5 else time


def autocorrelation_time(indicator: Series, values: Series) -> float:
    """How many samples are worth an independent one, by the worst of three methods."""
    times, count, centred = [integrated_time(indicator), 1.0], len(values), values - values.mean()
    power, variance, size = float(centred @ centred), float(values.var()), len(values) // BATCHES
    correlation = float(centred[1:] @ centred[:-1]) / power if power > 0 and count >= 4 else 0.0
    if correlation > 2 / math.sqrt(count):  # a significant autoregression, corrected for bias
        correlation = min(correlation + (1 + 3 * correlation) / count, 0.98)
        times.append((1 + correlation) / (1 - correlation))
    if variance > 0 and size >= 2:  # batch means beyond the 95% envelope of independent samples
        means = values[-size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
        times.append(float(means.var(ddof=1)) * size / variance / (CHI_SQUARED / (BATCHES - 1)))
    return max(times)


def ranks(values: Series) -> Series:
    """Ranks from 1; ties share theirs, so that a coarse clock makes no order."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


def rank_difference(first: Series, second: Series, time: float) -> float:
    """Mann-Whitney z, deflated by the autocorrelation time; negative: `first` is faster."""
    m, n = len(first), len(second)
    if not m or not n:
        return 0.0
    order = np.sort(second)
    below = np.searchsorted(order, first, "left") + np.searchsorted(order, first, "right")
    return (float(below.sum()) - m * n) / 2 / math.sqrt(m * n * (m + n + 1) / 12 * time)


def below_median(values: Series) -> Series:
    return (values <= median(values)).astype(np.float64)


class TrendTest(NamedTuple):  # in log-times
    z: float
    change: float  # in total, relative
    chance_z: float  # that chance may reach
    steady_rise: bool


def trend_of(values: Series) -> TrendTest:
    """Spearman's rank trend; `steady_rise` shows a bent path, whose residuals look correlated and hide it."""
    count, groups = len(values), min(GROUPS, len(values) // 3)
    if groups < 3:
        return TrendTest(0.0, 0.0, math.inf, False)
    edges = np.linspace(0, count, groups + 1).astype(int)
    medians = np.array([median(values[a:b]) for a, b in itertools.pairwise(edges)])
    i, j = np.triu_indices(groups, 1)
    total = median((medians[j] - medians[i]) / (j - i)) * (groups - 1)
    residuals = values - np.linspace(0, total, count)
    time = autocorrelation_time(below_median(residuals), residuals)
    place, rank = np.arange(count) - (count - 1) / 2, ranks(values) - (count + 1) / 2
    z = float(place @ rank) / float(place @ place) * math.sqrt((count - 1) / time)
    rises = float(np.sign(medians[j] - medians[i]).sum()) / len(i)
    chance_z = TREND_Z * math.sqrt(1 + 10 * time / count)
    return TrendTest(z, math.expm1(total), chance_z, groups == GROUPS and rises >= STEADY_RISE)


def median_interval(times: Series, time: float) -> Interval:
    """The median by order statistics, widened for correlation."""
    count, center = len(times), median(times)
    if count < FEW_SAMPLES:
        return _few_samples_interval(times, center)
    ordered = np.sort(times)
    if time < 1.01 and count < 100:
        # The largest rank for which [x(r), x(n-1-r)] holds the median with 95% confidence.
        rank = max(int(np.searchsorted(binomial(count, 0.5), CHANCE / 2, side="right")) - 1, 0)
        return Interval(center, float(ordered[rank]), float(ordered[count - 1 - rank]))
    reach = critical(max(count / time - 1, 2.0), CHANCE) * math.sqrt(count * time) / 2
    # At least half the width at twice the ranks: narrow by luck, or next to another mode, is not precise.
    low, low_wide = (float(ordered[max(math.floor(count / 2 - each), 0)]) for each in (reach, 2 * reach))
    high, high_wide = (float(ordered[min(math.ceil(count / 2 + each), count - 1)]) for each in (reach, 2 * reach))
    if 2 * reach > 0.45 * count:  # beyond it a single spike would decide
        return Interval(center, low, high)
    return Interval(center, min(low, (center + low_wide) / 2), max(high, (center + high_wide) / 2))


def binomial(count: int, share: float) -> Series:
    """The cumulative binomial probabilities of 0 to `count` - 1."""
    chosen = np.arange(count)
    growth = np.log((count - chosen) / (chosen + 1)) + math.log(share) - math.log1p(-share)
    return np.cumsum(np.exp(count * math.log1p(-share) + np.concatenate([[0.0], np.cumsum(growth)])))


def _few_samples_interval(times: Series, center: float) -> Interval:
    count = len(times)
    if count < 2:
        return Interval(center, center / 2, center * 2)
    deviation = float(np.log(np.maximum(times, 1e-12)).std(ddof=1))  # of noise that is assumed to be log-normal
    # 1.25: the median of normal samples is that much less precise than their mean.
    reach = min(1.25 * critical(count - 1, CHANCE) * deviation / math.sqrt(count), 3.0)
    low, high = center * math.exp(-reach), center * math.exp(reach)
    return Interval(center, min(low, float(times.min())), max(high, float(times.max())))


def mean_interval(times: Series, time: float) -> Interval:
    """The mean ± Student's t; upwards also skewness (Johnson) and the unseen part of a heavy tail (Hill)."""
    count, center = len(times), float(times.mean())
    if count < FEW_SAMPLES:
        return _few_samples_interval(times, center)
    deviation, effective = float(times.std(ddof=1)), max(count / time, 2.0)
    error = deviation / math.sqrt(effective)
    if error <= 0:
        return Interval(center, center, center)
    t = critical(max(effective - 1, 2.0), CHANCE)
    skewness = max(float(np.mean(((times - center) / deviation) ** 3)), 0.0)
    lean = error * skewness / (6 * math.sqrt(effective)) * (1 + 2 * t * t)
    top, unseen = max(10, math.isqrt(count)), 0.0
    excess = np.sort(times)[-top - 1 :] - median(times)
    if count >= 4 * top and excess[0] > 0:  # half as much again, as Hill's estimate rests on few samples
        heaviness = max(1 / max(float(np.mean(np.log(excess[1:] / excess[0]))), 1e-9), 1.2)
        unseen = 1.5 * float(excess[0]) * math.pow(top, 1 / heaviness) / (count * (heaviness - 1))
    return Interval(center, max(center - t * error, 0.0), center + t * error + lean + unseen)


def tail_bound(ordered: Series, share: float) -> float | None:
    """A 95% upper bound of a high quantile, by the binomial distribution; None: too few samples."""
    count = len(ordered)
    rank = max(math.ceil(count * share), int(np.searchsorted(binomial(count, share), CONFIDENCE)))
    return float(ordered[rank]) if rank < count else None


class Reading(NamedTuple):
    interval: Interval
    cut: int
    time: float  # autocorrelation time, in samples
    trend: Trend
    warming: bool
    trending: bool
    slowing: bool
    evidence_time: float  # the longest correlation time at any level

    def effective(self, count: int) -> float:
        return (count - self.cut) / self.time


def read_series(
    times: Series, target: float, estimand: Estimand = "median", block_size: int = 1, cut: int | None = None
) -> Reading:
    """Cut the warm-up (or at `cut`), estimate the centre of the rest, test for trends."""
    count, logs, found = len(times), winsorised_logs(times), 0
    if cut is None:
        found = _steady_from(logs)
        cut = min(found + (count - found) // 8 if found > 5 else found, count // 2)
    kept, kept_logs = times[cut:], logs[cut:]
    time, trend = autocorrelation_time(below_median(kept), kept_logs), trend_of(kept_logs)
    # How long the series stays slow once it is slow.
    levels = (*np.quantile(kept, (0.75, 0.9)), median(kept) + WINSOR_MADS * MAD_TO_DEVIATION * deviation_of(kept))
    whole = trend_of(logs)
    rising = whole.change > target and (whole.steady_rise or whole.z > whole.chance_z)
    return Reading(
        interval=(mean_interval if estimand == "mean" else median_interval)(kept, time),
        cut=cut,
        time=time,
        trend=Trend(change=trend.change, z=trend.z),
        warming=count >= 8 and found >= count // 2 - 1,
        trending=abs(trend.z) > trend.chance_z and abs(trend.change) > target,
        slowing=rising or _started_faster(times, cut, time, target, block_size),
        evidence_time=max(time, *(integrated_time((kept > level).astype(np.float64)) for level in levels)),
    )


def _steady_from(logs: Series) -> int:
    # MSER, then trimming while the first quarter differs from the last half (Geweke). Warm-up is slow (or fast) nearly
    # throughout; what comes and goes must be kept.
    count, start = len(logs), marginal_error_cut(logs)
    while start < count // 2:
        rest = logs[start:]
        quarter, half = rest[: len(rest) // 4], rest[len(rest) // 2 :]
        if abs(rank_difference(quarter, half, autocorrelation_time(below_median(rest), rest))) < GEWEKE_Z:
            break
        start += max(1, len(rest) // 10)
    start = min(start, count // 2)
    if start < SHORTEST_SEGMENT:
        return start
    share = np.cumsum(logs[:start] > median(logs[start:])) / np.arange(1, start + 1)
    sided = np.nonzero(np.maximum(share, 1 - share) >= ONE_SIDED)[0]
    return int(sided[-1]) + 1 if len(sided) else 0


def _started_faster(times: Series, cut: int, time: float, target: float, block_size: int) -> bool:
    start, kept, count = times[:cut], times[cut:], len(times)
    bound = median(kept) * (1 - target)
    pieces = [piece for piece in (*np.array_split(start, 4), start) if len(piece) >= SHORTEST_SEGMENT]
    if any(median(piece) < bound and rank_difference(piece, kept, time) < FASTER_Z for piece in pieces):
        return True
    bound, logs = median(times) * (1 - target), np.log(times)
    middle, deviation = median(logs), MAD_TO_DEVIATION * deviation_of(logs) + 1e-9
    shortest = max(1, math.ceil(3 * SHORTEST_SEGMENT / block_size))
    for length in (shortest, 2 * shortest, 4 * shortest):
        slowest = float(times[:length].max())
        deep = slowest < bound and (math.log(slowest) - middle) / deviation < -4
        chance = (np.count_nonzero(times <= slowest) / count * time) ** max(length / time, 1.0)
        if length <= count // 4 and deep and chance < START_CHANCE:
            return True
    return False
