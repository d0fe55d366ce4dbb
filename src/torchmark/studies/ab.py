"""Compares one case live in two environments, in pairs of fresh processes that take turns in random order, so that a
disturbance affects both. It stops as soon as the answer is clear, at looks that were fixed beforehand."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from torchmark.analyze import comparison
from torchmark.analyze.spread import Interval
from torchmark.errors import DeviceError
from torchmark.measure import messages
from torchmark.measure.engine import DEFAULTS, SLOW_STEP_S
from torchmark.measure.machine import survey_in
from torchmark.measure.process import Process, ProcessFailed
from torchmark.measure.session import PROCESSES, Options, Revised
from torchmark.records import Case, Live, Machine, Result
from torchmark.studies.study import Activity, Announcement, Completed, Event, Listen, Study, summed_up

TURN_S, TURN_STEPS, LONG_TURN_S = 0.3, 3, 0.9  # so many steps in a turn, as far as they fit
VERY_SLOW_STEP_S = 5.0
MOST_TURNS = 8  # of each process
ROUNDS, SLOW_ROUNDS, VERY_SLOW_ROUNDS = 6, 4, 2  # even, so that each side begins in half of them


class Side(Struct, frozen=True):
    name: str
    case: Case
    python: str
    environment: dict[str, str] = {}

    def open(self, timeout_s: float, listen: Listen = lambda *_: None) -> Process:
        about: dict[str, Any] = asdict(self)
        return Process(**about, timeout_s=timeout_s, listen=lambda message: listen(message, self.name))


class ComparisonOptions(Options, frozen=True):
    a: Side
    b: Side
    target: float | None = None  # None: until the answer is clear
    limit: float | None = None  # a slowdown of this size is to be found or ruled out

    @property
    def command(self) -> str:
        return f"torchmark ab {' '.join(dict.fromkeys((self.a.case.text, self.b.case.text)))} --seed {self.seed}"


class PairMeasured(Announcement, frozen=True):
    count: int
    interval: Interval | None


class Comparison(Study):
    """Each side is a run of its own; A's comes first, so that B's is the last."""

    options: ComparisonOptions
    sides = ("A", "B")
    rigor = "default"

    def __init__(self, options: ComparisonOptions) -> None:
        super().__init__(options)
        self._both, self._random = {side.name: side for side in (options.a, options.b)}, random.Random(options.seed)
        self._rounds: list[list[float]] = []  # of each pair: the logarithm of each round's ratio
        self._opened: dict[str, messages.Opened] = {}
        self._failure: ProcessFailed | None = None
        self._stopped: comparison.Stopped = "interrupted"
        self._results: dict[str, list[Result]] = {name: [] for name in self._both}

    def place(self, side: str) -> tuple[Machine, tuple[str, ...]]:
        return self._opened[side].machine, (self._both[side].case.text,)

    def events(self) -> Iterator[Event]:
        longest_s, stopped = 0.0, None
        while not stopped:
            began = time.monotonic()
            yield Activity(f"pair {len(self._rounds) + 1}")
            try:
                self._measure_pair()
            except ProcessFailed as failure:
                self._failure, self._stopped = failure, "failed"
                break
            for side, several in self._results.items():
                yield Completed(len(several) - 1, several[-1], self._summed_up(side).result, side)
            yield PairMeasured(len(self._rounds), comparison.ratio_interval(self._rounds))
            longest_s = max(longest_s, time.monotonic() - began)
            stopped = comparison.why_stop(self._rounds, self.options.target, self.options.limit)
            stopped = stopped or ("budget" if self.left_s < longest_s else None)
            self._stopped = stopped or self._stopped
        yield from self.unfinished()  # a later process may have failed

    def unfinished(self) -> tuple[Event, ...]:
        return tuple(Revised(self._summed_up(side).result, side) for side in self._both if self._rounds)

    def conclusion(self, side: str = "") -> Live:
        return self.outcome().conclusion(side)

    def outcome(self) -> comparison.LiveComparison:
        ratios = tuple(math.exp(median(rounds)) for rounds in self._rounds)
        a, b = map(self._summed_up, self._both)
        duration_s = time.monotonic() - self.began
        ratio = next(iter(ratios), None)
        outcome = comparison.LiveComparison(a, b, "unsure", self._stopped, ratio, ratios=ratios, duration_s=duration_s)
        if found := comparison.ratio_interval(self._rounds):
            verdict = comparison.answer_of(found.low, found.high)
            return replace(outcome, verdict=verdict, ratio=found.center, low=found.low, high=found.high)
        return outcome

    def _measure_pair(self) -> None:
        """Only the first pair checks the numbers: the others compute the same."""
        options, number = self.options, len(self._rounds)
        with ExitStack() as stack:
            pair = [stack.enter_context(side.open(options.timeout_s, self.listen)) for side in self._both.values()]
            for process in pair:  # both import what they need at the same time
                case = self._both[process.name].case
                job = messages.MeasureJob(case, DEFAULTS, options.seed, number, data=options.data, turns=MOST_TURNS)
                process.send(job)
            self._opened |= {process.name: process.receive(messages.Opened) for process in pair}
            prepared = [process.ask(messages.Prepare(), messages.Prepared) for process in self._random.sample(pair, 2)]
            rounds = self._take_turns(pair, prepared)
            results = {process.name: process.ask(messages.SumUp(), messages.Measured).result for process in pair}
        for name, result in results.items():
            self._results[name].append(result)
        self._rounds.append(rounds)

    def _take_turns(self, pair: Sequence[Process], prepared: Sequence[messages.Prepared]) -> list[float]:
        """The logarithm of each round's ratio. Medians depend on the steps of a sample, so both sides have as many."""
        step_s = max(each.step_s for each in prepared)
        turn = messages.TakeTurn(turn_seconds(step_s), max(each.block_size for each in prepared))
        if step_s < SLOW_STEP_S:
            for process in self._random.sample(pair, 2):
                process.ask(replace(turn, timed=False), messages.Turned)
        orders, rounds = [pair, pair[::-1]] * (rounds_for(step_s) // 2), list[float]()
        self._random.shuffle(orders)
        for order in orders:
            if len(rounds) >= VERY_SLOW_ROUNDS and self.left_s <= 0:  # turns can take longer than planned
                break
            seconds = {process.name: process.ask(turn, messages.Turned).step_s for process in order}
            rounds.append(math.log(seconds[self.options.b.name] / seconds[self.options.a.name]))
        return rounds

    def _summed_up(self, name: str) -> comparison.LiveSide:
        side, opened, results = self._both[name], self._opened.get(name), [*self._results[name]]
        failure = self._failure if self._failure and self._failure.name == name else None
        results += [failure.result] if failure else []
        result = summed_up(results or [Result(side.case, "interrupted", reason="it was not measured")], strict=True)
        bare = [replace(each, samples_s=()) if each else None for each in (result.estimate, *result.processes)]
        # The rigor is what `torchmark run` would call so many fresh processes.
        rigor = "rigorous" if len(results) >= PROCESSES["rigorous"] else "default"
        result = replace(result, estimate=bare[0], processes=tuple(bare[1:]), rigor=rigor)
        machine, packages = (opened.machine, opened.packages) if opened else (None, {})
        last_words = failure.last_words if failure else ()
        return comparison.LiveSide(result, side.python, machine, packages, side.environment, last_words)


def turn_seconds(step_s: float) -> float:
    """A few steps; fewer where steps are slow, and one at least."""
    return max(TURN_S, min(TURN_STEPS * step_s, LONG_TURN_S))


def rounds_for(step_s: float) -> int:
    """Turns of each side of a pair: fewer for slow steps, where fresh processes help more."""
    if step_s < SLOW_STEP_S:
        return ROUNDS
    return SLOW_ROUNDS if step_s < VERY_SLOW_STEP_S else VERY_SLOW_ROUNDS


def first_device(side: Side, timeout_s: float) -> str:
    with side.open(timeout_s) as process:
        try:
            return survey_in(process).machine.devices[0].name
        except ProcessFailed as failure:
            cause = f"{side.name}, {side.python}, could not be asked for its devices: {failure.result.reason}"
            raise DeviceError(cause, "Name one with --device") from failure
