"""The arithmetic of both searches."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.comparison import break_even
from torchmark.analyze.pairing import changed, differing, setting
from torchmark.analyze.search import (
    Probe,
    Round,
    Settled,
    best_at_precision,
    best_of_each_precision,
    bracket,
    contributions,
    fit_memory,
    leads,
    most_efficient,
    next_contender,
    next_size,
    scores,
    settle,
    survivors,
    usual_step,
    verdict,
)
from torchmark.records import Case, Result, parse_case

DEFAULT = parse_case("resnet50/infer@cpu/float32")
times = st.dictionaries(st.sampled_from("abcdef"), st.floats(-3, 3), min_size=2)


@given(times, st.lists(st.floats(-2, 2), min_size=2, max_size=6))
def test_what_disturbs_a_whole_round_changes_no_distance(truth: dict[str, float], disturbances: list[float]) -> None:
    found, _ = scores([{name: value + extra for name, value in truth.items()} for extra in disturbances])
    first = next(iter(truth))
    for name in truth:
        assert found[name] - found[first] == pytest.approx(truth[name] - truth[first], abs=1e-9)


def test_contestants_that_never_met_are_compared_through_a_rival() -> None:
    found, _ = scores([{"a": 0.0, "b": 1.0}, {"b": 5.0, "c": 5.5}])
    assert found["c"] - found["a"] == pytest.approx(1.5)


def test_the_slower_half_goes_and_who_leads_stays_until_it_is_beaten() -> None:
    rounds = [{"old": 0.0, "a": -0.02, "b": -0.01, "c": 0.3, "d": 0.9}] * 2
    assert survivors(rounds, [*"abcd", "old"], "old") == ["a", "b", "old"]
    assert survivors(rounds, ["a", "b", "c", "d"], "old") == ["a", "b"]
    left_behind = [{"old": 0.5, "a": -0.2, "b": -0.19}] * 2
    assert survivors(left_behind, ["old", "a", "b"], "old") == ["a", "b"]
    assert survivors([{"a": 0.0, "b": 0.45, "c": 0.9}] * 2, ["a", "b", "c"], "old") == ["a"]


def decided(gain: float, spread: float, seed: int) -> tuple[str, int]:
    """The answer about a challenger that is so much faster, and after how many rounds it came."""
    noise = random.Random(seed)
    before: list[Round] = [{name: noise.gauss(0, spread) for name in "abc"} for _ in range(2)]
    rounds: list[Round] = []
    answer = "unsure"
    while answer == "unsure":
        rounds += [{"new": noise.gauss(-gain, spread), "old": noise.gauss(0, spread)} for _ in range(2)]
        answer = verdict(rounds, "new", "old", scores([*before, *rounds])[1])
    return answer, len(rounds)


def test_equal_contestants_are_almost_never_called_faster() -> None:
    answers = [decided(0.0, 0.03, seed) for seed in range(200)]
    assert sum(answer == "faster" for answer, _ in answers) <= 14
    assert sum(rounds for _, rounds in answers) < 6 * len(answers)  # who is not ahead has had its chance


@pytest.mark.parametrize(("gain", "answer"), [(0.3, "faster"), (-0.3, "not faster")])
def test_what_is_clear_is_seen_in_few_rounds(gain: float, answer: str) -> None:
    answers = [decided(gain, 0.03, seed) for seed in range(100)]
    assert {each for each, _ in answers} == {answer}
    assert sum(rounds for _, rounds in answers) < 3 * len(answers)


def test_a_small_gain_is_found_where_the_noise_is_smaller() -> None:
    assert sum(decided(0.05, 0.01, seed)[0] == "faster" for seed in range(100)) > 95


def test_nothing_is_decided_on_two_turns_each_alone() -> None:
    rounds = [{"new": -0.5 + extra, "old": extra} for extra in (0.0, 0.01)]
    assert verdict(rounds, "new", "old", scores(rounds)[1]) == "unsure"


@given(st.integers(2, 5), st.integers(3, 12), st.integers(0, 1000))
def test_the_noise_is_that_of_the_turns(contestants: int, count: int, seed: int) -> None:
    noise, names = random.Random(seed), "abcde"[:contestants]
    steady = [{name: place + extra for place, name in enumerate(names)} for extra in range(count)]
    assert scores(steady)[1].deviation == pytest.approx(0, abs=1e-9)
    noisy = [{name: value + noise.gauss(0, 0.05) for name, value in each.items()} for each in steady]
    found = scores(noisy)[1]
    assert found.freedom == (contestants - 1) * (count - 1)
    spread = statistics.stdev([each["a"] - each["b"] for each in noisy]) / math.sqrt(2)
    if contestants == 2:
        assert found.deviation == pytest.approx(spread)


def case_texts(*options: str) -> list[str]:
    return [parse_case(f"resnet50/infer@cpu/{each}").text for each in options]


def test_gains_along_the_way_multiply_up_to_the_whole() -> None:
    winner = parse_case("resnet50/infer@cpu/bfloat16+compile+isa=avx2+layout=channels-last")
    texts = case_texts(
        "float32", "float32+layout=channels-last", "bfloat16+isa=avx2", "bfloat16+isa=avx2+layout=channels-last"
    )
    found = dict(zip([*texts, winner.text], (0.0, -0.25, -0.5, -0.9, -1.0), strict=True))
    steps = contributions(DEFAULT, winner, found)
    assert [step.setting for step in steps] == ["channels-last", "bfloat16 + isa=avx2", "compile"]
    assert math.prod(step.gain for step in steps) == pytest.approx(math.e)


def test_what_was_only_tried_together_is_reported_together() -> None:
    winner = parse_case("resnet50/infer@cpu/bfloat16+threads=1+layout=channels-last")
    (step,) = contributions(DEFAULT, winner, {DEFAULT.text: 0.0, winner.text: -1.0})
    assert step.setting == "bfloat16 + channels-last + threads=1"


def test_the_best_in_the_same_numbers_and_of_each_kind() -> None:
    texts = case_texts("float32", "float32+layout=channels-last", "bfloat16", "float16", "float32+matmul=high")
    cases = {text: parse_case(text) for text in texts}
    found = dict(zip(texts, (0.0, -0.3, -0.2, 2.0, -0.25), strict=True))
    assert best_at_precision(DEFAULT, cases, found).text == texts[1]
    assert best_at_precision(DEFAULT, cases, {texts[0]: 0.0, texts[1]: -0.005}) == DEFAULT
    assert [case.text for case in best_of_each_precision(DEFAULT, cases, found)] == [texts[1], texts[4], texts[2]]


def test_compiling_pays_off_after_as_many_steps_as_it_costs(make_result: Callable[..., Result]) -> None:
    eager, compiled = make_result(center_s=0.3), make_result("mlp/infer@cpu/float32+compile", center_s=0.2)
    assert break_even(eager, compiled, 0.1) is None  # its first step was no longer
    compiled = make_result("mlp/infer@cpu/float32+compile", estimate=slow_start(compiled))
    assert break_even(eager, compiled, -0.1) is None
    found = break_even(eager, compiled, 0.1)
    assert found is not None
    assert found.steps == pytest.approx((20.0 - 2.7) / 0.1)


def slow_start(result: Result) -> object:
    from msgspec.structs import replace

    assert result.estimate
    return replace(result.estimate, center_s=0.2, first_step_s=20.0)


@given(
    st.sampled_from(["float32", "bfloat16"]), st.sampled_from(["off", "on"]), st.none() | st.integers(1, 8),
    st.dictionaries(st.sampled_from(["layout", "wait"]), st.sampled_from(["usual", "one"])),
)  # fmt: skip
def test_changing_what_differs_makes_one_case_of_the_other(dtype, compile_, threads, options) -> None:
    other = DEFAULT
    for name, value in {"dtype": dtype, "compile": compile_, "threads": threads, **options, "batch": 3}.items():
        other = changed(other, name, value)
    again = DEFAULT
    for name in differing(DEFAULT, other):
        again = changed(again, name, setting(other, name))
    assert again == other
    assert parse_case(other.text) == other


CORE = parse_case("resnet50/infer@cpu/float32+compile")
WINNER = parse_case("resnet50/infer@cpu/float32+compile+threads=1")
SHORT = parse_case("resnet50/infer@cpu/bfloat16+compile")


def bout(core: float, winner: float, case: Case = WINNER) -> list[dict[str, float]]:
    """Two rounds; times as fast as the default, and the machine has another pace in each."""
    own = {DEFAULT.text: 0.0, CORE.text: -math.log(core), case.text: -math.log(winner)}
    return [{text: value + pace for text, value in own.items()} for pace in (0.0, 0.3)]


def test_settings_that_show_their_worth_again_are_kept() -> None:
    settled = settle(DEFAULT, CORE, WINNER, [bout(2.0, 2.2), bout(2.0, 2.24), bout(1.98, 2.2)])
    assert (settled.leader, settled.rival) == (WINNER, CORE)
    assert settled.gain is not None
    assert settled.gain.low < 2.21 < settled.gain.high
    assert settled.behind == pytest.approx(math.log(1.11), abs=0.01)


@pytest.mark.parametrize("gains", [(2.2, 1.9, 2.1), (1.8, 1.9, 1.8), (2.01, 2.01, 2.01)])
def test_settings_that_do_not_are_left_out(gains: tuple[float, ...]) -> None:
    settled = settle(DEFAULT, CORE, WINNER, [bout(2.0, gain) for gain in gains])
    assert (settled.leader, settled.rival) == (CORE, WINNER)
    assert settled.gain is not None
    assert settled.gain.center == pytest.approx(2.0)


def test_what_is_confirmed_is_not_given_up_for_what_is_not() -> None:
    bouts = [bout(math.exp(core), math.exp(winner)) for core, winner in ((0.10, 0.08), (0.0, 0.085), (0.07, 0.078))]
    settled = settle(DEFAULT, CORE, WINNER, bouts)
    assert (settled.leader, settled.is_confirmed) == (WINNER, True)


def test_shorter_numbers_have_to_be_surer() -> None:
    gains = (2.05, 2.3, 2.2)
    assert settle(DEFAULT, CORE, WINNER, [bout(2.0, gain) for gain in gains]).leader == WINNER
    assert settle(DEFAULT, CORE, SHORT, [bout(2.0, gain, SHORT) for gain in gains]).leader == CORE


def test_where_nothing_is_doubted_or_too_little_was_seen_the_winner_stays() -> None:
    assert settle(DEFAULT, WINNER, WINNER, [bout(2.0, 1.0)] * 3).leader == WINNER
    assert settle(DEFAULT, DEFAULT, WINNER, [bout(2.0, 1.0)] * 3).leader == WINNER
    once = settle(DEFAULT, CORE, WINNER, [bout(2.0, 1.0)])
    assert (once.leader, once.gain, len(once.pairs)) == (WINNER, None, 1)
    assert settle(DEFAULT, CORE, WINNER, []).pairs == ()


def test_what_was_measured_anew_stands_where_that_puts_it() -> None:
    """Also a core that the search itself has never tried."""
    logs = ((-math.log(2.0),) * 2,) * 3
    settled = Settled(DEFAULT, CORE, logs, WINNER, 0.1)
    placed = settled.placed({DEFAULT.text: 5.0, WINNER.text: 1.0})
    assert placed == {
        CORE.text: pytest.approx(0.9),
        WINNER.text: pytest.approx(1.0),
        DEFAULT.text: pytest.approx(0.9 + math.log(2.0)),
    }
    assert Settled(DEFAULT, CORE).placed({DEFAULT.text: 5.0}) == {DEFAULT.text: 5.0}


def test_rounds_in_which_one_of_them_is_missing_are_left_out() -> None:
    rounds = bout(2.0, 2.2)
    del rounds[0][CORE.text]
    assert leads([rounds, [{WINNER.text: 0.0}]], WINNER, CORE) == ((pytest.approx(-math.log(1.1)),),)


def probe(size: int, fits: bool = True, peaks: tuple[float, ...] = (), rate: float | None = None) -> Probe:
    result = Result(parse_case("mlp/infer@cpu/float32"), "ok" if fits else "oom")
    return Probe(result.case.text, size, rate, peaks=peaks, result=result)


def search(memory, limit: float, highest: int, step: int | None = None) -> tuple[int, list[Probe]]:
    """The largest size that fits, as found, and all that was tried."""
    probes: list[Probe] = []
    while (size := next_size(probes, 1, highest, limit, step)) is not None:
        assert 1 <= size <= highest
        assert size not in {each.size for each in probes}
        held = memory(size)
        probes.append(probe(size, held <= limit, (held,) if held <= limit else ()))
    return max((each.size for each in probes if each.fits), default=0), probes


@given(
    fixed=st.floats(1, 1e3), per_item=st.floats(0.001, 300), bend=st.floats(1, 1.6), limit=st.floats(2, 5e4),
    highest=st.integers(1, 1 << 20), step=st.none() | st.integers(1, 5),
)  # fmt: skip
def test_it_ends_within_one_step_of_the_truth(fixed, per_item, bend, limit, highest, step) -> None:
    def memory(size: int) -> float:
        return max(fixed, 0.8 * fixed + per_item * size**bend)

    found, probes = search(memory, limit, highest, step)
    assert found == 0 or memory(found) <= limit
    beyond = found + (step or usual_step(found))
    assert beyond > highest or memory(beyond) > limit
    assert len(probes) <= 45


def test_a_straight_line_is_followed_to_its_end_in_few_probes() -> None:
    found, probes = search(lambda size: 500 + 3.0 * size, limit=8000, highest=1 << 20)
    assert 2500 - usual_step(2500) < found <= 2500
    assert len(probes) <= 15
    assert sum(not each.fits for each in probes) <= 3
    model = fit_memory(probes)
    assert model is not None
    assert (model.fixed, model.per_item) == (pytest.approx(500), pytest.approx(3))
    assert model.size_for(8000) == pytest.approx(2500)
    assert model.error < 1e-9


def test_where_memory_does_not_rise_there_is_no_line() -> None:
    flat = [probe(size, True, (100.0,)) for size in (1, 2, 4, 8)]
    assert fit_memory(flat) is None
    assert next_size(flat, 1, 1 << 20, 1000.0) == 16


def test_the_most_efficient_is_the_smallest_that_is_good_enough() -> None:
    rates = {1: 10.0, 2: 19.0, 4: 30.0, 8: 30.5, 16: 29.0}
    probes = [probe(size, True, (1.0,), rate) for size, rate in rates.items()]
    assert most_efficient(probes) == 4
    assert most_efficient([probe(1, False)]) is None


def test_what_comes_near_the_highest_rate_is_tried_once_more() -> None:
    rates = {1: 10.0, 2: 26.0, 4: 29.5, 8: 28.0, 16: 30.0, 32: 29.0}
    probes = [probe(size, True, (1.0,), rate) for size, rate in rates.items()]
    for wanted in (2, 4, 16):  # not 8 and 32: at any value of theirs, 4 is smaller
        assert next_contender(probes) == wanted
        probes = [replace(each, tries=2) if each.size == wanted else each for each in probes]
    assert next_contender(probes) is None
    assert next_contender([probe(1, False)]) is None


def test_what_fits_above_a_failure_is_luck() -> None:
    probes = [probe(size, size != 7) for size in (4, 6, 7, 8)]
    assert bracket(probes, 1, 100) == (6, 7)
    assert bracket([], 1, 100) == (0, 101)


def test_nothing_fits_at_all() -> None:
    found, probes = search(lambda size: 10.0 * size, limit=5, highest=100)
    assert (found, len(probes)) == (0, 1)
