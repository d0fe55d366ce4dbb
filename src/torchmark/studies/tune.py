"""Finds the fastest settings for a case: a search by halving, in rounds that all candidates share.
Number formats with layouts come first, then compiling the best of them, then every other setting against the leader.
The winner, also without the settings that gained little, is then confirmed against the default in fresh processes."""

import math
import os
import random
import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

from msgspec.structs import asdict, replace

from torchmark.analyze import search
from torchmark.analyze.efficiency import NONE, Ceilings
from torchmark.analyze.grades import is_contended
from torchmark.analyze.pairing import TUNED_OPTIONS, USUAL, changed, differing, name_of, same_precision, setting
from torchmark.case import parse_value
from torchmark.errors import NothingMeasuredError, UnknownName
from torchmark.measure import messages
from torchmark.measure.cases import check_case, chosen_instructions, full_params, offered, split_values, tunable_dtypes
from torchmark.measure.engine import DEFAULTS, SLOW_STEP_S
from torchmark.measure.process import Process, ProcessFailed, temporary_folder
from torchmark.measure.session import Options
from torchmark.records import CASE_OPTIONS, Case, Machine, Result, Rigor, Tuning, Value
from torchmark.studies.ab import rounds_for, turn_seconds
from torchmark.studies.study import Announcement, Completed, Event, Study, summed_up

Axes = dict[str, tuple[Value, ...]]  # the values worth a try for each setting

ROUNDS = 2  # between two cuts of the field, and of a pair at least
PAIRS, FEW_PAIRS, SLOW_PAIR_S = 5, 4, 10.0  # of fresh processes that confirm the gain; fewer where one takes longer
FEWER_ROUNDS = 2  # of a pair than in a live comparison: the gain is known to be large
SEARCH_SHARE = 0.7  # of the budget: no new candidate enters after that
NUMBERS = ("dtype", "matmul", "layout")  # tried in all combinations
HELPS = 0.02  # as a logarithm: changes that seem to bring more, and more than noise, are combined
TOO_SLOW, SURELY_TOO_SLOW = 3.0, 9.0  # times the best: dropped at its first warm step; no disturbance is so large
QUICK_STEP_S = 0.2  # a shorter step says little, and its turns cost little
LEAST_PATIENCE_S = 2.0  # for the first two steps
MOST_TURNS = 60
LEAST_ANSWER_S = 1.0  # to wait for an answer at the end of the budget


