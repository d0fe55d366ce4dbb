"""Finds the fastest settings for a case: a search by halving, in rounds that all candidates share.

Number formats with layouts come first, then compiling the best of them, then every other setting against the leader.
The winner, also without the settings that gained little, is then confirmed against the default in fresh processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from typing import Literal

from msgspec import field
from msgspec.structs import asdict, replace

from torchmark.analyze import search
from torchmark.analyze.efficiency import NONE, Ceilings
from torchmark.analyze.grades import is_contended
from torchmark.analyze.pairing import TUNED_OPTIONS, USUAL, changed, differing, name_of, same_precision, setting
from torchmark.case import parse_value
from torchmark.errors import NothingMeasuredError, UnknownName, UsageError
from torchmark.measure.cases import check_case, chosen_instructions, full_params, offered, split_values, tunable_dtypes
from torchmark.measure.lifecycle import temporary_folder
from torchmark.records import CASE_OPTIONS, Case, Machine, Result, Rigor, Tuning, Value
from torchmark.studies.ab import rounds_for
from torchmark.studies.candidates import CandidatePool
from torchmark.studies.study import Announcement, Completed, Event, Options, Study, summed_up

Axes = dict[str, tuple[Value, ...]]  # the values worth a try for each setting

ROUNDS = 2  # between two cuts of the field, and of a pair at least
PAIRS, FEW_PAIRS, SLOW_PAIR_S = 5, 4, 10.0  # of fresh processes that confirm the gain; fewer where one takes longer
FEWER_ROUNDS = 2  # of a pair than in a live comparison, because the gain is known to be large
SEARCH_SHARE = 0.7  # of the budget: no new candidate enters after that
NUMBERS = ("dtype", "matmul", "layout")  # these decide together which code computes a product, so all pairs are tried
HELPS = 0.02  # as a logarithm: a change that seems to bring more, and more than noise, is tried together with others


class TuneOptions(Options, frozen=True):
    case: Case
    axes: Axes
    hold: tuple[str, ...] = ()  # settings that must stay as they are
    added: dict[str, tuple[str, ...]] = field(default_factory=dict)  # values that the user added to some axes

    @property
    def command(self) -> str:
        given = [f" --keep {','.join(self.hold)}"] if self.hold else []
        given += [f" --also {name}={','.join(values)}" for name, values in self.added.items()]
        return f"torchmark tune {self.case.text}{''.join(given)} --budget {self.budget_s:g}s --seed {self.seed}"


class News(Announcement, frozen=True):
    case: Case
    default: Case
    event: Literal["failed", "leads", "confirms"]
    gain: float | None = None  # over the default, as far as is known
    reason: str = ""


class Tune(Study):
    options: TuneOptions
    open_ended = True

    def __init__(self, options: TuneOptions, machine: Machine, ceilings: Ceilings = NONE) -> None:
        super().__init__(options, machine, [options.case])
        self._ceilings, self._default, self._leader = ceilings, options.case, options.case
        self._rounds: list[search.Round] = []  # of the search
        self._settled: search.Settled | None = None  # once the winner was measured again
        self._disturbed = 0  # pairs that do not count
        self._instructions = chosen_instructions()  # that lines to paste must choose, too
        self._refused: set[str] = set()  # number formats that are useless here
        self._stopped: Literal["done", "budget", "interrupted"] = "interrupted"
        self._pool = CandidatePool(options, lambda case, message: self.listen(message, name_of(case, self._default)))

    def events(self) -> Iterator[Event]:
        with temporary_folder("torchmark-compiled-") as self._pool.compile_cache, closing(self._pool):
            self._pool.deadline = self.began + self.options.budget_s
            self._stopped = "done"
            try:
                yield from self._search()
                yield from self._confirm()
            except BaseException:
                self._stopped = "interrupted"
                raise

    def unfinished(self) -> Iterator[Event]:
        while self._pool.unsaved:
            text = self._pool.unsaved.pop(0)
            *earlier, last = self._pool.results[text]
            yield Completed(sum(result.status == "ok" for result in earlier), last, self._result(text))

    def _result(self, text: str) -> Result:
        """All processes of a case as one; a later one that failed does not undo what the earlier ones gave."""
        several = self._pool.results[text]
        good = [result for result in several if result.status == "ok"]
        rigor: Rigor = "default" if len(good) > 1 else "quick"
        return replace(summed_up(good or several[-1:], self._ceilings), rigor=rigor)

    def conclusion(self, side: str = "") -> Tuning | None:  # noqa: ARG002 -- there is one
        return self.outcome().conclusion if self._default.text in self._pool.results else None

    def outcome(self) -> search.Tuned:
        default, settled = self._default, self._settled or search.Settled(self._default, self._leader)
        gain, found = settled.gain, settled.placed(search.scores(self._rounds)[0])
        cases, several = self._pool.cases, self._pool.results
        results = {text: self._result(text) for text in several}
        firsts = {text: each[0] for text, each in several.items()}  # later ones find a warm compile cache
        winner = settled.leader if settled.is_confirmed else default
        same = winner if same_precision(winner, default) else search.best_at_precision(default, cases, found)
        is_placed = {default.text, winner.text} <= found.keys()
        return search.Tuned(
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
            same_precision_gain=search.seen_gain(default, same, found),
            contributions=search.contributions(default, winner, found) if is_placed else (),
            break_even=search.find_break_even(default, winner, results, firsts, found),
            relative={text: search.seen_gain(default, cases[text], found) or 0.0 for text in found},
            duration_s=time.monotonic() - self.began,
        )

    def _search(self) -> Iterator[Event]:
        default, axes = self._default, self.options.axes
        if not (yield from self._enter(default)):
            if default.text not in self._pool.results:
                cause = f"the budget was spent before {default.text} was measured"
                raise NothingMeasuredError(cause, "Give it more time with --budget")
            failed = self._pool.results[default.text][-1]
            ended = f"{default.text} itself ended as {failed.status}: {failed.reason}"
            raise NothingMeasuredError(ended, "Choose a case that runs here", failed.detail or "")
        yield from self._heat(default, combinations(default, axes, NUMBERS))
        best = search.best_of_each_precision(default, self._pool.cases, search.scores(self._rounds)[0])
        plain, modes = best or [default], axes.get("compile", ())
        yield from self._heat(self._leader, [changed(case, "compile", mode) for case in plain for mode in modes[:1]])
        if self._leader.compile != "off":
            yield from self._heat(self._leader, [changed(self._leader, "compile", mode) for mode in modes[1:]])
        # All other settings one by one, then those that helped together.
        start = self._leader
        variants = variations(start, axes, [name for name in axes if name not in (*NUMBERS, "compile")])
        yield from self._heat(start, variants)
        found, noise = search.scores(self._rounds)
        least, helped = max(HELPS, noise.deviation), dict[str, Case]()
        for case in variants:
            (name,) = differing(start, case) or ("",)
            if case.text in found and found[start.text] - found[case.text] > least:
                helped[name] = min((helped.get(name, case), case), key=lambda each: found[each.text])
        if len(helped) > 1:
            together = start
            for name, case in helped.items():
                together = changed(together, name, setting(case, name))
            yield from self._heat(self._leader, [together])
        yield from self._dismiss()

    def _heat(self, incumbent: Case, challengers: Sequence[Case]) -> Iterator[Event]:
        """Incumbent and challengers in common rounds, fewer after each cut; the leader of all is known afterwards."""
        entered: list[str] = []
        for case in challengers:
            is_in = yield from self._enter(case)
            entered += [self._with_instructions(case).text] if is_in else []
        if not entered or not (yield from self._enter(incumbent)):
            return
        field, rounds = [incumbent.text, *entered], list[search.Round]()
        while len(field) > 1 and not self._is_late():
            rounds += [self._pool.play(field) for _ in range(ROUNDS)]
            yield from self.unfinished()
            field = [name for name in field if name in self._pool.alive]
            if not field or self.left_s <= 0:
                break
            if len(field) == 2 and incumbent.text in field:
                (challenger,) = {*field} - {incumbent.text}
                answer = search.verdict(rounds, challenger, incumbent.text, search.scores([*self._rounds, *rounds])[1])
                field = {"faster": [challenger], "not faster": [incumbent.text], "unsure": field}[answer]
            else:
                field = search.survivors(rounds, field, incumbent.text)
            default, cases, found = self._default, self._pool.cases, search.scores([*self._rounds, *rounds])[0]
            if field and incumbent.text not in field:
                was_leader = incumbent.text == self._leader.text
                incumbent = search.simplest(default, [cases[name] for name in field], found)
                if was_leader:
                    self._leader = incumbent
                    for case in (default, incumbent):  # on the disk before it is announced
                        self._pool.sum_up(case.text)
                    yield from self.unfinished()
                    yield News(incumbent, default, "leads", search.seen_gain(default, incumbent, found))
            best = search.best_of_each_precision(default, cases, found)
            yield from self._dismiss({*field, self._leader.text, *(case.text for case in best)})
        self._rounds += rounds

    def _dismiss(self, keep: Container[str] = ()) -> Iterator[Event]:
        for name in [name for name in self._pool.alive if name not in keep]:
            self._pool.sum_up(name, end=True)
            yield from self.unfinished()

    def _enter(self, case: Case) -> Generator[Event, None, bool]:
        """Into the pool, unless its number format is known to be of no use, or the time is up."""
        case = self._with_instructions(case)
        if case.text in self._pool.alive:
            return True
        if case.dtype in self._refused or self._is_late():
            return False
        is_in = self._pool.enter(case, until=self.began + (1 + SEARCH_SHARE) / 2 * self.options.budget_s)
        yield from self.unfinished()
        if is_in:
            return True
        failed = self._pool.results[case.text][-1]
        reason = ": ".join(filter(None, (failed.status, failed.reason, failed.detail)))
        yield News(case, self._default, "failed", reason=reason)
        inside = {each.case.dtype for each in self._pool.alive.values()}
        if case.dtype not in (self._default.dtype, *inside) and case.compile == "off":
            self._refused.add(case.dtype)
        return False

    def _with_instructions(self, case: Case) -> Case:
        """The case with this machine's limit of instructions, which a shorter number format needs."""
        isa = self._instructions if "isa" not in (*case.options, *self.options.hold) else None
        return changed(case, "isa", isa) if isa and case.dtype != self._default.dtype else case

    def _is_late(self) -> bool:
        if late := self.left_s < (1 - SEARCH_SHARE) * self.options.budget_s:
            self._stopped = "budget"
        return late

    def _confirm(self) -> Iterator[Event]:
        """Measure the finalists in common rounds of fresh processes, several times; disturbed ones are repeated."""
        default, winner, pool = self._default, self._leader, self._pool
        if winner.text == default.text:
            return
        found, _ = search.scores(self._rounds)
        core = search.core_of(default, winner, found) if default.text in found else winner
        field = list({case.text: case for case in (default, core, winner)}.values())
        pairs, due, longest_s = list[list[search.Round]](), PAIRS, len(field) * pool.entry_s[default.text]
        try:
            while len(pairs) < due and self._disturbed < due:
                if self.left_s < longest_s:
                    self._stopped = "budget"
                    break
                began = time.monotonic()
                yield News(winner, default, "confirms", search.seen_gain(default, winner, found))
                entered = [case.text for case in field if pool.enter(case, spared=True)]
                yield from self.unfinished()
                pair, steps_s = list[search.Round](), [pool.alive[name].prepared.step_s for name in entered]
                if len(entered) > 1:
                    count = max(ROUNDS, rounds_for(max(steps_s)) - FEWER_ROUNDS)
                    pair += [pool.play(entered) for _ in range(count)]
                    yield from self._dismiss()
                if not search.leads([pair], winner, default):
                    self._stopped = "budget" if self.left_s <= 0 else self._stopped
                    break
                last = [pool.results[case.text][-1].estimate for case in field]
                if any(is_contended(each) for each in last if each):  # other programs were busy
                    self._disturbed += 1
                else:
                    pairs.append(pair)
                longest_s = time.monotonic() - began
                if len(pairs) == 1 and longest_s > SLOW_PAIR_S * len(field) / 2:
                    due = FEW_PAIRS
        finally:
            self._settled = search.settle(default, core, winner, pairs)


