"""Compares one case live in two environments, in pairs of fresh processes that take turns.

Both processes of a pair are alive at the same time, but only one of them works: in short rounds, in random order, so
that a disturbance of the machine affects both. Every pair is new, because processes of the same case differ. It stops
as soon as the answer is clear, at looks that were fixed beforehand.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.analyze.comparison import LiveComparison, LiveSide, Stopped, answer_of, ratio_interval, why_stop
from torchmark.analyze.spread import Interval
from torchmark.analyze.summary import combine_results
from torchmark.analyze.verdict import cautions_of
from torchmark.errors import DeviceError
from torchmark.measure.engine import DEFAULTS, SLOW_STEP_S
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Opened,
    Prepare,
    Prepared,
    SumUp,
    Surveyed,
    SurveyJob,
    TakeTurn,
    Turned,
)
from torchmark.measure.process import Process, ProcessFailed
from torchmark.measure.session import PROCESSES, Revised
from torchmark.records import Case, Live, Machine, Result, Rigor
from torchmark.studies.study import Activity, Announcement, Completed, Event, Listen, Study

TURN_S = 0.3
TURN_STEPS, LONG_TURN_S = 3, 0.9  # so many in a turn, as far as they fit
VERY_SLOW_STEP_S = 5.0
MOST_TURNS = 8  # of each process
ROUNDS, SLOW_ROUNDS, VERY_SLOW_ROUNDS = 6, 4, 2  # even, so that each side begins in half of them


class Side(Struct, frozen=True):
    """What is measured on one side, by which interpreter, and what is set for it."""

    name: str
    case: Case
    python: str
    environment: dict[str, str] = field(default_factory=dict)


class ComparisonOptions(Struct, frozen=True):
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

    @property
    def command(self) -> str:
        cases = " ".join(dict.fromkeys(side.case.text for side in self.sides))
        return f"torchmark ab {cases} --seed {self.seed}"


class PairMeasured(Announcement, frozen=True):
    """A pair is done: how many that makes, and what is known of the ratio."""

    count: int
    interval: Interval | None


class Comparison(Study):
    """A live comparison. Each side is a run of its own; A's comes first, so that B's is the last."""

    options: ComparisonOptions
    sides = ("A", "B")
    rigor = "default"

    def __init__(self, options: ComparisonOptions) -> None:
        super().__init__(options)
        self._random = random.Random(options.seed)
        self._rounds: list[list[float]] = []  # of each pair: the logarithm of each round's ratio
        self._opened: dict[str, Opened] = {}
        self._failure: ProcessFailed | None = None
        self._stopped: Stopped = "interrupted"
        self._began = time.monotonic()
        self._processes: dict[str, list[Result]] = {side.name: [] for side in options.sides}

    def place(self, side: str) -> tuple[Machine, tuple[str, ...]]:
        found = self._summed_up(side)
        assert found.machine is not None
        return found.machine, (found.result.case.text,)

    def events(self) -> Iterator[Event]:
        """Measure pair after pair until enough is known."""
        deadline, longest_s = self._began + self.options.budget_s, 0.0
        stopped: Stopped | None = None
        while stopped is None:
            began = time.monotonic()
            yield Activity(f"pair {len(self._rounds) + 1}")
            try:
                self._measure_pair()
            except ProcessFailed as failure:
                self._failure, stopped = failure, "failed"
                break
            yield from self._pair()
            longest_s = max(longest_s, time.monotonic() - began)
            stopped = why_stop(self._rounds, self.options.target, self.options.limit)
            if stopped is None and time.monotonic() + longest_s > deadline:
                stopped = "budget"
        self._stopped = stopped
        yield from self.unfinished()  # a later process may have failed

    def _pair(self) -> Iterator[Event]:
        """The pair that has just ended."""
        for side in self.sides:
            several = self._processes[side]
            yield Completed(len(several) - 1, several[-1], self._summed_up(side).result, side)
        yield PairMeasured(len(self._rounds), ratio_interval(self._rounds))

    def unfinished(self) -> Iterator[Event]:
        for side in self.sides if self._rounds else ():
            yield Revised(self._summed_up(side).result, side)

    def conclusion(self, side: str = "") -> Live:
        return self.outcome().conclusion(side)

    def outcome(self) -> LiveComparison:
        """What all pairs so far say."""
        found = ratio_interval(self._rounds)
        ratios = tuple(math.exp(median(rounds)) for rounds in self._rounds)
        a, b = map(self._summed_up, self.sides)
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
            pair = [
                stack.enter_context(_open(side, self.options.timeout_s, self.listen)) for side in self.options.sides
            ]
            for process, side in zip(pair, self.options.sides, strict=True):
                process.send(self._job(side))  # both import what they need at the same time
            self._opened |= {process.name: process.receive(Opened) for process in pair}
            prepared = {process.name: process.ask(Prepare(), Prepared) for process in self._shuffled(pair)}
            rounds = self._take_turns(pair, list(prepared.values()))
            results = [process.ask(SumUp(), Measured).result for process in pair]
        for process, result in zip(pair, results, strict=True):
            self._processes[process.name].append(result)
        self._rounds.append(rounds)

    def _job(self, side: Side) -> MeasureJob:
        """The job of a side in the next pair. Only the first pair checks the numbers: the others compute the same."""
        return MeasureJob(
            side.case,
            DEFAULTS,
            seed=self.options.seed,
            process=len(self._rounds),
            data=self.options.data,
            turns=MOST_TURNS,
        )

    def _take_turns(self, pair: Sequence[Process], prepared: Sequence[Prepared]) -> list[float]:
        """The logarithm of each round's ratio. Samples of both sides have equally many steps: medians depend on it."""
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
            rounds.append(math.log(seconds[self.options.b.name] / seconds[self.options.a.name]))
        return rounds

    def _shuffled(self, pair: Sequence[Process]) -> list[Process]:
        return self._random.sample(list(pair), len(pair))

    def _summed_up(self, name: str) -> LiveSide:
        side = next(side for side in self.options.sides if side.name == name)
        results = [*self._processes[side.name]]
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
    """How many turns each side of a pair has: fewer for slow steps, as fresh processes help more than more turns."""
    if step_s < SLOW_STEP_S:
        return ROUNDS
    return SLOW_ROUNDS if step_s < VERY_SLOW_STEP_S else VERY_SLOW_ROUNDS


def _open(side: Side, timeout_s: float, listen: Listen = lambda *_: None) -> Process:
    return Process(
        side.case,
        name=side.name,
        python=side.python,
        environment=side.environment,
        timeout_s=timeout_s,
        listen=lambda message: listen(message, side.name),
    )


def first_device(side: Side, timeout_s: float) -> str:
    """The first device that this side's interpreter sees."""
    with _open(side, timeout_s) as process:
        try:
            machine = process.ask(SurveyJob(), Surveyed).machine
        except ProcessFailed as failure:
            raise DeviceError(
                f"{side.name}, {side.python}, could not be asked for its devices: {failure.result.reason}",
                "Name one with --device",
            ) from failure
    return machine.devices[0].name


def _rigor(processes: int) -> Rigor:
    """What `torchmark run` would call so many fresh processes."""
    return "rigorous" if processes >= PROCESSES["rigorous"] else "default"


def _without_samples(result: Result) -> Result:
    bare = tuple(replace(process, samples_s=()) for process in result.processes)
    return replace(result, processes=bare, estimate=result.estimate and replace(result.estimate, samples_s=()))
