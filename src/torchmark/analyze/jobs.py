"""Times of whole jobs: extrapolated from a share of their steps, and how a step changes over a sustained run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchmark.analyze.statistics import (
    Interval,
    Series,
    autocorrelation_time,
    below_median,
    mean_interval,
    median_interval,
    read_series,
    winsorised_logs,
)
from torchmark.records import DISTURBED, Estimate, JobEstimate, Laps, StageEstimate, Sustained

ENOUGH_LAPS = 20  # laps from which on it shows where warm-up ends; of fewer only the first is special
WARM_UP = "warm-up"
INTERRUPTED = 3.0  # times as long as others: something else had the processor
STRETCH = 0.1  # of the laps: what is slow in more of them belongs to the loop


def extrapolate(procedure: Sequence[Laps]) -> JobEstimate:
    """The whole time of a procedure.

    The first lap of a stage, and those after it that were still warm-up, are counted as they were; the later ones
    represent all that were not run, with a 95% interval. One interruption says nothing about their frequency: it counts
    once, and at the end of the interval as often as it was met. A stage that was run whole is
    its sum.
    """
    stages = [stage for laps in procedure for stage in _stages(laps)]
    return JobEstimate(
        seconds=sum(stage.steps * stage.center_s for stage in stages),
        low_s=sum(stage.steps * stage.low_s for stage in stages),
        high_s=sum(stage.steps * stage.high_s for stage in stages),
        whole=all(laps.whole for laps in procedure),
        stages=tuple(stages),
    )


def overheads(procedure: Sequence[Laps]) -> dict[str, float]:
    """Seconds of the whole time that are no work, by stage; of warm-up, those beyond what the same steps take later."""
    found: dict[str, float] = {}
    for laps in procedure:
        stages = _stages(laps)
        if not laps.is_work:
            found[laps.stage] = sum(stage.steps * stage.center_s for stage in stages)
        elif len(stages) > 1:
            first, later = stages[0], stages[-1]
            extra_s = first.steps * (first.center_s - later.center_s)
            found[WARM_UP] = found.get(WARM_UP, 0.0) + extra_s
    return found


def later_step(laps: Laps) -> StageEstimate:
    """What a step takes once the first ones are over."""
    return _stages(laps)[-1]


def _stages(laps: Laps) -> list[StageEstimate]:
    name, count, times = laps.stage, laps.published, np.array(laps.seconds)
    if count == 1 or len(times) == 1:
        return [_exactly(name, count, float(times.mean()))]
    begun = 1 if laps.whole else _warm_from(times)
    first = _exactly(f"first {name}", begun, float(times[:begun].mean()))
    later = times[begun:]
    if laps.whole:
        return [first, _exactly(f"later {name}", count - begun, float(later.mean()))]
    begins, ends = _interruption(later)
    apart, rest = later[begins:ends], np.concatenate([later[:begins], later[ends:]])
    # A sum of many steps follows their mean, not their median.
    time = read_series(rest, target=0.01, estimand="mean").time if len(rest) >= ENOUGH_LAPS else 1.0
    estimates = [first, StageEstimate(f"later {name}", count - begun - len(apart), *mean_interval(rest, time))]
    if len(apart):
        mean_s, again = float(apart.mean()), (count - begun) / len(later)
        estimates.insert(1, StageEstimate(f"interrupted {name}", len(apart), mean_s, mean_s, mean_s * again))
    return estimates


def _interruption(times: Series) -> tuple[int, int]:
    """The range of one interruption by another program; empty if interruptions recur."""
    slow = np.flatnonzero(times > INTERRUPTED * np.median(times))
    if not len(slow) or len(times) < ENOUGH_LAPS or slow[-1] - slow[0] >= len(times) * STRETCH:
        return 0, 0
    return int(slow[0]), int(slow[-1]) + 1


def _warm_from(times: Series) -> int:
    """The number of warm-up laps. A start that was faster than the rest is no warm-up."""
    if len(times) < ENOUGH_LAPS:
        return 1
    cut = 1 + read_series(times[1:], target=0.01, estimand="mean").cut
    return cut if times[:cut].mean() > times[cut:].mean() else 1


def _exactly(name: str, count: int, seconds: float) -> StageEstimate:
    return StageEstimate(name, count, seconds, seconds, seconds)


WINDOW_S = 10.0
WINDOW_SHARE = 0.25  # of all the time, where that is less
SLOPE_GROUPS = 24  # medians along the time, for the slope
END_SAMPLES = 6  # samples at each end


def sustained_of(estimate: Estimate) -> Sustained | None:
    """The ends and the slope of a series; None where it has too few samples for two ends."""
    samples = np.asarray(estimate.samples_s)
    if len(samples) < 2 * END_SAMPLES or float(samples.min()) <= 0:
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
    """The cause of a slow-down that a meter has shown."""
    if estimate.verdict in DISTURBED:
        return "; ".join(estimate.evidence)
    return "memory was short: pages were fetched from the disk" if "paging" in estimate.flags else None


def end_counts(samples: Series, seconds: float, window_s: float) -> tuple[int, int]:
    """How many of the samples lie in the first window, and how many in the last."""
    ends = _ends(samples, seconds)
    early, before_late = (int(np.searchsorted(ends, at)) for at in (window_s, seconds - window_s))
    return max(early, END_SAMPLES), max(len(samples) - before_late, END_SAMPLES)


def _ends(samples: Series, seconds: float) -> Series:
    """When each sample ended. What lies between them (looks, readings) is little, and spread over all of them."""
    return np.asarray(np.cumsum(samples) / float(samples.sum()) * seconds, dtype=np.float64)


def _center(part: Series) -> Interval:
    logs = winsorised_logs(part)
    return median_interval(part, autocorrelation_time(below_median(part), logs))


def _slope(samples: Series, ends: Series) -> float:
    """Seconds a second: the median of the slopes between all group medians (Theil and Sen), which no spike moves."""
    groups = min(SLOPE_GROUPS, len(samples) // 3)
    parts = np.array_split(np.arange(len(samples)), groups)
    at = np.array([ends[part].mean() for part in parts])
    middle = np.array([np.median(samples[part]) for part in parts])
    i, j = np.triu_indices(groups, 1)
    return float(np.median((middle[j] - middle[i]) / (at[j] - at[i])))
