"""Burst against sustained: what a case that was kept going did in its first seconds, in its last, and between."""

from __future__ import annotations

import numpy as np

from torchmark.analyze.statistics import (
    Interval,
    Series,
    autocorrelation_time,
    below_median,
    median_interval,
    winsorised_logs,
)
from torchmark.records import Estimate, Sustained

WINDOW_S = 10.0
WINDOW_SHARE = 0.25  # of all the time, where that is less
GROUPS = 24  # medians along the time, for the slope
FEWEST = 6  # samples at each end
CAUSED = ("contended", "throttled")  # verdicts whose evidence is a cause


def sustained_of(estimate: Estimate) -> Sustained | None:
    """The ends and the slope of a series; None where it has too few samples for two ends."""
    samples = np.asarray(estimate.samples_s)
    if len(samples) < 2 * FEWEST or float(samples.min()) <= 0:
        return None
    ends, window_s = _ends(samples, estimate.duration_s), min(WINDOW_S, WINDOW_SHARE * estimate.duration_s)
    early, late = end_counts(samples, estimate.duration_s, window_s)
    first, last = _center(samples[:early]), _center(samples[-late:])
    return Sustained(
        window_s=window_s,
        first_s=first.center,
        last_s=last.center,
        interval=(last.low / first.high - 1, last.high / first.low - 1),
        slope=_slope(samples, ends) * 60.0 / first.center,
        cause=_cause(estimate),
    )


def _cause(estimate: Estimate) -> str | None:
    """What a meter has shown that slows a machine down."""
    if estimate.verdict in CAUSED:
        return "; ".join(estimate.evidence)
    return "memory was short: pages were fetched from the disk" if "paging" in estimate.flags else None


def end_counts(samples: Series, seconds: float, window_s: float) -> tuple[int, int]:
    """How many of the samples lie in the first window, and how many in the last."""
    ends = _ends(samples, seconds)
    early, before_late = (int(np.searchsorted(ends, at)) for at in (window_s, seconds - window_s))
    return max(early, FEWEST), max(len(samples) - before_late, FEWEST)


def _ends(samples: Series, seconds: float) -> Series:
    """When each sample ended. What lies between them (looks, readings) is little, and spread over all of them."""
    return np.asarray(np.cumsum(samples) / float(samples.sum()) * seconds, dtype=np.float64)


def _center(part: Series) -> Interval:
    logs = winsorised_logs(part)
    return median_interval(part, autocorrelation_time(below_median(part), logs))


def _slope(samples: Series, ends: Series) -> float:
    """Seconds a second: the median of the slopes between all group medians (Theil and Sen), which no spike moves."""
    groups = min(GROUPS, len(samples) // 3)
    parts = np.array_split(np.arange(len(samples)), groups)
    at = np.array([ends[part].mean() for part in parts])
    middle = np.array([np.median(samples[part]) for part in parts])
    i, j = np.triu_indices(groups, 1)
    return float(np.median((middle[j] - middle[i]) / (at[j] - at[i])))
