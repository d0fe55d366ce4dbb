"""Configurations as contestants: each a fresh process of its own, alive beside the others, that works in its turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import is_contended
from torchmark.analyze.tuning import Round
from torchmark.measure.elsewhere import Elsewhere, ProcessFailed
from torchmark.measure.forked import open_side
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Opened,
    Phase,
    Prepare,
    Prepared,
    Stepped,
    SumUp,
    TakeTurn,
    Turned,
)
from torchmark.measure.sampling import DEFAULTS
from torchmark.records import Case, Result, Value
from torchmark.studies.ab import SLOW_STEP_S, turn_seconds

TOO_SLOW = 3.0  # times the best: dropped at its first warm step
SURELY_TOO_SLOW = 9.0  # times the best: no disturbance makes so much of a long step
QUICK_STEP_S = 0.2  # one step that is shorter says little, and to let it play costs little
LEAST_PATIENCE_S = 2.0  # for the first two steps, however quick the default is
MOST_TURNS = 60
LEAST_ANSWER_S = 1.0  # that is waited for an answer at the end of the budget

Listen = Callable[[str, Phase], None]
Opening = Callable[[str, Case, float, Listen], Elsewhere]
Kept = Callable[[str], None]


class Terms(Struct, frozen=True):
    """What holds for all contestants."""

    timeout_s: float = 600.0
    seed: int = 0
    data: str | None = None
    compile_cache: str | None = None
    deadline: float = math.inf  # of the monotonic clock: no answer is waited for any longer


class Contestant:
    """One configuration in one process, ready for its turns."""

    def __init__(self, case: Case, side: Elsewhere, stepped: Stepped, prepared: Prepared) -> None:
        self.case, self.side, self.stepped, self.prepared = case, side, stepped, prepared
        self.has_played = self.is_kept = False

    @property
    def item_s(self) -> float:
        """About how long one item takes."""
        return self.prepared.step_s / (self.prepared.items or 1.0)

    def turn(self, block_size: int, timed: bool = True) -> float:
        """The logarithm of the seconds that an item took in one turn."""
        order = TakeTurn(turn_seconds(self.prepared.step_s), block_size, timed)
        taken_s = self.side.ask(order, Turned).step_s
        self.has_played = self.has_played or timed
        return math.log(taken_s / (self.prepared.items or 1.0)) if timed else 0.0


class Arena:
    """Where contestants enter, play and leave. Whatever becomes of one of them is kept as its result."""

    def __init__(
        self,
        terms: Terms,
        listen: Listen = lambda *_: None,
        opening: Opening = open_side,
        kept: Kept = lambda _: None,
    ) -> None:
        self._terms, self._listen, self._open, self._kept = terms, listen, opening, kept
        self._random = random.Random(terms.seed)
        self._inside: dict[str, Contestant] = {}
        self._patience_s: float | None = None
        self._params: dict[str, Value] | None = None
        self.results: dict[str, list[Result]] = {}  # by case, one for each process
        self.cases: dict[str, Case] = {}
        self.entry_s: dict[str, float] = {}  # how long it took to prepare a case, the last time

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever is still inside is ended without a result."""
        for contestant in self._inside.values():
            contestant.side.close()
        self._inside.clear()

    def enter(self, case: Case, spared: bool = False, until: float = math.inf) -> bool:
        """Prepare it in a new process; says whether it may play. One that is much too slow is dropped at once, unless
        it is known to be slow and wanted all the same; one that takes too long, when the time is up."""
        self.cases[case.text], began = case, time.monotonic()
        left_s = max(min(self._terms.deadline, until) - began, LEAST_ANSWER_S)
        side = self._open(case.text, case, min(self._terms.timeout_s, left_s), self._listen)
        try:
            contestant = self._prepare(case, side, spared)
        except ProcessFailed as failure:
            side.close()
            self._keep(case, _late(failure.result) if left_s < self._terms.timeout_s else failure.result)
            return False
        except BaseException:
            side.close()
            raise
        finally:
            self.entry_s[case.text] = time.monotonic() - began
        if contestant is None:
            return False
        self._inside[case.text] = contestant
        return True

    def _prepare(self, case: Case, side: Elsewhere, spared: bool) -> Contestant | None:
        job = MeasureJob(
            case,
            DEFAULTS,
            seed=self._terms.seed,
            process=len(self.results.get(case.text, [])),
            data=self._terms.data,
            turns=MOST_TURNS,
            compile_cache=self._terms.compile_cache,
        )
        side.tell(job)
        side.hear(Opened)
        side.tell(Prepare())
        patience_s = self._patience_s if self._params == case.params and not spared else None  # of work of one size
        try:
            stepped = side.hear(Stepped, patience_s)
        except ProcessFailed as failure:
            self._keep(case, _dropped(failure.result, patience_s))
            side.close()
            return None
        if self._patience_s is None:  # the default itself sets the measure for all that follow
            self._patience_s = max(LEAST_PATIENCE_S, TOO_SLOW * (stepped.first_s + stepped.step_s))
            self._params = case.params
        times = self._times_the_best(stepped) if stepped.step_s > QUICK_STEP_S and not spared else 0.0
        if times > SURELY_TOO_SLOW:
            self._drop(case, side, stepped, times)
            return None
        prepared = side.hear(Prepared)  # from now on it rests
        if times > TOO_SLOW:
            times = self._times_the_best(stepped, anew=True)
        if times > TOO_SLOW:
            self._drop(case, side, stepped, times)
            return None
        contestant = Contestant(case, side, stepped, prepared)
        if contestant.prepared.step_s < SLOW_STEP_S:
            contestant.turn(contestant.prepared.block_size, timed=False)
        return contestant

    def _times_the_best(self, stepped: Stepped, anew: bool = False) -> float:
        """How many times as long an item took as with the best that is inside; if need be after another turn of the
        best: what disturbs the machine now did not disturb it then."""
        best = min(self._inside.values(), key=lambda each: each.item_s, default=None)
        if best is None:
            return 0.0
        turns = self.play([best.case.text]).values() if anew else ()
        return stepped.step_s / (stepped.items or 1.0) / max(best.item_s, *map(math.exp, turns), 0.0)

    def _drop(self, case: Case, side: Elsewhere, stepped: Stepped, times: float) -> None:
        reason = f"dropped: in its first warm step, of {stepped.step_s:.3g} s, "
        reason += f"it was {1 / times:.2g}× as fast as the best"
        self._keep(case, Result(case, "skipped", reason=reason, phases_s={"first step": stepped.first_s}))
        side.close()

    def play(self, names: Sequence[str]) -> Round:
        """One round: a turn for each of them, in random order, as long as there is time. One that fails is out of it,
        and out of the arena."""
        field = [self._inside[name] for name in names if name in self._inside]
        block_size = max((each.prepared.block_size for each in field), default=1)
        taken = {}
        for each in self._random.sample(field, len(field)):
            if time.monotonic() > self._terms.deadline:
                break
            try:
                taken[each.case.text] = each.turn(block_size)
            except ProcessFailed as failure:
                self._keep(each.case, failure.result)
                self._end(each.case.text)
        return taken

    def inside(self, names: Sequence[str]) -> list[str]:
        """Those of them that are still there."""
        return [name for name in names if name in self._inside]

    def step_s(self, name: str) -> float:
        """About how long a step of one that is inside takes."""
        return self._inside[name].prepared.step_s

    def was_contended(self, name: str) -> bool:
        """Whether other programs were busy while its last process had its turns."""
        last = self.results[name][-1]
        return last.estimate is not None and is_contended(last.estimate)

    def leave(self, name: str) -> None:
        """Keep what its turns have shown, and end it."""
        self.sum_up(name)
        self._end(name)

    def sum_up(self, name: str) -> None:
        """Keep what the turns of one that is inside have shown so far. One that fails is out of the arena."""
        contestant = self._inside.get(name)
        if contestant is None:
            return
        try:
            if not contestant.has_played:  # nobody was there to play against
                contestant.turn(contestant.prepared.block_size)
            result = contestant.side.ask(SumUp(), Measured).result
        except ProcessFailed as failure:
            result = failure.result
        self._keep(contestant.case, result)
        if result.status != "ok":
            self._end(name)

    def _end(self, name: str) -> None:
        if contestant := self._inside.pop(name, None):
            contestant.side.close()

    def _keep(self, case: Case, result: Result) -> None:
        """Add the result of a process, or replace what the same process had shown earlier."""
        several, contestant = self.results.setdefault(case.text, []), self._inside.get(case.text)
        if contestant and contestant.is_kept:
            several.pop()
        several.append(result)
        if contestant:
            contestant.is_kept = True
        self._kept(case.text)


def _late(result: Result) -> Result:
    """One whose answer the budget did not allow to wait for is no failure."""
    if result.status != "timeout":
        return result
    return replace(result, status="skipped", reason="the budget was spent. Give it more time with --budget")


def _dropped(result: Result, patience_s: float | None) -> Result:
    """One that was not waited for any longer is no failure."""
    if result.status != "timeout" or patience_s is None:
        return result
    reason = (
        f"dropped: its first two steps took more than {patience_s:.3g} s, "
        f"{TOO_SLOW:g} times what those of the default did"
    )
    return replace(result, status="skipped", reason=reason)
