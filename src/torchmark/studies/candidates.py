"""A pool of candidates: each configuration in a fresh process of its own, which is timed when its turn comes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import is_contended
from torchmark.analyze.search import Round
from torchmark.measure.engine import DEFAULTS, SLOW_STEP_S
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Message,
    Opened,
    Prepare,
    Prepared,
    Stepped,
    SumUp,
    TakeTurn,
    Turned,
)
from torchmark.measure.process import Process, ProcessFailed
from torchmark.records import Case, Result, Value
from torchmark.studies.ab import turn_seconds

TOO_SLOW = 3.0  # times the best: dropped at its first warm step
SURELY_TOO_SLOW = 9.0  # times the best: no disturbance slows a long step down so much
QUICK_STEP_S = 0.2  # a shorter step says little, and its turns cost little
LEAST_PATIENCE_S = 2.0  # for the first two steps, however quick the default is
MOST_TURNS = 60
LEAST_ANSWER_S = 1.0  # to wait for an answer at the end of the budget

Hear = Callable[[str, Message], None]
Opening = Callable[[str, Case, float, Hear], Process]


def open_side(name: str, case: Case, timeout_s: float, hear: Hear) -> Process:
    """A fresh process of this environment."""
    return Process(case, name=name, timeout_s=timeout_s, listen=lambda message: hear(name, message))


class PoolOptions(Struct, frozen=True):
    """What applies to all candidates."""

    timeout_s: float = 600.0
    seed: int = 0
    data: str | None = None
    compile_cache: str | None = None
    deadline: float = math.inf  # of the monotonic clock: no answer is waited for any longer


class Candidate:
    """One configuration in one process, ready for its turns."""

    def __init__(self, case: Case, side: Process, stepped: Stepped, prepared: Prepared) -> None:
        self.case, self.side, self.stepped, self.prepared = case, side, stepped, prepared
        self.has_played = self.is_kept = False

    @property
    def item_s(self) -> float:
        """About how long one item takes."""
        return self.prepared.step_s / (self.prepared.items or 1.0)

    def turn(self, block_size: int, timed: bool = True) -> float:
        """Run one turn; returns the logarithm of the seconds per item, or 0 for an untimed turn."""
        order = TakeTurn(turn_seconds(self.prepared.step_s), block_size, timed)
        taken_s = self.side.ask(order, Turned).step_s
        self.has_played = self.has_played or timed
        return math.log(taken_s / (self.prepared.items or 1.0)) if timed else 0.0


class CandidatePool:
    """The processes that are alive. Whatever happens to one of them becomes a result of its case."""

    def __init__(self, options: PoolOptions, hear: Hear = lambda *_: None, opening: Opening = open_side) -> None:
        self._options, self._hear, self._open = options, hear, opening
        self._random = random.Random(options.seed)
        self._alive: dict[str, Candidate] = {}
        self._patience_s: float | None = None
        self._params: dict[str, Value] | None = None
        self.results: dict[str, list[Result]] = {}  # by case, one for each process
        self.cases: dict[str, Case] = {}
        self.unsaved: list[str] = []  # cases with a result that is not stored yet
        self.entry_s: dict[str, float] = {}  # how long it took to prepare a case, the last time

    def __enter__(self) -> CandidatePool:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes without a result."""
        for candidate in self._alive.values():
            candidate.side.close()
        self._alive.clear()

    def enter(self, case: Case, spared: bool = False, until: float = math.inf) -> bool:
        """Prepare it in a new process; returns whether it takes part. One that is much too slow is dropped at once,
        unless it is `spared`; one that takes too long, when the time is up."""
        self.cases[case.text], began = case, time.monotonic()
        left_s = max(min(self._options.deadline, until) - began, LEAST_ANSWER_S)
        side = self._open(case.text, case, min(self._options.timeout_s, left_s), self._hear)
        candidate = None
        try:
            candidate = self._prepare(case, side, spared)
        except ProcessFailed as failure:
            result, is_late = failure.result, left_s < self._options.timeout_s and failure.result.status == "timeout"
            late = "the budget was spent. Give it more time with --budget"
            self._keep(case, replace(result, status="skipped", reason=late) if is_late else result)
        finally:
            self.entry_s[case.text] = time.monotonic() - began
            if candidate is None:
                side.close()
        if candidate:
            self._alive[case.text] = candidate
        return candidate is not None

    def _prepare(self, case: Case, side: Process, spared: bool) -> Candidate | None:
        job = MeasureJob(
            case,
            DEFAULTS,
            seed=self._options.seed,
            process=len(self.results.get(case.text, [])),
            data=self._options.data,
            turns=MOST_TURNS,
            compile_cache=self._options.compile_cache,
        )
        side.send(job)
        side.receive(Opened)
        side.send(Prepare())
        patience_s = self._patience_s if self._params == case.params and not spared else None  # for work of one size
        try:
            stepped = side.receive(Stepped, patience_s)
        except ProcessFailed as failure:
            if failure.result.status != "timeout" or patience_s is None:
                raise
            reason = f"its first two steps took more than {patience_s:.3g} s, {TOO_SLOW:g} times those of the default"
            self._keep(case, replace(failure.result, status="skipped", reason=f"dropped: {reason}"))
            return None
        if self._patience_s is None:  # the default itself sets the measure for all that follow
            self._patience_s = max(LEAST_PATIENCE_S, TOO_SLOW * (stepped.first_s + stepped.step_s))
            self._params = case.params
        times = self._times_the_best(stepped) if stepped.step_s > QUICK_STEP_S and not spared else 0.0
        if times <= SURELY_TOO_SLOW:
            prepared = side.receive(Prepared)  # from now on it rests
            times = self._times_the_best(stepped, again=True) if times > TOO_SLOW else times
        if times > TOO_SLOW:
            reason = f"dropped: in its first warm step, of {stepped.step_s:.3g} s, "
            reason += f"it was {1 / times:.2g}× as fast as the best"
            self._keep(case, Result(case, "skipped", reason=reason, phases_s={"first step": stepped.first_s}))
            return None
        candidate = Candidate(case, side, stepped, prepared)
        if prepared.step_s < SLOW_STEP_S:
            candidate.turn(prepared.block_size, timed=False)
        return candidate

    def _times_the_best(self, stepped: Stepped, again: bool = False) -> float:
        """How many times as long an item took as with the best that is alive. With `again`, the best has another turn
        first: what disturbs the machine now did not disturb it then."""
        best = min(self._alive.values(), key=lambda each: each.item_s, default=None)
        if best is None:
            return 0.0
        turns = self.play([best.case.text]).values() if again else ()
        return stepped.step_s / (stepped.items or 1.0) / max(best.item_s, *map(math.exp, turns), 0.0)

    def play(self, names: Sequence[str]) -> Round:
        """One round: a turn for each of them, in random order, as long as there is time. One that fails is ended."""
        field = [self._alive[name] for name in self.alive(names)]
        block_size = max((each.prepared.block_size for each in field), default=1)
        taken = {}
        for each in self._random.sample(field, len(field)):
            if time.monotonic() > self._options.deadline:
                break
            try:
                taken[each.case.text] = each.turn(block_size)
            except ProcessFailed as failure:
                self._keep(each.case, failure.result)
                self._end(each.case.text)
        return taken

    def alive(self, names: Sequence[str] | None = None) -> list[str]:
        """Those of them that are still alive; all that are, if none are named."""
        return [name for name in (self.cases if names is None else names) if name in self._alive]

    def step_s(self, name: str) -> float:
        """About how long a step of a live candidate takes."""
        return self._alive[name].prepared.step_s

    def was_contended(self, name: str) -> bool:
        """Whether other programs were busy while its last process had its turns."""
        last = self.results[name][-1]
        return last.estimate is not None and is_contended(last.estimate)

    def leave(self, name: str) -> None:
        """Keep what its turns have shown, and end it."""
        self.sum_up(name)
        self._end(name)

    def sum_up(self, name: str) -> None:
        """Keep what the turns of a live candidate have shown so far. One that fails is ended."""
        candidate = self._alive.get(name)
        if candidate is None:
            return
        try:
            if not candidate.has_played:  # it had no opponent
                candidate.turn(candidate.prepared.block_size)
            result = candidate.side.ask(SumUp(), Measured).result
        except ProcessFailed as failure:
            result = failure.result
        self._keep(candidate.case, result)
        if result.status != "ok":
            self._end(name)

    def _end(self, name: str) -> None:
        if candidate := self._alive.pop(name, None):
            candidate.side.close()

    def _keep(self, case: Case, result: Result) -> None:
        """Add the result of a process, or replace what the same process had shown earlier."""
        several, candidate = self.results.setdefault(case.text, []), self._alive.get(case.text)
        if candidate and candidate.is_kept:
            several.pop()
        several.append(result)
        if candidate:
            candidate.is_kept = True
        self.unsaved.append(case.text)
