"""One reading of a whole series of samples: where it is steady, what it says there, and what speaks against it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchmark.analyze.statistics import (
    GEWEKE_Z,
    MAD_TO_DEVIATION,
    WINSOR_MADS,
    Interval,
    Series,
    autocorrelation_time,
    below_median,
    integrated_time,
    marginal_error_cut,
    mean_interval,
    median_interval,
    rank_difference,
    trend_of,
    winsorised_logs,
)
from torchmark.records import Estimand, Trend

TREND_Z = 2.8
FASTER_Z = -3.0
CHANCE = 5e-3  # how rarely a quiet series may look as if it had started faster
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


def read_series(times: Series, target: float, estimand: Estimand = "median", block_size: int = 1) -> Reading:
    """Cut the warm-up, estimate the centre of the rest with its interval, and test for trends."""
    count = len(times)
    logs = winsorised_logs(times)
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
            and depth ** max(length / time, 1.0) < CHANCE
        ):
            return True
    return False