class TuneOptions(Options, frozen=True):
    case: Case
    keep: tuple[str, ...] = ()  # settings that must stay as they are
    also: Mapping[str, Sequence[str]] = {}  # values to try in addition, as typed

    @property
    def command(self) -> str:
        given = [f" --keep {','.join(self.keep)}"] if self.keep else []
        given += [f" --also {name}={','.join(values)}" for name, values in self.also.items()]
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
        self._axes = axes_of(options.case, machine, options.keep, options.also)
        self._rounds: list[search.Round] = []  # of the search
        self._settled: search.Settled | None = None  # once the winner was measured again
        self._disturbed = 0  # pairs that do not count
        self._instructions = chosen_instructions()  # that lines to paste must choose, too
        self._refused: set[str] = set()  # number formats that are useless here
        self._is_done = self._is_out_of_time = False
        self._pool = CandidatePool(options, lambda case, message: self.listen(message, name_of(case, self._default)))

    def events(self) -> Iterator[Event]:
        with temporary_folder("torchmark-compiled-") as self._pool.compile_cache, closing(self._pool):
            self._pool.deadline = self.began + self.options.budget_s
            yield from self._search()
            yield from self._confirm()
        self._is_done = True

    def unfinished(self) -> Iterator[Event]:
        while self._pool.unsaved:
            text = self._pool.unsaved.pop(0)
            *earlier, last = self._pool.results[text]
            yield Completed(sum(result.status == "ok" for result in earlier), last, self._result(text))

    def _result(self, text: str) -> Result:
        """All processes of a case as one; a later failure does not undo earlier results."""
        several = self._pool.results[text]
        good = [result for result in several if result.status == "ok"]
        rigor: Rigor = "default" if len(good) > 1 else "quick"
        return replace(summed_up(good or several[-1:], self._ceilings), rigor=rigor)

    def conclusion(self, _side: str = "") -> Tuning | None:
        return self.outcome() if self._default.text in self._pool.results else None

    def results(self) -> dict[str, Result]:
        return {text: self._result(text) for text in self._pool.results}

    def outcome(self) -> Tuning:
        default, settled = self._default, self._settled or search.Settled(self._default, self._leader)
        found, cases = settled.placed(search.scores(self._rounds)[0]), self._pool.cases
        gain, low, high = settled.gain or (None, None, None)
        firsts = {text: each[0] for text, each in self._pool.results.items()}  # later ones find a warm compile cache
        winner = settled.leader if settled.is_confirmed else default
        same = winner if same_precision(winner, default) else search.best_at_precision(default, cases, found)
        is_placed = {default.text, winner.text} <= found.keys()
        return Tuning(
            *(default, winner, gain, low, high, len(settled.pairs)),
            same_precision=same,
            stopped="interrupted" if not self._is_done else "budget" if self._is_out_of_time else "done",
            unconfirmed=settled.leader if settled.leader != winner else None,
            disturbed=self._disturbed,
            same_precision_gain=search.seen_gain(default, same, found),
            contributions=search.contributions(default, winner, found) if is_placed else (),
            break_even=search.find_break_even(default, winner, self.results(), firsts, found),
            relative={text: search.seen_gain(default, cases[text], found) or 0.0 for text in found},
            duration_s=time.monotonic() - self.began,
        )

    def _search(self) -> Iterator[Event]:
        default, axes = self._default, self._axes
        if not (yield from self._enter(default)):
            if not (failed := self._pool.results.get(default.text)):
                cause = f"the budget was spent before {default.text} was measured"
                raise NothingMeasuredError(cause, "Give it more time with --budget")
            ended = f"{default.text} itself ended as {failed[-1].status}: {failed[-1].reason}"
            raise NothingMeasuredError(ended, "Choose a case that runs here", failed[-1].detail or "")
        yield from self._heat(default, combinations(default, axes))
        best = search.best_of_each_precision(default, self._pool.cases, search.scores(self._rounds)[0])
        modes = axes.get("compile", ())
        compiled = [changed(case, "compile", mode) for case in best or [default] for mode in modes[:1]]
        yield from self._heat(self._leader, compiled)
        if self._leader.compile != "off":
            yield from self._heat(self._leader, variations(self._leader, {"compile": modes[1:]}))
        # All other settings one by one, then those that helped together.
        start = self._leader
        variants = variations(start, {name: axes[name] for name in axes if name not in (*NUMBERS, "compile")})
        yield from self._heat(start, variants)
        found, noise = search.scores(self._rounds)
        least, helped, together = max(HELPS, noise.deviation), dict[str, Case](), start
        for case in variants:
            (name,) = differing(start, case) or ("",)
            if case.text in found and found[start.text] - found[case.text] > least:
                helped[name] = min((helped.get(name, case), case), key=lambda each: found[each.text])
        for name, case in helped.items():
            together = changed(together, name, setting(case, name))
        if len(helped) > 1:
            yield from self._heat(self._leader, [together])
        yield from self._dismiss()

    def _heat(self, incumbent: Case, challengers: Sequence[Case]) -> Iterator[Event]:
        """Play incumbent and challengers in common rounds, fewer after each cut, for a leader of all."""
        field, rounds = [incumbent.text], list[search.Round]()
        for case in challengers:
            name = yield from self._enter(case)
            field += [name] if name else []
        if len(field) == 1 or not (yield from self._enter(incumbent)):
            return
        while len(field) > 1 and not self._is_late():
            rounds += [self._pool.play(field) for _ in range(ROUNDS)]
            yield from self.unfinished()
            field = [name for name in field if name in self._pool.alive]
            if not field or self.left_s <= 0:
                break
            default, cases, (found, noise) = self._default, self._pool.cases, search.scores([*self._rounds, *rounds])
            if len(field) == 2 and incumbent.text in field:
                (challenger,) = {*field} - {incumbent.text}
                answer = search.verdict(rounds, challenger, incumbent.text, noise)
                field = {"faster": [challenger], "not faster": [incumbent.text], "unsure": field}[answer]
            else:
                field = search.survivors(rounds, field, incumbent.text)
            if field and incumbent.text not in field:
                was_leader = incumbent.text == self._leader.text
                incumbent = search.simplest(default, [cases[name] for name in field], found)
                if was_leader:
                    self._leader = incumbent
                    for name in (default.text, incumbent.text):  # on the disk before it is announced
                        self._pool.sum_up(name)
                    yield from self.unfinished()
                    yield News(incumbent, default, "leads", search.seen_gain(default, incumbent, found))
            best = search.best_of_each_precision(default, cases, found)
            yield from self._dismiss({*field, self._leader.text, *(case.text for case in best)})
        self._rounds += rounds

    def _dismiss(self, keep: Container[str] = ()) -> Iterator[Event]:
        for name in [name for name in self._pool.alive if name not in keep]:
            self._pool.sum_up(name, end=True)
            yield from self.unfinished()

    def _enter(self, case: Case) -> Generator[Event, None, str]:
        """Add a case unless its number format is useless here or time is up; return its text, or ""."""
        isa = self._instructions if "isa" not in (*case.options, *self.options.keep) else None
        if isa and case.dtype != self._default.dtype:  # shorter number formats need this machine's limit
            case = changed(case, "isa", isa)
        if case.text in self._pool.alive:
            return case.text
        if case.dtype in self._refused or self._is_late():
            return ""
        is_in = self._pool.enter(case, until=self.began + (1 + SEARCH_SHARE) / 2 * self.options.budget_s)
        yield from self.unfinished()
        if is_in:
            return case.text
        failed = self._pool.results[case.text][-1]
        reason = ": ".join(filter(None, (failed.status, failed.reason, failed.detail)))
        yield News(case, self._default, "failed", reason=reason)
        inside = {each.case.dtype for each in self._pool.alive.values()}
        if case.dtype not in (self._default.dtype, *inside) and case.compile == "off":
            self._refused.add(case.dtype)
        return ""

    def _is_late(self) -> bool:
        is_late = self.left_s < (1 - SEARCH_SHARE) * self.options.budget_s
        self._is_out_of_time |= is_late
        return is_late

    def _confirm(self) -> Iterator[Event]:
        """Measure the finalists in common rounds of fresh processes; disturbed ones are repeated."""
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
                    self._is_out_of_time = True
                    break
                began = time.monotonic()
                yield News(winner, default, "confirms", search.seen_gain(default, winner, found))
                entered = [case.text for case in field if pool.enter(case, spared=True)]
                yield from self.unfinished()
                pair = list[search.Round]()
                if len(entered) > 1:
                    step_s = max(pool.alive[name].prepared.step_s for name in entered)
                    pair += [pool.play(entered) for _ in range(max(ROUNDS, rounds_for(step_s) - FEWER_ROUNDS))]
                    yield from self._dismiss()
                if not search.leads([pair], winner, default):
                    self._is_out_of_time |= self.left_s <= 0
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


