"""The search on contestants whose speed is known: it finds real differences, and noise makes no winner."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from torchmark.analyze.pairing import USUAL, setting
from torchmark.errors import TorchmarkError, UnknownName
from torchmark.measure.messages import Measured, Opened, Prepared, Stepped, SumUp, TakeTurn, Turned
from torchmark.measure.process import ProcessFailed
from torchmark.records import Case, Contention, Estimate, Machine, Result, Trend, Work, parse_case
from torchmark.studies import tune as tune_study
from torchmark.studies.study import Completed
from torchmark.studies.tune import PAIRS, News, Tune, TuneOptions, axes_of

CASE = parse_case("resnet50/infer@cpu/float32")
MACHINE = Machine("a processor", 2, 2, 16, "Linux 6.1", "3.11.7")
Speed = Callable[[Case], float]


class Scripted:
    """A side that answers as a real one does, at once: its steps take what is said, give or take the noise."""

    opened: list[str] = []  # noqa: RUF012 -- emptied by every test
    busy: list[float] = []  # noqa: RUF012 -- what other programs take while each of the next processes works
    alive = 0
    make: Callable[[Case], Scripted]

    def __init__(self, case: Case, speed: Speed, noise: random.Random, spread: float, luck: float = 0.0) -> None:
        self._case, self._step_s, self._noise, self._spread = case, 0.01 * speed(case), noise, spread
        self._step_s *= math.exp(noise.gauss(0, luck))  # of this process
        Scripted.opened.append(case.text)
        Scripted.alive += 1

    def send(self, order: object) -> None:
        self._told = order

    def receive(self, kind: type[Any], patience_s: float | None = None) -> Any:
        if math.isnan(self._step_s):
            reason = "it was ended by SIGILL during first step"
            raise ProcessFailed(self._case.text, Result(self._case, "crashed", reason=reason), ())
        if kind is Stepped and patience_s is not None and 2 * self._step_s > patience_s:
            raise ProcessFailed(self._case.text, Result(self._case, "timeout", reason="no answer"), ())
        first_s = self._step_s if self._case.compile == "off" else 10.0
        items = float(self._case.params.get("batch", 32))
        answers = {
            Opened: None,
            Stepped: Stepped(first_s, self._step_s, items),
            Prepared: Prepared(self._step_s, 1, items),
        }
        return answers[kind]

    def ask(self, order: object, _: type[Any]) -> Any:
        if isinstance(order, SumUp):
            seen = Estimate(
                self._step_s, self._step_s, self._step_s, "median", "stable",
                first_step_s=self._step_s if self._case.compile == "off" else 10.0,
                effective_samples=9.0, warmup_cut=0, trend=Trend(0.0, 0.0), samples_s=(self._step_s,) * 9,
                contention=Contention(other_cpu_share=Scripted.busy.pop(0) if Scripted.busy else 0.0),
            )  # fmt: skip
            result = Result(self._case, "ok", estimate=seen, processes=(seen,), work=Work(32, "image"))
            return Measured(result)
        assert isinstance(order, TakeTurn)
        return Turned(self._step_s * math.exp(self._noise.gauss(0, self._spread)))

    def close(self) -> None:
        Scripted.alive -= 1


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_study, "Process", lambda case, **_: Scripted.make(case))


def tune(request: TuneOptions, make: Callable[[Case], Scripted]) -> Tune:
    """A search with such processes."""
    Scripted.opened.clear()
    Scripted.make = staticmethod(make)  # type: ignore[method-assign,assignment]
    return Tune(request, MACHINE)


def search(
    speed: Speed, spread: float = 0.01, seed: int = 0, case: Case = CASE, luck: float = 0.0, **choices: Any
) -> Tune:
    noise = random.Random(seed)
    request = TuneOptions(case, **choices, seed=seed)
    found = tune(request, lambda case: Scripted(case, speed, noise, spread, luck))
    list(found.events())
    assert Scripted.alive == 0
    return found


def factors(**times: float) -> Speed:
    """Step time as a product: what each setting multiplies it by."""

    def speed(case: Case) -> float:
        taken = 1.0
        for name, factor in times.items():
            key, _, value = name.partition("_is_")
            if str(setting(case, key)).replace("-", "_") == value:
                taken *= factor
        return taken

    return speed


def test_a_leader_and_the_default_are_stored_before_they_are_announced() -> None:
    speed, noise = factors(dtype_is_bfloat16=0.5, compile_is_on=0.8), random.Random(0)
    announced: list[str] = []
    stored: list[str] = []
    request = TuneOptions(CASE)
    found = tune(request, lambda case: Scripted(case, speed, noise, 0.01))
    for event in found.events():
        if isinstance(event, Completed):
            stored.append(event.result.case.text)
        elif isinstance(event, News) and event.event == "leads":
            announced.append(event.case.text)
            assert {CASE.text, event.case.text} <= set(stored)
    assert announced
    opened = Counter(Scripted.opened)
    assert {text: len(result.processes) for text, result in found.results().items()} == opened


def test_what_helps_is_found_with_what_each_part_brought() -> None:
    speed = factors(dtype_is_bfloat16=0.5, dtype_is_float16=50, layout_is_channels_last=0.75, compile_is_on=0.8)
    study = search(speed)
    tuned = study.outcome()
    assert tuned.winner.text == "resnet50/infer@cpu/bfloat16+compile+layout=channels-last"
    assert tuned.same_precision is not None
    assert tuned.same_precision.text == "resnet50/infer@cpu/float32+compile+layout=channels-last"
    assert tuned.pairs == PAIRS
    assert tuned.low is not None
    assert tuned.high is not None
    assert tuned.low <= 1 / (0.5 * 0.75 * 0.8) <= tuned.high
    brought = {each.setting: each.gain for each in tuned.contributions}
    assert brought == {
        "bfloat16": pytest.approx(2, rel=0.05),
        "channels-last": pytest.approx(4 / 3, rel=0.05),
        "compile": pytest.approx(1.25, rel=0.05),
    }
    assert tuned.break_even is not None
    assert tuned.break_even.steps == pytest.approx((10 - 0.00375) / (0.00375 * 0.2), rel=0.05)
    dropped = [result for result in study.results().values() if result.status == "skipped"]
    assert [result.case.dtype for result in dropped] == ["float16"]  # once: its other layouts are not tried any more
    assert "dropped: its first warm step of " in (dropped[0].reason or "")


def test_a_setting_may_only_help_together_with_a_shorter_number() -> None:
    def speed(case: Case) -> float:
        short, last = case.dtype == "bfloat16", case.options.get("layout") == "channels-last"
        return {(False, False): 1.0, (False, True): 1.1, (True, False): 1.2, (True, True): 0.4}[short, last]

    assert search(speed).outcome().winner.text == "resnet50/infer@cpu/bfloat16+layout=channels-last"


@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_noise_crowns_no_one(spread: float) -> None:
    winners = [search(lambda _: 1.0, spread, seed).outcome().winner for seed in range(30)]
    assert sum(winner != CASE for winner in winners) <= 2  # beyond the search's own test, five new pairs must agree


@pytest.mark.parametrize("luck", [0.0, 0.03, 0.05])
def test_the_luck_of_a_process_is_not_taken_for_a_setting(luck: float) -> None:
    """Processes of one case differ in pace; the winner must not carry settings that owe their lead to that."""
    speed, wanted = factors(layout_is_channels_last=0.75, compile_is_on=0.6), "+compile+layout=channels-last"
    winners = [search(speed, seed=seed, luck=luck).outcome().winner.text for seed in range(60)]
    assert sum(winner != f"{CASE.text}{wanted}" for winner in winners) <= 9


def test_what_brings_little_but_surely_is_kept() -> None:
    speed = factors(layout_is_channels_last=0.75, threads_is_1=0.9)
    tuned = search(speed).outcome()
    assert tuned.winner.text == f"{CASE.text}+threads=1+layout=channels-last"
    brought = {each.setting: each.gain for each in tuned.contributions}
    assert brought["threads=1"] == pytest.approx(1 / 0.9, rel=0.03)


def test_one_slow_moment_drops_no_one() -> None:
    """What is dropped at its first step is held against how fast the best is at that very time."""
    paces = iter([1.0, *[4.0] * 3])  # the machine is slower after the default has entered

    class Disturbed(Scripted):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._step_s *= 6 * next(paces, 1.0)

        def ask(self, order: object, kind: type[Any]) -> Any:
            pace = 4.0 if isinstance(order, TakeTurn) and len(Scripted.opened) <= 3 else 1.0
            answer = super().ask(order, kind)
            return Turned(answer.step_s * pace) if isinstance(order, TakeTurn) else answer

    request = TuneOptions(CASE, ("dtype", "compile", "threads", "gradients"))
    noise = random.Random(0)
    found = tune(request, lambda case: Disturbed(case, lambda _: 1.0, noise, 0.01))
    list(found.events())
    assert {result.status for result in found.results().values()} == {"ok"}


def test_what_is_kept_is_never_changed() -> None:
    speed = factors(dtype_is_bfloat16=0.5, layout_is_channels_last=0.7)
    tuned = search(speed, keep=["dtype", "threads"]).outcome()
    assert tuned.winner.text == "resnet50/infer@cpu/float32+layout=channels-last"
    assert not any("bfloat16" in text or "threads" in text for text in Scripted.opened)


def test_instructions_that_this_machine_is_limited_to_are_part_of_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines to paste are run without torchmark, which knows the limit."""
    speed = factors(dtype_is_bfloat16=0.5)
    assert search(speed).outcome().winner.text == "resnet50/infer@cpu/bfloat16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert search(speed).outcome().winner.text == "resnet50/infer@cpu/bfloat16+isa=avx512-core-bf16"
    assert search(speed, keep=["isa"]).outcome().winner.text == "resnet50/infer@cpu/bfloat16"


