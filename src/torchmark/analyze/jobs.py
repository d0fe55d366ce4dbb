"""Whole jobs, sustained runs, the bias of published procedures, and the records of published tables."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze import statistics
from torchmark.analyze.spread import Interval
from torchmark.analyze.statistics import Series
from torchmark.records import DISTURBED, START_UP, Estimate, JobEstimate, Laps, Result, StageEstimate, Sustained

ENOUGH_LAPS = 20  # that show where warm-up ends; of fewer only the first is special
WARM_UP = "warm-up"


def extrapolate(procedure: Sequence[Laps]) -> JobEstimate:
    """The whole time of a procedure; an interruption counts once, and in the high end as often as it was met."""
    stages = [stage for laps in procedure for stage in _stages(laps)]
    return project(stages, JobEstimate(0.0, 0.0, 0.0, all(laps.whole for laps in procedure)))


def project(stages: Sequence[StageEstimate], job: JobEstimate) -> JobEstimate:
    sums = [sum(stage.steps * getattr(stage, name) for stage in stages) for name in ("center_s", "low_s", "high_s")]
    return replace(job, stages=tuple(stages), seconds=sums[0], low_s=sums[1], high_s=sums[2])


def overheads(procedure: Sequence[Laps]) -> dict[str, float]:
    """Seconds that are no work, by stage; of warm-up, what the same steps take more than later."""
    found = dict[str, float]()
    for laps in procedure:
        first, *others = stages = _stages(laps)
        if not laps.is_work:
            found[laps.stage] = sum(stage.steps * stage.center_s for stage in stages)
        elif others:
            found[WARM_UP] = found.get(WARM_UP, 0.0) + first.steps * (first.center_s - others[-1].center_s)
    return found


def later_step(laps: Laps) -> StageEstimate:
    return _stages(laps)[-1]


def _stages(laps: Laps) -> list[StageEstimate]:
    name, count, times = laps.stage, laps.published, np.array(laps.seconds)

    def exactly(kind: str, count: int, part: Series) -> StageEstimate:
        return StageEstimate(kind + name, count, *[float(part.mean())] * 3)

    if count == 1 or len(times) == 1:
        return [exactly("", count, times)]
    begun = 1  # laps of warm-up, which is slower than the rest
    if not laps.whole and len(times) >= ENOUGH_LAPS:
        cut = 1 + statistics.read_series(times[1:], target=0.01, estimand="mean").cut
        begun = cut if times[:cut].mean() > times[cut:].mean() else 1
    first, later = exactly("first ", begun, times[:begun]), times[begun:]
    if laps.whole:
        return [first, exactly("later ", count - begun, later)]
    # Laps three times as long are one interruption by another program, unless a tenth of the laps lies between them.
    slow, begins, ends = np.flatnonzero(later > 3 * statistics.median(later)), 0, 0
    if len(slow) and len(later) >= ENOUGH_LAPS and slow[-1] - slow[0] < len(later) * 0.1:
        begins, ends = int(slow[0]), int(slow[-1]) + 1
    apart, rest = later[begins:ends], np.concatenate([later[:begins], later[ends:]])
    time = statistics.read_series(rest, target=0.01, estimand="mean").time if len(rest) >= ENOUGH_LAPS else 1.0
    interval = statistics.mean_interval(rest, time)  # a sum of steps follows their mean
    estimates = [first, StageEstimate(f"later {name}", count - begun - len(apart), *interval)]
    if len(apart):
        stopped = exactly("interrupted ", len(apart), apart)
        estimates.insert(1, replace(stopped, high_s=stopped.center_s * (count - begun) / len(later)))
    return estimates


WINDOW_S, WINDOW_SHARE = 10.0, 0.25  # docs/method.md
END_SAMPLES = 6  # at each end


def sustained_of(estimate: Estimate) -> Sustained | None:
    """None where there are too few samples for two ends."""
    samples = np.asarray(estimate.samples_s)
    if len(samples) < 2 * END_SAMPLES or float(samples.min()) <= 0:
        return None
    window_s = min(WINDOW_S, WINDOW_SHARE * estimate.duration_s)
    early, late = end_counts(samples, estimate.duration_s, window_s)
    first, last = _center(samples[:early]), _center(samples[-late:])
    # Seconds a second: the median of the slopes between all group medians (Theil and Sen).
    groups = min(24, len(samples) // 3)
    at = np.array([part.mean() for part in np.array_split(_ends(samples, estimate.duration_s), groups)])
    middle = np.array([statistics.median(part) for part in np.array_split(samples, groups)])
    i, j = np.triu_indices(groups, 1)
    slope = statistics.median((middle[j] - middle[i]) / (at[j] - at[i]))
    cause = "memory was short: pages were fetched from the disk" if "paging" in estimate.flags else None
    cause = "; ".join(estimate.evidence) if estimate.verdict in DISTURBED else cause
    change = last.low / first.high - 1, last.high / first.low - 1
    return Sustained(window_s, first.center, last.center, change, slope * 60.0 / first.center, cause)


def end_counts(samples: Series, seconds: float, window_s: float) -> tuple[int, int]:
    ends = _ends(samples, seconds)
    early, before_late = (int(np.searchsorted(ends, at)) for at in (window_s, seconds - window_s))
    return max(early, END_SAMPLES), max(len(samples) - before_late, END_SAMPLES)


def _ends(samples: Series, seconds: float) -> Series:
    # When each sample ended, with the time between them spread evenly.
    return np.asarray(np.cumsum(samples) / float(samples.sum()) * seconds, dtype=np.float64)


def _center(part: Series) -> Interval:
    logs = statistics.winsorised_logs(part)
    return statistics.median_interval(part, statistics.autocorrelation_time(statistics.below_median(part), logs))


# In a replayed case's metrics: the costs of its procedure's faults.
OVERHEAD = "seconds of "  # that are no work
COST = "cost of "  # share by which a step with the fault takes longer
UNDONE = "left undone"  # share of the time that the device worked on after the clock was stopped
MADE = "steps made"  # if they are not those that were counted
UNTRIED = "faults not tried"  # a setting: steps were too slow to try them
LEAST = 0.001  # share of a cause that is reported


class Bias(Struct, frozen=True):  # of a published procedure
    case: str
    published_s: float
    steady_s: float  # the right figure
    precision: float  # of the right one: half its interval
    verdict: str  # of the right one
    causes: dict[str, float]  # the share of the right figure that each fault adds
    whole_job: bool = False
    untried: str = ""  # faults whose cost is unknown

    @property
    def share(self) -> float:
        return self.published_s / self.steady_s - 1

    @property
    def rest(self) -> float:
        """What no fault explains: chance, and the time between the two."""
        return self.share - sum(self.causes.values())


def find_bias(published: Result, steady: Result) -> Bias | None:
    """By the whole job if both have one, else by the step."""
    ours, right = published.estimate, steady.estimate
    if ours is None or right is None or right.center_s <= 0:
        return None
    made, job, steps, whole_job = published.metrics.get(MADE, 0.0), published.job, 0, False
    if job and steady.job and not made:
        start_up_s, whole_job = sum(stage.center_s for stage in steady.job.stages if stage.name == START_UP), True
        published_s, right_s = job.seconds, steady.job.seconds - start_up_s
        work_s, precision = right_s, (steady.job.high_s - steady.job.low_s) / 2 / right_s
    else:
        published_s, right_s = ours.center_s, right.center_s
        steps = round(job.seconds / ours.center_s) if job else 0
        work_s, precision = steps * right_s, right.precision
    ratio, causes = published_s / right_s, dict[str, float]()
    for name, value in published.metrics.items():
        if name.startswith(OVERHEAD) and work_s > 0:
            causes[f"{name.removeprefix(OVERHEAD)} counted"] = value / work_s
        elif name.startswith(COST):
            causes[name.removeprefix(COST)] = ratio * value / (1 + value)
        elif name == UNDONE:
            causes["device not waited for"] = -ratio * value
    if made:
        causes[f"{made:.0f} steps counted as {steps}"] = made / steps - 1
    largest = sorted(causes.items(), key=lambda cause: -abs(cause[1]))
    causes = {name: share for name, share in largest if abs(share) >= LEAST}
    untried = str(published.settings.get(UNTRIED) or "")
    return Bias(steady.case.text, published_s, right_s, precision, right.verdict, causes, whole_job, untried)


class Printed(Struct, frozen=True):
    machine: str
    column: str
    text: str
    value: float | None  # None: out of memory
    unit: str


class Own(Struct, frozen=True):  # this machine's figure in the row's unit
    case: str = ""
    device: str = ""
    status: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    extrapolated: bool = False
    steady: float | None = None  # measured rightly
    reason: str = ""  # why there is no figure
    disturbed: str = ""  # by what

    @property
    def precision(self) -> float | None:
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / self.value


class Row(Struct, frozen=True):
    labels: tuple[str, ...]
    printed: tuple[Printed, ...]
    own: tuple[Own, ...]  # for each place
    unit: str


class Sheet(Struct, frozen=True):  # a published table with a new column for each place of this machine
    publication: str
    title: str
    protocol: str
    headers: tuple[str, ...]  # of the labels
    columns: tuple[str, ...]
    places: tuple[str, ...]
    rows: tuple[Row, ...]
    is_comparable: bool = True  # a ratio of the two has a meaning
    by_machine: bool = False  # each row is a machine
    has_speedup: bool = False  # the publication divides the first place's figure by the second's
    notes: tuple[str, ...] = ()


class Replicated(Struct, frozen=True):
    name: str
    title: str
    sheets: tuple[Sheet, ...]
    biases: tuple[Bias, ...] = ()
