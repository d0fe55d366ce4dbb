"""The stopping rule of the live comparison keeps its promises on streams whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import betaincinv

from torchmark.analyze.comparison import LOOKS, LiveSide, answer_of, live_differences, ratio_interval, why_stop
from torchmark.records import Machine, Result, parse_case

TRIALS, ROUNDS = 300, 6
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

# How far pairs of the same case differ, as logarithms: quiet, usual, restless, and now and then far off.
BETWEEN: dict[str, Draw] = {
    "quiet": lambda rng, count: rng.normal(0, 0.003, count),
    "usual": lambda rng, count: rng.normal(0, 0.01, count),
    "restless": lambda rng, count: rng.normal(0, 0.04, count),
    "heavy": lambda rng, count: 0.006 * rng.standard_t(3, count),
}


def play(between: Draw, ratio: float, seed: int, **rule: float) -> list[NDArray[np.float64]]:
    """Pairs as they come in until the rule stops; rounds differ by 1%, and every tenth of them is disturbed."""
    rng = np.random.default_rng(seed)
    centers = math.log(ratio) + between(rng, LOOKS[-1])
    pairs: list[NDArray[np.float64]] = []
    for center in centers:
        rounds = center + rng.normal(0, 0.01, ROUNDS)
        pairs.append(np.where(rng.random(ROUNDS) < 0.1, rounds + rng.choice([-0.3, 0.3], ROUNDS), rounds))
        if why_stop(pairs, **rule):
            return pairs
    raise AssertionError("it never stopped")


def surely_above(hits: int, share: float) -> bool:
    """Clopper-Pearson: the 99% lower bound of the true share lies above this one."""
    return hits > 0 and float(betaincinv(hits, TRIALS - hits + 1, 0.01)) > share


def surely_below(hits: int, share: float) -> bool:
    return hits < TRIALS and float(betaincinv(hits + 1, TRIALS - hits, 0.99)) < share


def answers(between: Draw, ratio: float) -> tuple[list[str], int]:
    """What is said in every trial, and how often the interval at the stop holds the truth."""
    said, held = [], 0
    for seed in range(TRIALS):
        found = ratio_interval(play(between, ratio, seed))
        assert found is not None
        said.append(answer_of(found.low, found.high))
        held += found.low <= ratio <= found.high
    return said, held


def test_the_intervals_of_all_looks_together_hold_the_truth() -> None:
    """So it does not matter what made one stop. Rounds say nothing here: only the spread between pairs is left."""
    rng, held = np.random.default_rng(7), 0
    for _ in range(TRIALS):
        pairs = [[center] * ROUNDS for center in rng.normal(0, 0.05, LOOKS[-1])]
        looks = [ratio_interval(pairs[:count]) for count in LOOKS]
        held += all(look is not None and look.low <= 1 <= look.high for look in looks)
    assert not surely_below(held, 0.95)


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_two_equal_sides_are_rarely_called_different(between: Draw) -> None:
    said, held = answers(between, 1.0)
    assert not surely_above(said.count("faster") + said.count("slower"), 0.05)
    assert not surely_below(held, 0.95)


def test_a_difference_that_changes_no_decision_is_not_called_one() -> None:
    """At the very edge of what counts, where every look is a chance to be wrong."""
    said, held = answers(BETWEEN["usual"], 1.01)
    assert not surely_above(said.count("slower"), 0.05)
    assert not surely_below(held, 0.95)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.05, "slower"), (1 / 1.05, "faster"), (1.0, "same")])
def test_a_real_difference_is_found_and_equality_too(ratio: float, verdict: str) -> None:
    said, _ = answers(BETWEEN["usual"], ratio)
    assert not surely_below(said.count(verdict), 0.9)


def test_a_target_is_reached_before_it_stops_and_however_clear_the_answer_was() -> None:
    pairs = play(BETWEEN["usual"], 1.5, 1, target=0.008)
    found = ratio_interval(pairs)
    assert found is not None
    assert (found.high - found.low) / 2 <= 0.008 * found.center
    assert len(pairs) > len(play(BETWEEN["usual"], 1.5, 1))


def test_a_limit_is_decided_before_the_answer_is_clear() -> None:
    ends = [play(BETWEEN["usual"], 1.045, seed, limit=0.05) for seed in range(20)]
    clear = [found for pairs in ends if why_stop(pairs, limit=0.05) == "clear" and (found := ratio_interval(pairs))]
    assert len(clear) >= 5
    assert all(found.low > 1.05 or found.high <= 1.05 for found in clear)
    assert max(map(len, ends)) > len(play(BETWEEN["usual"], 1.045, 0))


def test_it_stops_only_at_the_looks_and_at_the_last_for_any_is_known() -> None:
    wild = [[math.log(2.0) * (-1) ** number] * ROUNDS for number in range(LOOKS[-1])]
    stops = {count: why_stop(wild[:count]) for count in range(1, LOOKS[-1] + 1)}
    assert {count for count, why in stops.items() if why} == {LOOKS[-1]}
    calm = [[0.0, 0.001] * (ROUNDS // 2)] * LOOKS[-1]
    assert {count for count in range(1, LOOKS[-1] + 1) if why_stop(calm[:count])} == set(LOOKS)


pairs_of_logs = st.lists(
    st.lists(st.floats(-3, 3), min_size=2, max_size=6).map(lambda rounds: [*rounds]), min_size=2, max_size=12
)


@given(pairs_of_logs)
def test_swapping_the_sides_turns_everything_over(pairs: list[list[float]]) -> None:
    one, other = ratio_interval(pairs), ratio_interval([[-log for log in rounds] for rounds in pairs])
    assert one is not None
    assert other is not None
    assert (one.center, one.low, one.high) == pytest.approx((1 / other.center, 1 / other.high, 1 / other.low), rel=1e-6)
    turned = {"faster": "slower", "slower": "faster"}
    said = answer_of(one.low, one.high)
    near_an_edge = any(
        abs(math.log(end / edge)) < 1e-9 for end in (one.low, one.high) for edge in (1.01, 1.03, 1 / 1.01, 1 / 1.03)
    )
    assert near_an_edge or answer_of(1 / one.high, 1 / one.low) == turned.get(said, said)


@given(pairs_of_logs)
def test_the_ratio_lies_inside_its_interval_and_among_the_pairs(pairs: list[list[float]]) -> None:
    found = ratio_interval(pairs)
    assert found is not None
    assert found.low <= found.center <= found.high
    ratios = [math.exp(np.median(rounds)) for rounds in pairs]
    assert min(ratios) * (1 - 1e-9) <= found.center <= max(ratios) * (1 + 1e-9)


def test_one_pair_knows_no_interval() -> None:
    assert ratio_interval([[0.0, 0.1]]) is None


def side(text: str = "mlp/infer@cpu/float32", torch: str = "2.13.0", **changes: object) -> LiveSide:
    machine = Machine("a cpu", 2, 2, 8, "Linux", "3.11.7", torch=torch, torch_build="CPU")
    settings = {"threads": 2, "onednn": True} | dict(changes.pop("settings", {}))  # type: ignore[call-overload]
    return LiveSide(Result(parse_case(text), "ok", settings=settings), "python", machine, {"numpy": "2.1.0"}, **changes)  # type: ignore[arg-type]


def test_what_differs_is_named_once_with_both_values() -> None:
    a = side()
    b = side(
        "mlp/infer@cpu/float32+threads=1",
        "2.14.0",
        settings={"threads": 1, "onednn": False},
        environment={"OMP_NUM_THREADS": "1"},
    )
    found = {each.name: (each.a, each.b) for each in live_differences(a, b)}
    assert found == {
        "threads": ("2", "1"),
        "OMP_NUM_THREADS": ("-", "1"),
        "torch": ("2.13.0", "2.14.0"),
        "onednn": ("on", "off"),
    }
    assert live_differences(a, a) == ()


def test_a_side_that_failed_early_does_not_seem_to_differ_in_all_that_it_never_reported() -> None:
    broken = LiveSide(Result(parse_case("mlp/infer@cpu/float32"), "crashed"), "python", environment={"X": "1"})
    assert "torch" not in {each.name for each in live_differences(side(), broken)}
    assert "X" in {each.name for each in live_differences(side(), broken)}
