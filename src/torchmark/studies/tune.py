"""Which settings are fastest for this work here? A search by halving, in rounds that all contestants share.

First come the number formats with the layouts, then compiling the best of them, then everything else by itself, each
time against who leads. In a heat the slower half goes after every other round; who leads is replaced only by one that
is faster beyond chance. What has won is measured against the default once more, in pairs of fresh processes that took
no part in the search: the best of many looks better than it is. Beside it goes the winner without those settings that
brought little: what one lucky process seemed to gain is dropped there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.analyze.cautions import cautions_of
from torchmark.analyze.configurations import changed, differing, same_precision, setting
from torchmark.analyze.confirmation import Settled, leads, settle
from torchmark.analyze.roofline import NONE, Ceilings, with_peak
from torchmark.analyze.summary import combine_results
from torchmark.analyze.tuning import (
    Round,
    Tuned,
    best_at_precision,
    best_of_each_precision,
    contributions,
    core_of,
    find_break_even,
    noise_of,
    scores,
    seen_gain,
    simplest,
    survivors,
    verdict,
)
from torchmark.errors import NothingMeasuredError
from torchmark.measure.forked import open_side
from torchmark.measure.temporary import temporary_folder
from torchmark.measure.ways import chosen_instructions
from torchmark.records import Case, Result
from torchmark.studies.ab import rounds_for
from torchmark.studies.axes import NUMBERS, Axes, combinations, variations
from torchmark.studies.contest import Arena, Kept, Listen, Opening, Terms

ROUNDS = 2  # between two cuts of the field, and of a pair at least
PAIRS, FEW_PAIRS = 5, 4  # of fresh processes that confirm the gain
DEAR_PAIR_S = 10.0  # a pair that takes longer than this is repeated fewer times
FEWER_ROUNDS = 2  # of a pair than in a live comparison: the gain is known to be large enough to be worth a look
SEARCH_SHARE = 0.7  # of the budget: after that nobody new enters
HELPS = 0.02  # as a logarithm: a change that seems to bring more, and more than noise, is tried together with others


class Request(Struct, frozen=True):
    """What is tuned, within what, and for how long at most."""

    case: Case
    axes: Axes
    budget_s: float = 600.0
    timeout_s: float = 600.0
    seed: int = 0
    data: str | None = None
    hold: tuple[str, ...] = field(default_factory=tuple)  # settings that must stay as they are
    ceilings: Ceilings = NONE  # the best that the machine was seen to do


class News(Struct, frozen=True):
    """Something that has just happened: a configuration was tried, or leads now."""

    case: Case
    event: Literal["failed", "leads", "confirms"]
    gain: float | None = None  # over the default, as far as is known
    reason: str = ""


Tell = Callable[[News], None]


class Search:
    """One search under way. Use it once."""

    def __init__(
        self,
        request: Request,
        tell: Tell = lambda _: None,
        listen: Listen = lambda *_: None,
        opening: Opening = open_side,
        kept: Kept = lambda _: None,
        began: float | None = None,  # when the budget began to run
    ) -> None:
        self._request, self._tell, self._listen, self._open, self._kept = request, tell, listen, opening, kept
        self._rounds: list[Round] = []  # of the search
        self._settled: Settled | None = None  # once the winner was measured anew
        self._disturbed = 0  # pairs that do not count
        self._began = time.monotonic() if began is None else began
        self._leader = request.case
        self._instructions = chosen_instructions()  # that lines to paste must choose, too
        self._refused: set[str] = set()  # number formats that are of no use here
        self._stopped: Literal["done", "budget", "interrupted"] = "interrupted"
        self._results: dict[str, list[Result]] = {}
        self._cases: dict[str, Case] = {}

    @property
    def leader(self) -> Case:
        """Who is in front."""
        return self._leader

    @property
    def processes(self) -> dict[str, list[Result]]:
        """What every process of every case gave, raw samples included."""
        return self._results

    def result(self, text: str) -> Result:
        """All processes of a case as one; a later one that failed does not undo what the earlier ones gave."""
        several = self._results[text]
        good = [result for result in several if result.status == "ok"]
        result = with_peak(combine_results(good or several[-1:]), self._request.ceilings)
        return replace(result, cautions=cautions_of(result), rigor="default" if len(good) > 1 else "quick")

    def run(self) -> None:
        """Search, then confirm what was found."""
        with temporary_folder("torchmark-compiled-") as folder:
            deadline = self._began + self._request.budget_s
            terms = Terms(self._request.timeout_s, self._request.seed, self._request.data, folder, deadline)
            with Arena(terms, self._listen, self._open, self._kept) as arena:
                self._results, self._cases = arena.results, arena.cases
                self._stopped = "done"
                try:
                    self._search(arena)
                    self._confirm(arena)
                except BaseException:
                    self._stopped = "interrupted"
                    raise

    def outcome(self) -> Tuned:
        """What is known by now."""
        default, settled = self._request.case, self._settled or Settled(self._request.case, self._leader)
        gain, found = settled.gain, settled.placed(scores(self._rounds))
        results = {text: self.result(text) for text in self._results}
        winner = settled.leader if settled.is_confirmed else default
        same = winner if same_precision(winner, default) else best_at_precision(default, self._cases, found)
        return Tuned(
            default=default,
            winner=winner,
            same_precision=same,
            results=tuple(results.values()),
            stopped=self._stopped,
            gain=gain.center if gain else None,
            low=gain.low if gain else None,
            high=gain.high if gain else None,
            pairs=len(settled.pairs),
            unconfirmed=settled.leader if settled.leader != winner else None,
            disturbed=self._disturbed,
            same_precision_gain=seen_gain(default, same, found),
            contributions=contributions(default, winner, found) if {default.text, winner.text} <= found.keys() else (),
            break_even=find_break_even(default, winner, results, self._firsts(), found),
            relative={text: seen_gain(default, self._cases[text], found) or 0.0 for text in found},
            duration_s=time.monotonic() - self._began,
        )

    def _search(self, arena: Arena) -> None:
        default, axes = self._request.case, self._request.axes
        if not self._enter(arena, default):
            if default.text not in arena.results:
                raise NothingMeasuredError(
                    f"the budget was spent before {default.text} was measured", "Give it more time with --budget"
                )
            failed = arena.results[default.text][-1]
            raise NothingMeasuredError(
                f"{default.text} itself ended as {failed.status}: {failed.reason}",
                "Choose a case that runs here",
                failed.detail or "",
            )
        self._heat(arena, default, combinations(default, axes, NUMBERS))
        plain, modes = self._best_of_each(self._rounds) or [default], axes.get("compile", ())
        self._heat(arena, self._leader, [changed(case, "compile", mode) for case in plain for mode in modes[:1]])
        if self._leader.compile != "off":
            self._heat(arena, self._leader, [changed(self._leader, "compile", mode) for mode in modes[1:]])
        rest = [name for name in axes if name not in (*NUMBERS, "compile")]
        self._vary(arena, rest)
        for name in arena.inside(list(self._cases)):
            arena.leave(name)

    def _vary(self, arena: Arena, names: Sequence[str]) -> None:
        """All other settings one by one, and those that helped together."""
        start = self._leader
        self._heat(arena, start, variations(start, self._request.axes, names))
        found = scores(self._rounds)
        least, helped = max(HELPS, noise_of(self._rounds).deviation), dict[str, Case]()
        for case in variations(start, self._request.axes, names):
            (name,) = differing(start, case) or ("",)
            if case.text in found and found[start.text] - found[case.text] > least:
                known = helped.get(name)
                helped[name] = min((each for each in (known, case) if each), key=lambda each: found[each.text])
        if len(helped) > 1:
            together = start
            for name, case in helped.items():
                together = changed(together, name, setting(case, name))
            self._heat(arena, self._leader, [together])

    def _heat(self, arena: Arena, incumbent: Case, challengers: Sequence[Case]) -> None:
        """Incumbent and challengers in common rounds, fewer after each cut; the leader of all is known afterwards."""
        entered = [self._remedied(case).text for case in challengers if self._enter(arena, case)]
        if not entered or (not arena.inside([incumbent.text]) and not self._enter(arena, incumbent)):
            return
        field, rounds = [incumbent.text, *entered], list[Round]()
        while len(field) > 1 and not self._is_late():
            rounds += [arena.play(field) for _ in range(ROUNDS)]
            field = arena.inside(field)
            if not field or self._left_s <= 0:
                break
            if len(field) == 2 and incumbent.text in field:
                (challenger,) = (name for name in field if name != incumbent.text)
                answer = verdict(rounds, challenger, incumbent.text, noise_of([*self._rounds, *rounds]))
                field = {"faster": [challenger], "not faster": [incumbent.text], "unsure": field}[answer]
            else:
                field = survivors(rounds, field, incumbent.text)
            incumbent = self._crown(arena, incumbent, field, rounds)
            best = self._best_of_each([*self._rounds, *rounds])
            self._dismiss(arena, {*field, self._leader.text, *(case.text for case in best)})
        self._rounds += rounds

    def _crown(self, arena: Arena, incumbent: Case, field: Sequence[str], rounds: Sequence[Round]) -> Case:
        """Who leads a heat in which the incumbent was left behind; where that one led all, so does its successor."""
        if incumbent.text in field or not field:
            return incumbent
        found = scores([*self._rounds, *rounds])
        successor = simplest(self._request.case, [self._cases[name] for name in field], found)
        if incumbent.text == self._leader.text:
            self._leader = successor
            for case in (self._request.case, successor):  # on the disk before it is announced
                arena.sum_up(case.text)
            self._tell(News(successor, "leads", seen_gain(self._request.case, successor, found)))
        return successor

    def _dismiss(self, arena: Arena, keep: set[str]) -> None:
        for name in arena.inside(list(self._cases)):
            if name not in keep:
                arena.leave(name)

    def _best_of_each(self, rounds: Sequence[Round]) -> list[Case]:
        return best_of_each_precision(self._request.case, self._cases, scores(rounds))

    def _enter(self, arena: Arena, case: Case) -> bool:
        """Into the arena, unless its number format is known to be of no use, or the time is up."""
        case = self._remedied(case)
        if arena.inside([case.text]):
            return True
        if case.dtype in self._refused or self._is_late():
            return False
        if arena.enter(case, until=self._began + (1 + SEARCH_SHARE) / 2 * self._request.budget_s):
            return True
        failed = arena.results[case.text][-1]
        self._tell(News(case, "failed", reason=": ".join(filter(None, (failed.status, failed.reason, failed.detail)))))
        inside = {self._cases[name].dtype for name in arena.inside(list(self._cases))}
        if case.dtype not in (self._request.case.dtype, *inside) and case.compile == "off":
            self._refused.add(case.dtype)
        return False

    def _remedied(self, case: Case) -> Case:
        """Where this machine's instructions are limited, a shorter number format needs that limit wherever it runs."""
        isa = self._instructions if "isa" not in (*case.ways, *self._request.hold) else None
        return changed(case, "isa", isa) if isa and case.dtype != self._request.case.dtype else case

    @property
    def _left_s(self) -> float:
        return self._request.budget_s - (time.monotonic() - self._began)

    def _is_late(self) -> bool:
        late = self._left_s < (1 - SEARCH_SHARE) * self._request.budget_s
        if late:
            self._stopped = "budget"
        return late

    def _confirm(self, arena: Arena) -> None:
        """Pairs of fresh processes, as many as were decided on after the first, as far as the budget goes. One in which
        other programs were busy does not count, and another takes its place."""
        default, winner = self._request.case, self._leader
        if winner.text == default.text:
            return
        found = scores(self._rounds)
        core = core_of(default, winner, found) if default.text in found else winner
        field = list({case.text: case for case in (default, core, winner)}.values())
        bouts, due, longest_s = list[list[Round]](), PAIRS, len(field) * arena.entry_s[default.text]
        try:
            while len(bouts) < due and self._disturbed < due:
                if self._left_s < longest_s:
                    self._stopped = "budget"
                    break
                began = time.monotonic()
                self._tell(News(winner, "confirms", seen_gain(default, winner, scores(self._rounds))))
                bout = self._bout(arena, field)
                if not leads([bout], winner, default):
                    self._stopped = "budget" if self._left_s <= 0 else self._stopped
                    break
                if any(map(arena.was_contended, (case.text for case in field))):
                    self._disturbed += 1
                else:
                    bouts.append(bout)
                longest_s = time.monotonic() - began
                if len(bouts) == 1 and longest_s > DEAR_PAIR_S * len(field) / 2:
                    due = FEW_PAIRS
        finally:
            self._settled = settle(default, core, winner, bouts)

    def _bout(self, arena: Arena, field: Sequence[Case]) -> list[Round]:
        """Fresh processes of all of them, in rounds that they share."""
        entered = [case.text for case in field if arena.enter(case, spared=True)]
        if len(entered) < 2:
            return []
        count = max(ROUNDS, rounds_for(max(map(arena.step_s, entered), default=1.0)) - FEWER_ROUNDS)
        rounds = [arena.play(entered) for _ in range(count)]
        for name in entered:
            arena.leave(name)
        return rounds

    def _firsts(self) -> dict[str, Result]:
        """The first process of every case: later ones find what it has compiled in the cache."""
        return {text: several[0] for text, several in self._results.items()}