@dataclass
class Candidate:  # a configuration in a fresh process
    case: Case
    process: Process
    prepared: messages.Prepared
    has_played: bool = False
    is_kept: bool = False

    def turn(self, block_size: int, timed: bool = True) -> float:
        """Run a turn; return the logarithm of the seconds per item, or 0 if untimed."""
        order = messages.TakeTurn(turn_seconds(self.prepared.step_s), block_size, timed)
        taken_s = self.process.ask(order, messages.Turned).step_s
        self.has_played = self.has_played or timed
        return math.log(taken_s / (self.prepared.items or 1.0)) if timed else 0.0


class CandidatePool:
    """The live processes; any end of one becomes a result of its case."""

    def __init__(self, options: Options, hear: Callable[[Case, messages.Message], None]) -> None:
        self._options, self._hear, self._random = options, hear, random.Random(options.seed)
        self.compile_cache: str | None = None
        self.deadline = math.inf  # of the monotonic clock, for any answer
        self.alive: dict[str, Candidate] = {}
        self._patience_s: float | None = None  # with work of these sizes
        self._params: dict[str, Value] = {}
        self.results: dict[str, list[Result]] = {}  # by case, one for each process
        self.cases: dict[str, Case] = {}
        self.unsaved: list[str] = []  # cases with a result that is not stored yet
        self.entry_s: dict[str, float] = {}  # how long it took to prepare a case, the last time

    def close(self) -> None:
        while self.alive:
            self.alive.popitem()[1].process.close()

    def enter(self, case: Case, spared: bool = False, until: float = math.inf) -> bool:
        """Prepare a case in a new process; return whether it takes part: much too slow ones do only if `spared`."""
        self.cases[case.text], began, name = case, time.monotonic(), case.text
        left_s, timeout_s = max(min(self.deadline, until) - began, LEAST_ANSWER_S), self._options.timeout_s
        process = Process(case, name=name, timeout_s=min(timeout_s, left_s), listen=partial(self._hear, case))
        try:
            self._prepare(case, process, spared)
        except ProcessFailed as failure:
            result, late = failure.result, "the budget was spent. Give it more time with --budget"
            is_late = left_s < timeout_s and result.status == "timeout"
            self._keep(case, replace(result, status="skipped", reason=late) if is_late else result)
        finally:
            self.entry_s[name] = time.monotonic() - began
            if name not in self.alive:
                process.close()
        return name in self.alive

    def _prepare(self, case: Case, process: Process, spared: bool) -> None:
        number, options = len(self.results.get(case.text, [])), self._options
        job = messages.MeasureJob(case, DEFAULTS, options.seed, number, data=options.data, turns=MOST_TURNS)
        process.send(replace(job, compile_cache=self.compile_cache))
        process.receive(messages.Opened)
        process.send(messages.Prepare())
        patience_s = self._patience_s if self._params == case.params and not spared else None
        try:
            stepped = process.receive(messages.Stepped, patience_s)
        except ProcessFailed as failure:
            if failure.result.status != "timeout" or patience_s is None:
                raise
            reason = f"dropped: its first two steps took over {patience_s:.3g} s, {TOO_SLOW:g} times the default's"
            self._keep(case, replace(failure.result, status="skipped", reason=reason))
            return
        if self._patience_s is None:  # the default sets the measure
            self._patience_s = max(LEAST_PATIENCE_S, TOO_SLOW * (stepped.first_s + stepped.step_s))
            self._params = case.params
        times = self._times_the_best(stepped) if stepped.step_s > QUICK_STEP_S and not spared else 0.0
        if times <= SURELY_TOO_SLOW:
            prepared = process.receive(messages.Prepared)  # from now on it rests
            times = self._times_the_best(stepped, again=True) if times > TOO_SLOW else times
        if times > TOO_SLOW:
            reason = f"dropped: its first warm step of {stepped.step_s:.3g} s was {1 / times:.2g}× as fast as the best"
            self._keep(case, Result(case, "skipped", reason=reason, phases_s={"first step": stepped.first_s}))
            return
        candidate = Candidate(case, process, prepared)
        if prepared.step_s < SLOW_STEP_S:
            candidate.turn(prepared.block_size, timed=False)
        self.alive[case.text] = candidate

    def _times_the_best(self, stepped: messages.Stepped, again: bool = False) -> float:
        """How many times as long an item took as with the best; `again` gives that another turn."""
        items_s = {name: each.prepared.step_s / (each.prepared.items or 1.0) for name, each in self.alive.items()}
        if not items_s:
            return 0.0
        best = min(items_s, key=items_s.__getitem__)
        turns = self.play([best]).values() if again else ()
        return stepped.step_s / (stepped.items or 1.0) / max(items_s[best], *map(math.exp, turns), 0.0)

    def play(self, names: Sequence[str]) -> search.Round:
        """One round: a turn for each in random order, as long as there is time. A failed one is ended."""
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
                self.alive.pop(each.case.text).process.close()
        return taken

    def sum_up(self, name: str, end: bool = False) -> None:
        """Keep what a candidate's turns have shown so far. A failed one is ended."""
        if name not in self.alive:
            return
        candidate = self.alive[name]
        try:
            if not candidate.has_played:  # it had no opponent
                candidate.turn(candidate.prepared.block_size)
            result = candidate.process.ask(messages.SumUp(), messages.Measured).result
        except ProcessFailed as failure:
            result = failure.result
        self._keep(candidate.case, result)
        if end or result.status != "ok":
            self.alive.pop(name).process.close()

    def _keep(self, case: Case, result: Result) -> None:
        """Add the result of a process, or replace what the same process had shown earlier."""
        several = self.results.setdefault(case.text, [])
        if candidate := self.alive.get(case.text):
            several[:] = several[:-1] if candidate.is_kept else several
            candidate.is_kept = True
        several.append(result)
        self.unsaved.append(case.text)