def test_a_number_format_that_kills_its_process_costs_only_itself() -> None:
    study = search(lambda case: math.nan if case.dtype == "bfloat16" else 1.0)
    assert study.outcome().winner == CASE
    crashed = [result for result in study.results().values() if result.status == "crashed"]
    assert [result.case.text for result in crashed] == ["resnet50/infer@cpu/bfloat16"]


def test_several_small_gains_are_tried_together() -> None:
    speed = factors(threads_is_1=0.8, gradients_is_no_grad=0.9)
    assert search(speed).outcome().winner.text == "resnet50/infer@cpu/float32+threads=1+gradients=no-grad"


def test_a_larger_batch_is_compared_by_the_item() -> None:
    def speed(case: Case) -> float:
        return {32: 1.0, 64: 1.5, 128: 4.5}[int(case.params.get("batch", 32))]

    tuned = search(speed, also={"batch": ["64,128"]}).outcome()
    assert tuned.winner.params == {"batch": 64}
    assert tuned.gain == pytest.approx(4 / 3, rel=0.03)


def test_a_default_that_does_not_run_is_reported() -> None:
    with pytest.raises(TorchmarkError, match="itself ended as crashed: it was ended by SIGILL"):
        search(lambda _: math.nan)


def test_a_budget_that_ends_before_the_default_runs_is_reported() -> None:
    request = TuneOptions(CASE, budget_s=1.0)
    study = Tune(request, MACHINE)
    study.began -= 2.0
    with pytest.raises(TorchmarkError, match="the budget was spent before"):
        list(study.events())


