"""Finds the fastest settings for a case: a search by halving, in rounds that all candidates share.

Number formats with layouts come first, then compiling the best of them, then every other setting by itself, each time
against the leader. In a heat the slower half leaves after every other round; the leader is replaced only by a candidate
that is faster beyond chance. The winner is then measured against the default in pairs of fresh processes that took no
part in the search, because the best of many looks better than it is. The winner without those settings that gained
little takes part, too: a setting that owed its gain to one lucky process is dropped there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.efficiency import NONE, Ceilings, with_peak
from torchmark.analyze.pairing import TUNED_OPTIONS, USUAL, changed, differing, name_of, same_precision, setting
from torchmark.analyze.search import (
    Round,
    Settled,
    Tuned,
    best_at_precision,
    best_of_each_precision,
    contributions,
    core_of,
    find_break_even,
    leads,
    noise_of,
    scores,
    seen_gain,
    settle,
    simplest,
    survivors,
    verdict,
)
from torchmark.analyze.summary import combine_results
from torchmark.analyze.verdict import cautions_of
from torchmark.errors import NothingMeasuredError, UnknownName, UsageError
from torchmark.measure.case_options import chosen_instructions, offered, tunable_dtypes
from torchmark.measure.cases import check_case, full_params, split_values
from torchmark.measure.lifecycle import temporary_folder
from torchmark.measure.messages import Message
from torchmark.records import CASE_OPTIONS, Case, Machine, Result, Tuning, Value, parse_value
from torchmark.studies.ab import rounds_for
from torchmark.studies.candidates import CandidatePool, Opening, PoolOptions, open_side
from torchmark.studies.study import Announcement, Completed, Event, Study

Axes = dict[str, tuple[Value, ...]]  # the values worth a try for each setting

ROUNDS = 2  # between two cuts of the field, and of a pair at least
PAIRS, FEW_PAIRS = 5, 4  # of fresh processes that confirm the gain
SLOW_PAIR_S = 10.0  # a pair that takes longer than this is repeated fewer times
FEWER_ROUNDS = 2  # of a pair than in a live comparison, because the gain is known to be large
SEARCH_SHARE = 0.7  # of the budget: no new candidate enters after that
NUMBERS = ("dtype", "matmul", "layout")  # these decide together which code computes a product, so all pairs are tried
_ACCELERATED_MODES = ("on", "reduce-overhead", "max-autotune-no-cudagraphs")
_LOADERS = (0, 1, 2, 4, 8)
_FEW_CORES = 2  # where threads have nowhere else to go, binding them and how they wait change nothing
HELPS = 0.02  # as a logarithm: a change that seems to bring more, and more than noise, is tried together with others


class TuneOptions(Struct, frozen=True):
    """What is tuned, within what, and for how long at most."""

    case: Case
    axes: Axes
    budget_s: float = 600.0
    timeout_s: float = 600.0
    seed: int = 0
    data: str | None = None
    hold: tuple[str, ...] = ()  # settings that must stay as they are
    added: dict[str, tuple[str, ...]] = {}  # values that the user added to some axes

    @property
    def command(self) -> str:
        given = [f" --keep {','.join(self.hold)}"] if self.hold else []
        given += [f" --also {name}={','.join(values)}" for name, values in self.added.items()]
        return f"torchmark tune {self.case.text}{''.join(given)} --budget {self.budget_s:g}s --seed {self.seed}"


class News(Announcement, frozen=True):
    """A configuration failed, leads now, or is measured again to confirm it."""

    case: Case
    default: Case
    event: Literal["failed", "leads", "confirms"]
    gain: float | None = None  # over the default, as far as is known
    reason: str = ""


class Tune(Study):
    """A search for the fastest settings."""

    options: TuneOptions
    open_ended = True

    def __init__(
        self,
        options: TuneOptions,
        machine: Machine,
        ceilings: Ceilings = NONE,
        began: float | None = None,  # when the budget began to run
        opening: Opening = open_side,
    ) -> None:
        super().__init__(options, machine, [options.case])
        self._ceilings, self._open = ceilings, opening
        self._rounds: list[Round] = []  # of the search
        self._settled: Settled | None = None  # once the winner was measured again
        self._disturbed = 0  # pairs that do not count
        self._began = time.monotonic() if began is None else began
        self._leader = options.case
        self._instructions = chosen_instructions()  # that lines to paste must choose, too
        self._refused: set[str] = set()  # number formats that are useless here
        self._stopped: Literal["done", "budget", "interrupted"] = "interrupted"
        self._pool = CandidatePool(PoolOptions())

    def result(self, text: str) -> Result:
        """All processes of a case as one; a later one that failed does not undo what the earlier ones gave."""
        several = self._pool.results[text]
        good = [result for result in several if result.status == "ok"]
        result = with_peak(combine_results(good or several[-1:]), self._ceilings)
        return replace(result, cautions=cautions_of(result), rigor="default" if len(good) > 1 else "quick")

    def events(self) -> Iterator[Event]:
        """Search, then confirm what was found."""
        options, default = self.options, self.options.case

        def hear(text: str, message: Message) -> None:
            self.listen(message, name_of(self._pool.cases[text], default))

        with temporary_folder("torchmark-compiled-") as folder:
            deadline = self._began + options.budget_s
            limits = PoolOptions(options.timeout_s, options.seed, options.data, folder, deadline)
            with CandidatePool(limits, hear, self._open) as self._pool:
                self._stopped = "done"
                try:
                    yield from self._search()
                    yield from self._confirm()
                except BaseException:
                    self._stopped = "interrupted"
                    raise

    def unfinished(self) -> Iterator[Event]:
        """Results of processes that have just ended."""
        while self._pool.unsaved:
            text = self._pool.unsaved.pop(0)
            *earlier, last = self._pool.results[text]
            yield Completed(sum(result.status == "ok" for result in earlier), last, self.result(text))

    def conclusion(self, side: str = "") -> Tuning | None:  # noqa: ARG002 -- there is one
        return self.outcome().conclusion if self.options.case.text in self._pool.results else None

    def outcome(self) -> Tuned:
        """What is known by now."""
        default, settled = self.options.case, self._settled or Settled(self.options.case, self._leader)
        gain, found = settled.gain, settled.placed(scores(self._rounds))
        cases, several = self._pool.cases, self._pool.results
        results = {text: self.result(text) for text in several}
        firsts = {text: each[0] for text, each in several.items()}  # later ones find a warm compile cache
        winner = settled.leader if settled.is_confirmed else default
        same = winner if same_precision(winner, default) else best_at_precision(default, cases, found)
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
            break_even=find_break_even(default, winner, results, firsts, found),
            relative={text: seen_gain(default, cases[text], found) or 0.0 for text in found},
            duration_s=time.monotonic() - self._began,
        )

    def _search(self) -> Iterator[Event]:
        default, axes = self.options.case, self.options.axes
        if not (yield from self._enter(default)):
            if default.text not in self._pool.results:
                raise NothingMeasuredError(
                    f"the budget was spent before {default.text} was measured", "Give it more time with --budget"
                )
            failed = self._pool.results[default.text][-1]
            raise NothingMeasuredError(
                f"{default.text} itself ended as {failed.status}: {failed.reason}",
                "Choose a case that runs here",
                failed.detail or "",
            )
        yield from self._heat(default, combinations(default, axes, NUMBERS))
        plain, modes = self._best_of_each(self._rounds) or [default], axes.get("compile", ())
        yield from self._heat(self._leader, [changed(case, "compile", mode) for case in plain for mode in modes[:1]])
        if self._leader.compile != "off":
            yield from self._heat(self._leader, [changed(self._leader, "compile", mode) for mode in modes[1:]])
        rest = [name for name in axes if name not in (*NUMBERS, "compile")]
        yield from self._vary(rest)
        yield from self._dismiss()

    def _vary(self, names: Sequence[str]) -> Iterator[Event]:
        """All other settings one by one, and those that helped together."""
        start = self._leader
        yield from self._heat(start, variations(start, self.options.axes, names))
        found = scores(self._rounds)
        least, helped = max(HELPS, noise_of(self._rounds).deviation), dict[str, Case]()
        for case in variations(start, self.options.axes, names):
            (name,) = differing(start, case) or ("",)
            if case.text in found and found[start.text] - found[case.text] > least:
                known = helped.get(name)
                helped[name] = min((each for each in (known, case) if each), key=lambda each: found[each.text])
        if len(helped) > 1:
            together = start
            for name, case in helped.items():
                together = changed(together, name, setting(case, name))
            yield from self._heat(self._leader, [together])

    def _heat(self, incumbent: Case, challengers: Sequence[Case]) -> Iterator[Event]:
        """Incumbent and challengers in common rounds, fewer after each cut; the leader of all is known afterwards."""
        entered: list[str] = []
        for case in challengers:
            is_in = yield from self._enter(case)
            entered += [self._with_instructions(case).text] if is_in else []
        if not entered or not (yield from self._enter(incumbent)):
            return
        field, rounds = [incumbent.text, *entered], list[Round]()
        while len(field) > 1 and not self._is_late():
            rounds += [self._pool.play(field) for _ in range(ROUNDS)]
            yield from self.unfinished()
            field = self._pool.alive(field)
            if not field or self._left_s <= 0:
                break
            if len(field) == 2 and incumbent.text in field:
                (challenger,) = (name for name in field if name != incumbent.text)
                answer = verdict(rounds, challenger, incumbent.text, noise_of([*self._rounds, *rounds]))
                field = {"faster": [challenger], "not faster": [incumbent.text], "unsure": field}[answer]
            else:
                field = survivors(rounds, field, incumbent.text)
            incumbent = yield from self._next_leader(incumbent, field, rounds)
            best = self._best_of_each([*self._rounds, *rounds])
            yield from self._dismiss({*field, self._leader.text, *(case.text for case in best)})
        self._rounds += rounds

    def _next_leader(
        self, incumbent: Case, field: Sequence[str], rounds: Sequence[Round]
    ) -> Generator[Event, None, Case]:
        """The leader of a heat that has dropped its incumbent. If that was the leader of all, so is its successor."""
        if incumbent.text in field or not field:
            return incumbent
        found = scores([*self._rounds, *rounds])
        successor = simplest(self.options.case, [self._pool.cases[name] for name in field], found)
        if incumbent.text == self._leader.text:
            self._leader = successor
            for case in (self.options.case, successor):  # on the disk before it is announced
                self._pool.sum_up(case.text)
            yield from self.unfinished()
            yield self._news(successor, "leads", seen_gain(self.options.case, successor, found))
        return successor

    def _dismiss(self, keep: Container[str] = ()) -> Iterator[Event]:
        for name in self._pool.alive():
            if name not in keep:
                self._pool.leave(name)
                yield from self.unfinished()

    def _best_of_each(self, rounds: Sequence[Round]) -> list[Case]:
        return best_of_each_precision(self.options.case, self._pool.cases, scores(rounds))

    def _enter(self, case: Case) -> Generator[Event, None, bool]:
        """Into the pool, unless its number format is known to be of no use, or the time is up."""
        case = self._with_instructions(case)
        if self._pool.alive([case.text]):
            return True
        if case.dtype in self._refused or self._is_late():
            return False
        is_in = self._pool.enter(case, until=self._began + (1 + SEARCH_SHARE) / 2 * self.options.budget_s)
        yield from self.unfinished()
        if is_in:
            return True
        failed = self._pool.results[case.text][-1]
        reason = ": ".join(filter(None, (failed.status, failed.reason, failed.detail)))
        yield self._news(case, "failed", reason=reason)
        inside = {self._pool.cases[name].dtype for name in self._pool.alive()}
        if case.dtype not in (self.options.case.dtype, *inside) and case.compile == "off":
            self._refused.add(case.dtype)
        return False

    def _with_instructions(self, case: Case) -> Case:
        """The case with this machine's limit of instructions, which a shorter number format needs wherever it runs."""
        isa = self._instructions if "isa" not in (*case.options, *self.options.hold) else None
        return changed(case, "isa", isa) if isa and case.dtype != self.options.case.dtype else case

    @property
    def _left_s(self) -> float:
        return self.options.budget_s - (time.monotonic() - self._began)

    def _is_late(self) -> bool:
        late = self._left_s < (1 - SEARCH_SHARE) * self.options.budget_s
        if late:
            self._stopped = "budget"
        return late

    def _confirm(self) -> Iterator[Event]:
        """Pairs of fresh processes, as many as were decided on after the first, as far as the budget goes. One in which
        other programs were busy does not count, and another takes its place."""
        default, winner = self.options.case, self._leader
        if winner.text == default.text:
            return
        found = scores(self._rounds)
        core = core_of(default, winner, found) if default.text in found else winner
        field = list({case.text: case for case in (default, core, winner)}.values())
        pairs, due, longest_s = list[list[Round]](), PAIRS, len(field) * self._pool.entry_s[default.text]
        try:
            while len(pairs) < due and self._disturbed < due:
                if self._left_s < longest_s:
                    self._stopped = "budget"
                    break
                began = time.monotonic()
                yield self._news(winner, "confirms", seen_gain(default, winner, scores(self._rounds)))
                pair = yield from self._measure_pair(field)
                if not leads([pair], winner, default):
                    self._stopped = "budget" if self._left_s <= 0 else self._stopped
                    break
                if any(map(self._pool.was_contended, (case.text for case in field))):
                    self._disturbed += 1
                else:
                    pairs.append(pair)
                longest_s = time.monotonic() - began
                if len(pairs) == 1 and longest_s > SLOW_PAIR_S * len(field) / 2:
                    due = FEW_PAIRS
        finally:
            self._settled = settle(default, core, winner, pairs)

    def _measure_pair(self, field: Sequence[Case]) -> Generator[Event, None, list[Round]]:
        """Fresh processes of all of them, in rounds that they share."""
        entered = [case.text for case in field if self._pool.enter(case, spared=True)]
        yield from self.unfinished()
        if len(entered) < 2:
            return []
        count = max(ROUNDS, rounds_for(max(map(self._pool.step_s, entered), default=1.0)) - FEWER_ROUNDS)
        rounds = [self._pool.play(entered) for _ in range(count)]
        for name in entered:
            self._pool.leave(name)
            yield from self.unfinished()
        return rounds

    def _news(
        self, case: Case, event: Literal["failed", "leads", "confirms"], gain: float | None = None, reason: str = ""
    ) -> News:
        return News(case, self.options.case, event, gain, reason)


