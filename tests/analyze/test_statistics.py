"""A series of step times: centre, interval, warm-up and trend."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from scipy.special import bdtr

from torchmark.analyze.statistics import (
    Interval,
    Reading,
    Series,
    autocorrelation_time,
    below_median,
    marginal_error_cut,
    mean_interval,
    median_interval,
    rank_difference,
    ranks,
    read_series,
    tail_bound,
    trend_of,
    winsorised_logs,
)
from torchmark.devices.streams import STATIONARY, stream

TIMES = st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=200).map(np.array)
INTERVALS = pytest.mark.parametrize("interval", [median_interval, mean_interval])


def noise(seed: int, count: int, relative: float = 0.05) -> Series:
    return np.exp(relative * np.random.default_rng(seed).standard_normal(count))


def correlated(seed: int, count: int, correlation: float) -> Series:
    chance = np.random.default_rng(seed)
    values = np.empty(count)
    values[0] = chance.standard_normal()
    for index, shock in enumerate(chance.standard_normal(count - 1) * math.sqrt(1 - correlation**2)):
        values[index + 1] = correlation * values[index] + shock
    return values


def correlation_time(values: Series) -> float:
    return autocorrelation_time(below_median(values), values)


@INTERVALS
@given(times=TIMES, time=st.floats(1, 50))
def test_an_interval_encloses_its_centre(interval: Callable[..., Interval], times: Series, time: float) -> None:
    center, low, high = interval(times, time)
    rounding = 1e-9 * center
    assert low <= center + rounding
    assert center <= high + rounding
    assert all(map(math.isfinite, (low, center, high)))


@INTERVALS
@given(times=TIMES, time=st.floats(1, 50))
def test_another_unit_of_time_gives_the_same_interval_in_that_unit(
    interval: Callable[..., Interval], times: Series, time: float
) -> None:
    scaled = interval(times * 1024, time)
    assert scaled == pytest.approx([1024 * value for value in interval(times, time)], rel=1e-6)


@pytest.mark.parametrize("count", range(6, 100))
def test_the_ranks_of_the_median_promise_95_percent_and_no_closer_ranks_do(count: int) -> None:
    rank = int(median_interval(np.arange(float(count)), 1.0).low)
    assert 1 - 2 * float(bdtr(rank, count, 0.5)) >= 0.95
    assert rank < count / 2
    assert 1 - 2 * float(bdtr(rank + 1, count, 0.5)) < 0.95


@pytest.mark.parametrize("count", [6, 12, 30, 99, 100, 400])
def test_the_medians_interval_covers_as_often_as_it_says(count: int) -> None:
    found = [median_interval(noise(seed, count), 1.0) for seed in range(500)]
    assert sum(low <= 1 <= high for _, low, high in found) >= 0.93 * 500


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_samples_give_a_wide_interval_rather_than_a_wrong_one(count: int) -> None:
    found = [median_interval(noise(seed, count), 1.0) for seed in range(500)]
    assert sum(low <= 1 <= high for _, low, high in found) >= 0.93 * 500


def test_the_means_interval_covers_a_skewed_mean() -> None:
    draws = [np.random.default_rng(seed).exponential(1.0, 60) + 1 for seed in range(500)]
    assert sum(low <= 2 <= high for _, low, high in (mean_interval(draw, 1.0) for draw in draws)) >= 0.93 * 500


def test_correlation_widens_the_interval() -> None:
    times = noise(1, 400)
    plain, wide = median_interval(times, 1.0), median_interval(times, 9.0)
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx(3, rel=0.4)


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_the_bound_of_a_tail_lies_above_it_in_95_of_100_cases(share: float) -> None:
    chance = np.random.default_rng(4)
    bounds = [tail_bound(np.sort(chance.random(1000)), share) for _ in range(1000)]
    above = sum(bound is not None and bound >= share for bound in bounds)
    assert 0.93 * 1000 <= above < 1000


def test_too_few_samples_have_no_bound_of_a_tail() -> None:
    assert tail_bound(np.sort(noise(1, 20)), 0.99) is None
    assert tail_bound(np.array([1.0]), 0.9) is None


@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.9])
def test_the_correlation_time_is_that_of_the_process(correlation: float) -> None:
    known = (1 + correlation) / (1 - correlation)
    found = np.median([correlation_time(correlated(seed, 4000, correlation)) for seed in range(15)])
    assert 0.8 * known <= found <= 1.6 * known


def test_independent_samples_have_a_correlation_time_of_about_one() -> None:
    found = [correlation_time(noise(seed, 400)) for seed in range(100)]
    assert np.median(found) < 1.2
    assert min(found) >= 1


def test_a_constant_series_has_nothing_to_say() -> None:
    constant = np.full(50, 0.01)
    assert correlation_time(constant) == 1.0
    assert (trend_of(np.log(constant)).change, trend_of(np.log(constant)).z) == (0.0, 0.0)
    assert median_interval(constant, 1.0) == (0.01, 0.01, 0.01)
    assert mean_interval(constant, 1.0) == pytest.approx((0.01, 0.01, 0.01))


@given(st.integers(0, 10_000), st.integers(5, 90), st.floats(1.2, 20))
def test_the_end_of_a_slow_start_is_found(seed: int, length: int, factor: float) -> None:
    times = noise(seed, 200, 0.02)
    times[:length] *= factor
    assert length - 2 <= marginal_error_cut(winsorised_logs(times)) <= 100


def test_a_spike_does_not_steer_the_cut() -> None:
    times = noise(5, 200, 0.02)
    times[90] *= 1000
    assert marginal_error_cut(winsorised_logs(times)) < 20


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_ties_share_their_rank(values: list[int]) -> None:
    found = ranks(np.array(values, dtype=float))
    assert found.sum() == pytest.approx(len(values) * (len(values) + 1) / 2)
    assert all(
        (a < b) == (x < y) for a, x in zip(values, found, strict=True) for b, y in zip(values, found, strict=True)
    )


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 60))
def test_who_is_faster_does_not_depend_on_who_is_asked_first(seed: int, m: int, n: int) -> None:
    a, b = noise(seed, m), noise(seed + 1, n)
    assert rank_difference(a, b, 1.0) == pytest.approx(-rank_difference(b, a, 1.0))
    assert rank_difference(a / 100, b, 1.0) < 0 < rank_difference(a * 100, b, 1.0)


def test_a_rise_is_measured_and_a_coarse_clock_makes_none() -> None:
    rising = trend_of(np.log(noise(2, 300, 0.02) * np.linspace(1, 1.1, 300)))
    assert rising.z > 5
    assert rising.change == pytest.approx(0.1, abs=0.02)
    coarse = trend_of(np.log(np.round(noise(3, 300, 0.02), 1)))
    assert abs(coarse.z) < 3


def test_a_correlated_series_rarely_looks_like_a_trend() -> None:
    strengths = [abs(trend_of(0.03 * correlated(seed, 500, 0.8)).z) for seed in range(200)]
    assert sum(z > 2.8 for z in strengths) <= 10


ESTIMANDS = pytest.mark.parametrize("estimand", ["median", "mean"])


def quiet(seed: int, count: int, relative: float = 0.02) -> Series:
    return np.exp(relative * np.random.default_rng(seed).standard_normal(count))


def decisions(reading: Reading) -> tuple[int, bool, bool, bool]:
    return reading.cut, reading.warming, reading.trending, reading.slowing


@ESTIMANDS
@given(
    kind=st.sampled_from(sorted(STATIONARY)),
    seed=st.integers(0, 1000),
    count=st.integers(1, 300),
    scale=st.floats(1e-7, 1e3),
)
@trials(max_examples=40)
def test_another_unit_of_time_changes_no_decision(estimand, kind: str, seed: int, count: int, scale: float) -> None:
    times = stream(kind, np.random.default_rng(seed), count)
    plain, scaled = read_series(times, 0.01, estimand), read_series(times * scale, 0.01, estimand)
    assert decisions(plain) == decisions(scaled)
    assert scaled.interval == pytest.approx([value * scale for value in plain.interval], rel=1e-6)
    assert scaled.interval.precision == pytest.approx(plain.interval.precision, rel=1e-6)


@ESTIMANDS
@given(
    times=st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=120).map(np.array), block_size=st.sampled_from([1, 50])
)
def test_any_series_gets_a_sane_reading(estimand, times: Series, block_size: int) -> None:
    reading = read_series(times, 0.01, estimand, block_size)
    center, low, high = reading.interval
    assert low <= center * (1 + 1e-9)
    assert center <= high * (1 + 1e-9)
    assert 0 <= reading.cut <= len(times) // 2
    assert reading.time >= 1
    assert 0 < reading.effective(len(times)) <= len(times)


def test_a_quiet_series_is_kept_and_nothing_is_held_against_it() -> None:
    readings = [read_series(quiet(seed, 200), 0.01) for seed in range(100)]
    assert sum(reading.warming or reading.trending or reading.slowing for reading in readings) <= 2
    assert np.median([reading.cut for reading in readings]) <= 20
    assert sum(low <= 1 <= high for (_, low, high), *_ in readings) >= 90


@pytest.mark.parametrize("length", [10, 40, 80])
def test_a_slow_start_is_cut_off_and_is_no_slowing(length: int) -> None:
    times = quiet(length, 300)
    times[:length] *= 1.3
    reading = read_series(times, 0.01)
    assert reading.cut >= length
    assert reading.interval.center == pytest.approx(1, abs=0.01)
    assert not reading.slowing


@pytest.mark.parametrize("length", [20, 60, 140])
def test_a_start_that_was_faster_is_a_slowdown_never_warm_up(length: int) -> None:
    times = quiet(length, 300)
    times[:length] /= 1.2
    assert read_series(times, 0.01).slowing


def test_a_plateau_that_lasts_half_of_the_series_is_still_warming() -> None:
    times = quiet(1, 200)
    times[:110] *= 1.3
    reading = read_series(times, 0.01)
    assert reading.warming or reading.trending


@pytest.mark.parametrize(("change", "slowing"), [(1.15, True), (1 / 1.15, False)])
def test_a_steady_movement_is_found_in_both_directions(change: float, slowing: bool) -> None:
    reading = read_series(quiet(2, 400) * np.linspace(1, change, 400), 0.01)
    assert reading.slowing == slowing
    assert reading.slowing or reading.trending or reading.cut > 0


def test_a_movement_below_the_target_is_no_trend() -> None:
    times = quiet(2, 2000, 0.005) * np.linspace(1, 1.004, 2000)
    assert decisions(read_series(times, 0.01))[2:] == (False, False)


def test_correlation_lowers_what_the_samples_are_worth() -> None:
    plain = read_series(quiet(3, 500), 0.01)
    sticky = read_series(stream("sticky", np.random.default_rng(3), 500), 0.01)
    assert sticky.effective(500) < plain.effective(500) / 3
    assert sticky.evidence_time > 5 * plain.evidence_time