def test_what_the_case_has_chosen_can_be_undone() -> None:
    chosen = parse_case("resnet50/infer@cpu/float32+compile+threads=2+layout=channels-last+gradients=no-grad")
    axes = axes_of(chosen, MACHINE)
    assert (axes["compile"], axes["layout"], axes["gradients"]) == (("off",), (USUAL,), (USUAL,))
    tuned = search(factors(compile_is_on=2.0, gradients_is_no_grad=2.0, threads_is_2=2.0), case=chosen).outcome()
    assert tuned.winner.text == "resnet50/infer@cpu/float32+threads=1+layout=channels-last"


def test_values_that_are_none_are_reported_before_anything_starts() -> None:
    for also, words in (({"batch": ["abc"]}, "batch"), ({"dtype": ["foo"]}, "foo"), ({"threads": ["0"]}, "threads")):
        with pytest.raises(TorchmarkError, match=words):
            axes_of(CASE, MACHINE, also=also)


def test_axes_know_the_workload_and_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    axes = axes_of(CASE, MACHINE)
    assert axes["dtype"] == ("bfloat16", "float16")
    assert axes["layout"] == ("channels-last",)
    assert axes["threads"] == (1,)
    assert axes_of(CASE, Machine("many", 40, 80, 64, "", ""))["threads"] == (1, 2, 4, 8, 16, 32, 64, 80)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert axes_of(CASE, MACHINE)["threads"] == (2,)
    assert axes_of(parse_case(f"{CASE.text}+threads=1"), MACHINE)["threads"] == (2,)
    assert "bind" not in axes
    assert USUAL not in axes_of(CASE, Machine("many", 8, 16, 16, "", ""))["bind"]
    assert axes_of(parse_case("mlp/train@cpu/float32"), MACHINE).keys() == {"dtype", "compile", "threads"}
    with pytest.raises(UnknownName, match="unknown setting 'colour'"):
        axes_of(CASE, MACHINE, keep=["colour"])


