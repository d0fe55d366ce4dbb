"""From a share of a loop's steps to the time of all of them: what was timed once is counted once, the rest grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchmark.analyze.laps import Laps
from torchmark.analyze.series import read_series
from torchmark.analyze.statistics import Interval, Series, mean_interval
from torchmark.records import JobEstimate, StageEstimate

ENOUGH = 20  # laps from which on it shows where warm-up ends; of fewer only the first is special
WARM_UP = "warm-up"
INTERRUPTED = 3.0  # times as long as others: something else had the processor
STRETCH = 0.1  # of the laps: what is slow in more of them belongs to the loop


def extrapolate(procedure: Sequence[Laps]) -> JobEstimate:
    """The whole time of a procedure.

    The first lap of a stage, and those after it that were still warm-up, are counted as they were; the later ones
    stand for all that were not run, with a 95% interval. One stretch that was interrupted says nothing of how often
    that happens: it is counted once, and as often as it was met where the interval ends. A stage that was run whole is
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
    estimates = [first, StageEstimate(f"later {name}", count - begun - len(apart), *_mean(rest))]
    if len(apart):
        mean_s, again = float(apart.mean()), (count - begun) / len(later)
        estimates.insert(1, StageEstimate(f"interrupted {name}", len(apart), mean_s, mean_s, mean_s * again))
    return estimates


def _interruption(times: Series) -> tuple[int, int]:
    """Where the one stretch begins and ends in which something else had the processor; nowhere if it comes back."""
    slow = np.flatnonzero(times > INTERRUPTED * np.median(times))
    if not len(slow) or len(times) < ENOUGH or slow[-1] - slow[0] >= len(times) * STRETCH:
        return 0, 0
    return int(slow[0]), int(slow[-1]) + 1


def _warm_from(times: Series) -> int:
    """How many laps went by before it was warm. A start that was faster than the rest is no warm-up."""
    if len(times) < ENOUGH:
        return 1
    cut = 1 + read_series(times[1:], target=0.01, estimand="mean").cut
    return cut if times[:cut].mean() > times[cut:].mean() else 1


def _mean(times: Series) -> Interval:
    """A sum of many steps follows their mean, not their median."""
    time = read_series(times, target=0.01, estimand="mean").time if len(times) >= ENOUGH else 1.0
    return mean_interval(times, time)


def _exactly(name: str, count: int, seconds: float) -> StageEstimate:
    return StageEstimate(name, count, seconds, seconds, seconds)