def axes_of(case: Case, machine: Machine, keep: Iterable[str] = (), also: Mapping[str, Sequence[str]] = {}) -> Axes:
    """Every axis with the values that the case does not have yet; `keep` holds some, `also` adds values to others."""
    keep = tuple(keep)
    usual = dict(_usual_axes(case, machine, keep))
    for name, texts in also.items():
        usual[name] = (*usual.get(name, ()), *(parse_value(text) for text in split_values(texts)))
    for name in (*keep, *also):
        known = {*TUNED_OPTIONS, *offered(case), *full_params(case).__struct_fields__}
        if name not in known:
            raise UnknownName("setting", name, known)
        for value in usual[name] if name in also else ():
            check_case(changed(case, name, value))
    return {
        name: tuple(value for value in dict.fromkeys(values) if value != _current(case, name))
        for name, values in usual.items()
        if name not in keep
    }


def _current(case: Case, name: str) -> Value | None:
    if name in TUNED_OPTIONS or name in CASE_OPTIONS:
        return setting(case, name)
    value: Value = getattr(full_params(case), name)
    return value


def _usual_axes(case: Case, machine: Machine, keep: Sequence[str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    options, on_cpu = offered(case), case.device == "cpu"
    if on_cpu or not case.device.startswith("fake"):
        yield "dtype", tunable_dtypes(case)
        yield "compile", ("off", *(("on",) if on_cpu else _ACCELERATED_MODES))
    if case.device.startswith("cuda") and case.dtype == "float32" and "matmul" in options and "dtype" not in keep:
        yield "matmul", ("high",)
    for name in ("layout", "attention", "gradients"):
        if name in options:
            yield name, (USUAL, *options[name][1:])
    if on_cpu:
        yield "threads", _thread_counts(case, machine)
    if on_cpu and machine.physical_cores > _FEW_CORES:
        yield "bind", (USUAL, *options.get("bind", ("",))[1:])
        yield "wait", (USUAL, *options.get("wait", ("",))[1:])
    if not on_cpu and case.transfer in ("per-step", "pinned"):
        yield "transfer", ("per-step", "pinned")
    if hasattr(full_params(case), "loader_workers"):
        yield "loader_workers", tuple(count for count in _LOADERS if count <= machine.logical_cores)


def _thread_counts(case: Case, machine: Machine) -> tuple[int, ...]:
    """From one to all that the machine runs at once, in doubles: which of them is best differs from work to work. What
    a process takes by itself is the case without a number."""
    most, physical = max(1, machine.logical_cores), max(1, machine.physical_cores)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
    if allowed < (os.cpu_count() or 1):  # a job that may use some of the cores
        most, physical = min(most, allowed), min(physical, allowed)
    counts = {1 << power for power in range(most.bit_length())} | {physical, most}
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    usual = int(given) if given.isdecimal() else physical
    return tuple(sorted(counts - ({usual} if case.threads is None else set())))


def variations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
    """The case with one of these settings changed, for every value of each."""
    return [changed(case, name, value) for name in names for value in axes.get(name, ())]


def combinations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
    """The case with every combination of these settings but its own."""
    chosen = [name for name in names if axes.get(name)]
    found = {}
    for values in product(*([setting(case, name), *axes[name]] for name in chosen)):
        other = case
        for name, value in zip(chosen, values, strict=True):
            other = changed(other, name, value)
        if "matmul" not in other.options or other.dtype == "float32":  # it applies to float32 alone
            found[other.text] = other
    found.pop(case.text)
    return list(found.values())


def check_tunable(case: Case) -> Case:
    """The case itself; raises if it cannot be tuned."""
    if case.workers > 1:
        raise UsageError(f"{case.text} takes {case.workers} workers", "Cases of one are tuned: leave +workers out")
    if case.protocol != "steady":
        raise UsageError(f"{case.text} is timed as published", "Leave +as-published out")
    return check_case(case)
