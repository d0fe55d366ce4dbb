"""What a published way of timing adds to the truth, and how much of that each of its faults accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from torchmark.records import START_UP, Result

# How the metrics of a replayed case begin that tell what its procedure's faults cost.
BESIDE = "seconds of "  # in the whole time, without being work
COST = "cost of "  # share by which a step with the fault takes longer than one without
UNDONE = "left undone"  # share of the time that the device still had to work when the clock was stopped
MADE = "steps made"  # where they are not those that were counted
UNTRIED = "faults not tried"  # a setting: steps were too slow to try them
LEAST = 0.001  # shares below this are not worth a word


class Cause(Struct, frozen=True):
    """A fault of the procedure, and by which share of the right figure it changes the published one."""

    name: str
    share: float


class Bias(Struct, frozen=True):
    """How far the published procedure's figure lies from the right one, both in seconds for the same work."""

    case: str
    published_s: float
    steady_s: float
    precision: float  # of the right one: half its interval
    verdict: str  # of the right one
    causes: tuple[Cause, ...]
    whole_job: bool = False
    untried: str = ""  # faults whose cost nobody knows

    @property
    def share(self) -> float:
        return self.published_s / self.steady_s - 1

    @property
    def rest(self) -> float:
        """What no fault accounts for: chance, and that the two were not timed at the same moment."""
        return self.share - sum(cause.share for cause in self.causes)


def find_bias(published: Result, steady: Result) -> Bias | None:
    """By the whole job where the right way knows one that the publication timed, else by the step."""
    ours, right = published.estimate, steady.estimate
    if ours is None or right is None or right.center_s <= 0:
        return None
    made = published.metrics.get(MADE, 0.0)
    whole_job = published.job is not None and steady.job is not None and not made
    if published.job and steady.job and whole_job:
        start_up_s = sum(stage.center_s for stage in steady.job.stages if stage.name == START_UP)
        published_s, right_s = published.job.seconds, steady.job.seconds - start_up_s
        beside_s, precision = right_s, (steady.job.high_s - steady.job.low_s) / 2 / right_s
    else:
        published_s, right_s = ours.center_s, right.center_s
        steps = round(published.job.seconds / ours.center_s) if published.job else 0
        beside_s, precision = steps * right_s, right.precision
    causes = _causes(published, beside_s, published_s / right_s)
    if made:
        causes.append(Cause(f"{made:.0f} steps counted as {steps}", made / steps - 1))
    untried = str(published.settings.get(UNTRIED) or "")
    return Bias(steady.case.text, published_s, right_s, precision, right.verdict, _ordered(causes), whole_job, untried)


def _ordered(causes: list[Cause]) -> tuple[Cause, ...]:
    return tuple(sorted((cause for cause in causes if abs(cause.share) >= LEAST), key=lambda cause: -abs(cause.share)))


def _causes(published: Result, right_s: float, ratio: float) -> list[Cause]:
    return [cause for name, value in published.metrics.items() for cause in _cause(name, value, right_s, ratio)]


def _cause(name: str, value: float, right_s: float, ratio: float) -> Iterator[Cause]:
    if name.startswith(BESIDE) and right_s > 0:
        yield Cause(f"{name.removeprefix(BESIDE)} counted", value / right_s)
    elif name.startswith(COST):
        yield Cause(name.removeprefix(COST), ratio * value / (1 + value))
    elif name == UNDONE:
        yield Cause("device not waited for", -ratio * value)