def axes_of(case: Case, machine: Machine, keep: Sequence[str] = (), also: Mapping[str, Sequence[str]] = {}) -> Axes:
    """Every axis with the values that the case does not have, without `keep` and with `also`."""
    params, usual = asdict(full_params(case)), dict(_usual_axes(case, machine, keep))
    known = {*TUNED_OPTIONS, *offered(case), *params}
    if unknown := [name for name in (*keep, *also) if name not in known]:
        raise UnknownName("setting", unknown[0], known)
    for name, texts in also.items():
        usual[name] = (*usual.get(name, ()), *map(parse_value, split_values(texts)))
        for value in usual[name]:
            check_case(changed(case, name, value))
    current = params | {name: setting(case, name) for name in (*TUNED_OPTIONS, *CASE_OPTIONS)}
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
        # In doubles from one to all that the machine runs at once, without what a process takes by itself.
        most, physical = max(1, machine.logical_cores), max(1, machine.physical_cores)
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
        if allowed < (os.cpu_count() or 1):  # a job that may use some of the cores
            most, physical = min(most, allowed), min(physical, allowed)
        counts = {1 << power for power in range(most.bit_length())} | {physical, most}
        given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        usual = int(given) if given.isdecimal() else physical
        yield "threads", tuple(sorted(counts - ({usual} if case.threads is None else set())))
    if on_cpu and machine.physical_cores > 2:  # else threads have nowhere else to go
        for name in ("bind", "wait"):
            yield name, (USUAL, *options.get(name, ("",))[1:])
    if not on_cpu and case.transfer in ("per-step", "pinned"):
        yield "transfer", ("per-step", "pinned")
    if hasattr(full_params(case), "loader_workers"):
        yield "loader_workers", tuple(count for count in (0, 1, 2, 4, 8) if count <= machine.logical_cores)


def variations(case: Case, axes: Axes) -> list[Case]:
    return [changed(case, name, value) for name, values in axes.items() for value in values]


def combinations(case: Case, axes: Axes) -> list[Case]:
    """All combinations of the settings that decide together which code is used."""
    chosen = [name for name in NUMBERS if axes.get(name)]
    found: dict[str, Case] = {}
    for values in product(*([setting(case, name), *axes[name]] for name in chosen)):
        other = case
        for name, value in zip(chosen, values, strict=True):
            other = changed(other, name, value)
        if "matmul" not in other.options or other.dtype == "float32":  # it applies to float32 alone
            found[other.text] = other
    return [other for other in found.values() if other != case]
