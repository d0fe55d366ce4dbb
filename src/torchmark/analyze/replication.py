"""A published table next to this machine's figures, and what the published way of timing adds to the truth."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from torchmark.records import START_UP, Result

# Prefixes of a replayed case's metrics: the costs of its procedure's faults.
OVERHEAD = "seconds of "  # in the whole time, without being work
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
    untried: str = ""  # faults whose cost is unknown

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
        work_s, precision = right_s, (steady.job.high_s - steady.job.low_s) / 2 / right_s
    else:
        published_s, right_s = ours.center_s, right.center_s
        steps = round(published.job.seconds / ours.center_s) if published.job else 0
        work_s, precision = steps * right_s, right.precision
    ratio = published_s / right_s
    causes = [each for name, value in published.metrics.items() for each in _cause(name, value, work_s, ratio)]
    if made:
        causes.append(Cause(f"{made:.0f} steps counted as {steps}", made / steps - 1))
    untried = str(published.settings.get(UNTRIED) or "")
    ordered = sorted((each for each in causes if abs(each.share) >= LEAST), key=lambda each: -abs(each.share))
    return Bias(steady.case.text, published_s, right_s, precision, right.verdict, tuple(ordered), whole_job, untried)


def _cause(name: str, value: float, right_s: float, ratio: float) -> Iterator[Cause]:
    if name.startswith(OVERHEAD) and right_s > 0:
        yield Cause(f"{name.removeprefix(OVERHEAD)} counted", value / right_s)
    elif name.startswith(COST):
        yield Cause(name.removeprefix(COST), ratio * value / (1 + value))
    elif name == UNDONE:
        yield Cause("device not waited for", -ratio * value)


class Printed(Struct, frozen=True):
    """A published figure under its heading."""

    machine: str
    column: str
    text: str
    value: float | None  # None: out of memory
    unit: str


class Own(Struct, frozen=True):
    """This machine's figure for a row, in the row's unit, or why there is none."""

    case: str = ""
    device: str = ""
    status: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    extrapolated: bool = False
    steady: float | None = None  # the same, measured rightly
    reason: str = ""
    disturbed: str = ""  # by what, while it was timed

    @property
    def precision(self) -> float | None:
        """Half the interval of an extrapolated figure, relative to it."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / self.value


class Row(Struct, frozen=True):
    """One row: the cells that name it, what was printed in it, and this machine's figure for each place."""

    labels: tuple[str, ...]
    printed: tuple[Printed, ...]
    own: tuple[Own, ...]
    unit: str


class Sheet(Struct, frozen=True):
    """One published table, and a new column for each place of this machine."""

    publication: str
    title: str
    protocol: str
    headers: tuple[str, ...]  # of the cells that name a row
    columns: tuple[str, ...]  # published, as printed
    places: tuple[str, ...]
    rows: tuple[Row, ...]
    is_comparable: bool = True  # whether a ratio of the two means anything
    by_machine: bool = False  # each row is a machine
    has_speedup: bool = False  # the publication divides the first place's figure by the second's
    notes: tuple[str, ...] = ()


class Replicated(Struct, frozen=True):
    """All tables of one publication next to this machine's figures."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]
    biases: tuple[Bias, ...] = ()