def test_a_larger_batch_may_take_longer() -> None:
    """Its steps are longer than the patience with the default's, and each of its items is quicker."""

    def speed(case: Case) -> float:
        return 2000.0 if case.params.get("batch") == 256 else 300.0

    tuned = search(speed, keep=("dtype", "compile", "layout"), also={"batch": ["256"]}).outcome()
    assert tuned.winner.params == {"batch": 256}


def test_compiling_pays_off_as_the_first_that_was_compiled_says() -> None:
    """A winner with one setting more was compiled when most of it was in the cache, and has no twin."""
    speed = factors(dtype_is_float16=50, dtype_is_bfloat16=2, compile_is_on=0.5, threads_is_1=0.5)
    tuned = search(speed).outcome()
    assert tuned.winner.text == "resnet50/infer@cpu/float32+compile+threads=1"
    assert tuned.break_even is not None
    assert tuned.break_even.saved_s == pytest.approx(0.005, rel=0.05)


def test_what_was_measured_anew_corrects_what_the_search_saw() -> None:
    """The one process that the default has in the search may be a slow one; those of the confirmation count, too."""

    def speed(case: Case) -> float:
        is_slow = case == CASE and Scripted.opened.count(CASE.text) == 0
        return 1.5 if is_slow else factors(compile_is_on=0.5)(case)

    tuned = search(speed, keep=["dtype", "layout"]).outcome()
    assert tuned.gain == pytest.approx(2, rel=0.05)
    assert tuned.relative[tuned.winner.text] == pytest.approx(tuned.gain)
    assert math.prod(each.gain for each in tuned.contributions) == pytest.approx(tuned.relative[tuned.winner.text])


@pytest.mark.parametrize("interrupted", [1, 2, 3])
def test_an_interrupt_leaves_what_is_known(interrupted: int) -> None:
    """Wherever it comes: here as soon as another one leads, before the rounds that showed it are put away."""
    speed = factors(dtype_is_bfloat16=0.5, compile_is_on=0.5, threads_is_1=0.5)
    noise = random.Random(0)
    request = TuneOptions(CASE)
    found = tune(request, lambda case: Scripted(case, speed, noise, 0.01))
    events = found.events()
    leads = (event.case for event in events if isinstance(event, News) and event.event == "leads")
    leader = [next(leads) for _ in range(interrupted)][-1]
    events.close()  # type: ignore[attr-defined]  # as an interrupt does
    tuned = found.outcome()
    assert tuned.stopped == "interrupted"
    assert tuned.unconfirmed == leader
    assert tuned.winner == CASE  # nothing is recommended that was not confirmed