def axes_of(case: Case, machine: Machine, keep: Iterable[str] = (), also: Mapping[str, Sequence[str]] = {}) -> Axes:
    """Every axis with the values that the case does not have yet; `keep` holds some, `also` adds values to others."""
    keep = tuple(keep)
    usual = dict(_usual_axes(case, machine, keep))
    for name, texts in also.items():
        usual[name] = (*usual.get(name, ()), *map(parse_value, split_values(texts)))
    for name in (*keep, *also):
        if name not in (known := {*TUNED_OPTIONS, *offered(case), *full_params(case).__struct_fields__}):
            raise UnknownName("setting", name, known)
        for value in usual[name] if name in also else ():
            check_case(changed(case, name, value))
    current = asdict(full_params(case)) | {name: setting(case, name) for name in (*TUNED_OPTIONS, *CASE_OPTIONS)}
    return {
        name: tuple(value for value in dict.fromkeys(values) if value != current[name])
        for name, values in usual.items()
        if name not in keep
    }


def _usual_axes(case: Case, machine: Machine, keep: Sequence[str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    options, on_cpu = offered(case), case.device == "cpu"
    if on_cpu or not case.device.startswith("fake"):
        yield "dtype", tunable_dtypes(case)
        yield "compile", ("off", *(("on",) if on_cpu else ("on", "reduce-overhead", "max-autotune-no-cudagraphs")))
    if case.device.startswith("cuda") and case.dtype == "float32" and "matmul" in options and "dtype" not in keep:
        yield "matmul", ("high",)
    for name in ("layout", "attention", "gradients"):
        if name in options:
            yield name, (USUAL, *options[name][1:])
    if on_cpu:
        # From one to all that the machine runs at once, in doubles, without the number that a process takes by itself.
        most, physical = max(1, machine.logical_cores), max(1, machine.physical_cores)
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
        if allowed < (os.cpu_count() or 1):  # a job that may use some of the cores
            most, physical = min(most, allowed), min(physical, allowed)
        counts = {1 << power for power in range(most.bit_length())} | {physical, most}
        given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        usual = int(given) if given.isdecimal() else physical
        yield "threads", tuple(sorted(counts - ({usual} if case.threads is None else set())))
    if on_cpu and machine.physical_cores > 2:  # else threads have nowhere else to go
        yield "bind", (USUAL, *options.get("bind", ("",))[1:])
        yield "wait", (USUAL, *options.get("wait", ("",))[1:])
    if not on_cpu and case.transfer in ("per-step", "pinned"):
        yield "transfer", ("per-step", "pinned")
    if hasattr(full_params(case), "loader_workers"):
        yield "loader_workers", tuple(count for count in (0, 1, 2, 4, 8) if count <= machine.logical_cores)


def variations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
    return [changed(case, name, value) for name in names for value in axes.get(name, ())]


def combinations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
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
    if case.workers > 1:
        raise UsageError(f"{case.text} takes {case.workers} workers", "Cases of one are tuned: leave +workers out")
    if case.protocol != "steady":
        raise UsageError(f"{case.text} is timed as published", "Leave +as-published out")
    return check_case(case)
