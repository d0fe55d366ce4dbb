"""Did the upgrade slow me down? One case live in two environments, in pairs of fresh processes that take turns.

Both processes of a pair are alive at the same time, but only one of them works: in short rounds, in random order, so
that whatever disturbs the machine meets both. Every pair is new, because processes of the same case differ. It stops
as soon as the answer is clear, at looks that were fixed beforehand.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.analyze.cautions import cautions_of
from torchmark.analyze.live import LiveComparison, LiveSide, Stopped, answer_of, pair_ratio, ratio_interval, why_stop
from torchmark.analyze.statistics import Interval
from torchmark.analyze.summary import combine_results
from torchmark.errors import DeviceError
from torchmark.measure.elsewhere import Elsewhere, ProcessFailed
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Opened,
    Phase,
    Prepare,
    Prepared,
    SumUp,
    Surveyed,
    SurveyJob,
    TakeTurn,
    Turned,
)
from torchmark.measure.sampling import DEFAULTS
from torchmark.measure.session import PROCESSES
from torchmark.records import Case, Result, Rigor

TURN_S = 0.3
TURN_STEPS, LONG_TURN_S = 3, 0.9  # so many in a turn, as far as they fit
SLOW_STEP_S = 1.0
VERY_SLOW_STEP_S = 5.0
ROUNDS, SLOW_ROUNDS, VERY_SLOW_ROUNDS = 6, 4, 2  # even, so that each side begins in half of them

Listen = Callable[[str, Phase], None]


class Side(Struct, frozen=True):
    """What is measured on one side, by which interpreter, and what is set for it."""

    name: str
    case: Case
    python: str
    environment: dict[str, str] = field(default_factory=dict)


class Plan(Struct, frozen=True):
    """What is compared, and when enough is known."""

    a: Side
    b: Side
    budget_s: float = 300.0
    timeout_s: float = 600.0  # for one answer of a process
    target: float | None = None  # None: until the answer is clear
    limit: float | None = None  # a slowdown of this size is to be found or ruled out
    seed: int = 0
    data: str | None = None  # folder with the real data sets

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.a, self.b


class Study:
    """One live comparison under way. Use it once."""

    def __init__(self, plan: Plan, listen: Listen = lambda *_: None) -> None:
        self._plan, self._listen = plan, listen
        self._random = random.Random(plan.seed)
        self._rounds: list[list[float]] = []  # of each pair: the logarithm of each round's ratio
        self._opened: dict[str, Opened] = {}
        self._failure: ProcessFailed | None = None
        self._stopped: Stopped = "interrupted"
        self._began = time.monotonic()
        self.processes: dict[str, list[Result]] = {side.name: [] for side in plan.sides}  # raw samples included

    @property
    def count(self) -> int:
        """Pairs that are done."""
        return len(self._rounds)

    @property
    def interval(self) -> Interval | None:
        """What is known of the ratio so far."""
        return ratio_interval(self._rounds)

    def pairs(self) -> Iterator[int]:
        """Measure pair after pair until enough is known; gives the count of those that are done."""
        deadline, longest_s = self._began + self._plan.budget_s, 0.0
        stopped: Stopped | None = None
        while stopped is None:
            began = time.monotonic()
            try:
                self._measure_pair()
            except ProcessFailed as failure:
                self._failure, self._stopped = failure, "failed"
                return
            yield self.count
            longest_s = max(longest_s, time.monotonic() - began)
            stopped = why_stop(self._rounds, self._plan.target, self._plan.limit)
            if stopped is None and time.monotonic() + longest_s > deadline:
                stopped = "budget"
        self._stopped = stopped

    def outcome(self) -> LiveComparison:
        """What all pairs so far say."""
        found, ratios = self.interval, tuple(map(pair_ratio, self._rounds))
        a, b = map(self._summed_up, self._plan.sides)
        return LiveComparison(
            a=a,
            b=b,
            verdict=answer_of(found.low, found.high) if found else "unsure",
            stopped=self._stopped,
            ratio=found.center if found else next(iter(ratios), None),
            low=found.low if found else None,
            high=found.high if found else None,
            ratios=ratios,
            duration_s=time.monotonic() - self._began,
        )

    def _measure_pair(self) -> None:
        with ExitStack() as stack:
            pair = [stack.enter_context(self._start(side)) for side in self._plan.sides]
            for process, side in zip(pair, self._plan.sides, strict=True):
                process.tell(self._job(side))  # both import what they need at the same time
            self._opened |= {process.name: process.hear(Opened) for process in pair}
            prepared = {process.name: process.ask(Prepare(), Prepared) for process in self._shuffled(pair)}
            rounds = self._take_turns(pair, list(prepared.values()))
            results = [process.ask(SumUp(), Measured).result for process in pair]
        for process, result in zip(pair, results, strict=True):
            self.processes[process.name].append(result)
        self._rounds.append(rounds)

    def _start(self, side: Side) -> Elsewhere:
        return Elsewhere(side.name, side.python, side.case, side.environment, self._plan.timeout_s, self._listen)

    def _job(self, side: Side) -> MeasureJob:
        """The numbers are checked in the first pair alone: the others compute the very same."""
        return MeasureJob(side.case, DEFAULTS, seed=self._plan.seed, process=self.count, data=self._plan.data)

    def _take_turns(self, pair: Sequence[Elsewhere], prepared: Sequence[Prepared]) -> list[float]:
        """Samples of both sides are of as many steps each: the median of steps and that of blocks are not the same."""
        step_s = max(each.step_s for each in prepared)
        turn = TakeTurn(turn_seconds(step_s), max(each.block_size for each in prepared))
        if step_s < SLOW_STEP_S:
            for process in self._shuffled(pair):
                process.ask(replace(turn, timed=False), Turned)
        orders = [pair, pair[::-1]] * (rounds_for(step_s) // 2)
        self._random.shuffle(orders)
        rounds = []
        for order in orders:
            seconds = {process.name: process.ask(turn, Turned).step_s for process in order}
            rounds.append(math.log(seconds[self._plan.b.name] / seconds[self._plan.a.name]))
        return rounds

    def _shuffled(self, pair: Sequence[Elsewhere]) -> list[Elsewhere]:
        return self._random.sample(list(pair), len(pair))

    def _summed_up(self, side: Side) -> LiveSide:
        results = [*self.processes[side.name]]
        failure = self._failure if self._failure and self._failure.name == side.name else None
        results += [failure.result] if failure else []
        unmeasured = Result(side.case, "interrupted", reason="it was not measured")
        result = combine_results(results, strict=True) if results else unmeasured
        opened = self._opened.get(side.name)
        return LiveSide(
            result=_without_samples(replace(result, cautions=cautions_of(result), rigor=_rigor(len(results)))),
            python=side.python,
            machine=opened.machine if opened else None,
            packages=opened.packages if opened else {},
            environment=side.environment,
            last_words=failure.last_words if failure else (),
        )


def turn_seconds(step_s: float) -> float:
    """How long a turn lasts: a few steps; fewer where steps are slow, and one at least."""
    return max(TURN_S, min(TURN_STEPS * step_s, LONG_TURN_S))


def rounds_for(step_s: float) -> int:
    """How many turns each side of a pair has; a slow step tells more, and fresh processes tell more than more turns."""
    if step_s < SLOW_STEP_S:
        return ROUNDS
    return SLOW_ROUNDS if step_s < VERY_SLOW_STEP_S else VERY_SLOW_ROUNDS


def first_device(side: Side, timeout_s: float) -> str:
    """The device that a person asks about first, as this side's interpreter sees them."""
    with Elsewhere(side.name, side.python, side.case, side.environment, timeout_s) as process:
        try:
            machine = process.ask(SurveyJob(), Surveyed).machine
        except ProcessFailed as failure:
            raise DeviceError(
                f"{side.name}, {side.python}, could not be asked for its devices: {failure.result.reason}",
                "Name one with --device",
            ) from failure
    return machine.devices[0].name


def _rigor(processes: int) -> Rigor:
    """By what `torchmark run` calls so: all of them were newly started."""
    return "rigorous" if processes >= PROCESSES["rigorous"] else "default"


def _without_samples(result: Result) -> Result:
    bare = tuple(replace(process, samples_s=()) for process in result.processes)
    return replace(result, processes=bare, estimate=result.estimate and replace(result.estimate, samples_s=()))