def test_what_was_found_is_stored_as_soon_as_a_process_has_ended() -> None:
    noise, speed = random.Random(1), factors(dtype_is_bfloat16=0.5, dtype_is_float16=50)
    request = TuneOptions(CASE)
    found = tune(request, lambda case: Scripted(case, speed, noise, 0.01))
    stored = [event.result for event in found.events() if isinstance(event, Completed)]
    assert {result.case.text for result in stored} == found.results().keys()
    assert max(len(result.processes) for result in stored if result.case == CASE) == 1 + PAIRS


def search_with(pace: Callable[[], float] = lambda: 1.0, busy_pairs: int = 0, **settings: Any) -> Tune:
    """A search for one setting that halves the time, in which the fresh pairs of the end are disturbed."""

    class Disturbed(Scripted):
        def ask(self, order: object, kind: type[Any]) -> Any:
            answer = super().ask(order, kind)
            return Turned(answer.step_s * pace()) if isinstance(order, TakeTurn) and confirming else answer

    confirming: list[News] = []
    noise, speed = random.Random(0), factors(layout_is_channels_last=0.5)
    request = TuneOptions(CASE, ("dtype", "compile", "threads", "gradients"), **settings)
    found = tune(request, lambda case: Disturbed(case, speed, noise, 0.01))
    for event in found.events():
        if isinstance(event, News) and event.event == "confirms" and not confirming:
            Scripted.busy[:] = [0.3] * 2 * busy_pairs
            confirming.append(event)
    Scripted.busy.clear()
    return found


def test_pairs_during_which_other_programs_were_busy_are_taken_again() -> None:
    tuned = search_with(busy_pairs=2).outcome()
    assert (tuned.pairs, tuned.disturbed) == (PAIRS, 2)
    assert tuned.winner.text == f"{CASE.text}+layout=channels-last"


def test_a_machine_that_is_always_busy_crowns_no_one() -> None:
    tuned = search_with(busy_pairs=50).outcome()
    assert (tuned.pairs, tuned.disturbed, tuned.gain) == (0, PAIRS, None)
    assert tuned.winner == CASE
    assert tuned.unconfirmed
    assert tuned.unconfirmed.text == f"{CASE.text}+layout=channels-last"


def test_an_absurdly_wide_interval_crowns_no_one() -> None:
    paces = random.Random(3)
    tuned = search_with(lambda: math.exp(paces.gauss(0, 2.0))).outcome()
    assert tuned.low
    assert tuned.high
    assert tuned.high > 2 * tuned.low
    assert tuned.winner == CASE


def test_the_budget_holds_even_if_nothing_is_confirmed_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing takes 4 s and a turn 1 s, by a clock that only they move."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    class Slow(Scripted):
        def receive(self, kind: type[Any], patience_s: float | None = None) -> Any:
            clock[0] += 4.0 if kind is Prepared else 0.0
            return super().receive(kind, patience_s)

        def ask(self, order: object, kind: type[Any]) -> Any:
            clock[0] += 1.0 if isinstance(order, TakeTurn) else 0.0
            return super().ask(order, kind)

    noise, speed = random.Random(0), factors(dtype_is_bfloat16=0.5, layout_is_channels_last=0.7)
    for budget_s in (20.0, 60.0, 90.0):
        clock[0] = 0.0
        request = TuneOptions(CASE, budget_s=budget_s)
        found = tune(request, lambda case: Slow(case, speed, noise, 0.01))
        list(found.events())
        assert clock[0] <= budget_s + 5.0  # one process that is being prepared, or one turn
        assert found.outcome().stopped == "budget"
