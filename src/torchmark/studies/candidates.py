"""A pool of candidates: each configuration in a fresh process of its own, which is timed when its turn comes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from torchmark.analyze.search import Round
from torchmark.measure import messages
from torchmark.measure.engine import DEFAULTS, SLOW_STEP_S
from torchmark.measure.process import Process, ProcessFailed
from torchmark.records import Case, Result, Value
from torchmark.studies.ab import turn_seconds
from torchmark.studies.study import Options

TOO_SLOW = 3.0  # times the best: dropped at its first warm step
SURELY_TOO_SLOW = 9.0  # times the best: no disturbance slows a long step down so much
QUICK_STEP_S = 0.2  # a shorter step says little, and its turns cost little
LEAST_PATIENCE_S = 2.0  # for the first two steps, however quick the default is
MOST_TURNS = 60
LEAST_ANSWER_S = 1.0  # to wait for an answer at the end of the budget


class Candidate:
    def __init__(self, case: Case, process: Process, prepared: messages.Prepared) -> None:
        self.case, self.process, self.prepared, self.items = case, process, prepared, prepared.items or 1.0
        self.has_played = self.is_kept = False

    def turn(self, block_size: int, timed: bool = True) -> float:
        """Run one turn; returns the logarithm of the seconds per item, or 0 for an untimed turn."""
        order = messages.TakeTurn(turn_seconds(self.prepared.step_s), block_size, timed)
        taken_s = self.process.ask(order, messages.Turned).step_s
        self.has_played = self.has_played or timed
        return math.log(taken_s / self.items) if timed else 0.0


class CandidatePool:
    """The processes that are alive. Any end of one of them becomes a result of its case."""

    def __init__(self, options: Options, hear: Callable[[Case, messages.Message], None]) -> None:
        self._options, self._hear, self._random = options, hear, random.Random(options.seed)
        self.compile_cache: str | None = None
        self.deadline = math.inf  # of the monotonic clock: no answer is waited for any longer
        self.alive: dict[str, Candidate] = {}
        self._patience_s: float | None = None
        self._params: dict[str, Value] | None = None
        self.results: dict[str, list[Result]] = {}  # by case, one for each process
        self.cases: dict[str, Case] = {}
        self.unsaved: list[str] = []  # cases with a result that is not stored yet
        self.entry_s: dict[str, float] = {}  # how long it took to prepare a case, the last time

    def close(self) -> None:
        for name in [*self.alive]:
            self._end(name)

    def enter(self, case: Case, spared: bool = False, until: float = math.inf) -> bool:
        """Prepare it in a new process; returns whether it takes part. One that is much too slow is dropped at once,
        unless it is `spared`; one that takes too long, when the time is up."""
        self.cases[case.text], began, name = case, time.monotonic(), case.text
        left_s, timeout_s = max(min(self.deadline, until) - began, LEAST_ANSWER_S), self._options.timeout_s
        process = Process(case, name=name, timeout_s=min(timeout_s, left_s), listen=partial(self._hear, case))
        try:
            if candidate := self._prepare(case, process, spared):
                self.alive[name] = candidate
        except ProcessFailed as failure:
            result, late = failure.result, "the budget was spent. Give it more time with --budget"
            is_late = left_s < timeout_s and result.status == "timeout"
            self._keep(case, replace(result, status="skipped", reason=late) if is_late else result)
        finally:
            self.entry_s[name] = time.monotonic() - began
            if name not in self.alive:
                process.close()
        return name in self.alive

    def _prepare(self, case: Case, process: Process, spared: bool) -> Candidate | None:
        number, options = len(self.results.get(case.text, [])), self._options
        job = messages.MeasureJob(case, DEFAULTS, options.seed, number, data=options.data, turns=MOST_TURNS)
        process.send(replace(job, compile_cache=self.compile_cache))
        process.receive(messages.Opened)
        process.send(messages.Prepare())
        patience_s = self._patience_s if self._params == case.params and not spared else None  # for work of one size
        try:
            stepped = process.receive(messages.Stepped, patience_s)
        except ProcessFailed as failure:
            if failure.result.status != "timeout" or patience_s is None:
                raise
            reason = f"dropped: its first two steps took more than {patience_s:.3g} s"
            reason += f", {TOO_SLOW:g} times those of the default"
            self._keep(case, replace(failure.result, status="skipped", reason=reason))
            return None
        if self._patience_s is None:  # the default itself sets the measure for all that follow
            self._patience_s = max(LEAST_PATIENCE_S, TOO_SLOW * (stepped.first_s + stepped.step_s))
            self._params = case.params
        times = self._times_the_best(stepped) if stepped.step_s > QUICK_STEP_S and not spared else 0.0
        if times <= SURELY_TOO_SLOW:
            prepared = process.receive(messages.Prepared)  # from now on it rests
            times = self._times_the_best(stepped, again=True) if times > TOO_SLOW else times
        if times > TOO_SLOW:
            reason = f"dropped: in its first warm step, of {stepped.step_s:.3g} s, "
            reason += f"it was {1 / times:.2g}× as fast as the best"
            self._keep(case, Result(case, "skipped", reason=reason, phases_s={"first step": stepped.first_s}))
            return None
        candidate = Candidate(case, process, prepared)
        if prepared.step_s < SLOW_STEP_S:
            candidate.turn(prepared.block_size, timed=False)
        return candidate

    def _times_the_best(self, stepped: messages.Stepped, again: bool = False) -> float:
        """How many times as long an item took as with the best, which with `again` has another turn now."""
        items_s = {name: each.prepared.step_s / each.items for name, each in self.alive.items()}
        if not items_s:
            return 0.0
        best = min(items_s, key=lambda name: items_s[name])
        turns = self.play([best]).values() if again else ()
        return stepped.step_s / (stepped.items or 1.0) / max(items_s[best], *map(math.exp, turns), 0.0)

    def play(self, names: Sequence[str]) -> Round:
        """One round: a turn for each of them, in random order, as long as there is time. One that fails is ended."""
        field = [self.alive[name] for name in names if name in self.alive]
        block_size = max((each.prepared.block_size for each in field), default=1)
        taken = {}
        for each in self._random.sample(field, len(field)):
            if time.monotonic() > self.deadline:
                break
            try:
                taken[each.case.text] = each.turn(block_size)
            except ProcessFailed as failure:
                self._keep(each.case, failure.result)
                self._end(each.case.text)
        return taken

    def sum_up(self, name: str, end: bool = False) -> None:
        """Keep what the turns of a live candidate have shown so far. One that fails is ended."""
        if (candidate := self.alive.get(name)) is None:
            return
        try:
            if not candidate.has_played:  # it had no opponent
                candidate.turn(candidate.prepared.block_size)
            result = candidate.process.ask(messages.SumUp(), messages.Measured).result
        except ProcessFailed as failure:
            result = failure.result
        self._keep(candidate.case, result)
        if end or result.status != "ok":
            self._end(name)

    def _end(self, name: str) -> None:
        if candidate := self.alive.pop(name, None):
            candidate.process.close()

    def _keep(self, case: Case, result: Result) -> None:
        """Add the result of a process, or replace what the same process had shown earlier."""
        several = self.results.setdefault(case.text, [])
        if candidate := self.alive.get(case.text):
            several[:] = several[:-1] if candidate.is_kept else several
            candidate.is_kept = True
        several.append(result)
        self.unsaved.append(case.text)
