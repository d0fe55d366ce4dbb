"""One reading of a series: the same in every unit, and right about where it is steady."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from torchmark.analyze.statistics import Reading, Series, read_series
from torchmark.devices.streams import STATIONARY, stream

ESTIMANDS = pytest.mark.parametrize("estimand", ["median", "mean"])


def noise(seed: int, count: int, relative: float = 0.02) -> Series:
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
    assert scaled.precision == pytest.approx(plain.precision, rel=1e-6)


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
    readings = [read_series(noise(seed, 200), 0.01) for seed in range(100)]
    assert sum(reading.warming or reading.trending or reading.slowing for reading in readings) <= 2
    assert np.median([reading.cut for reading in readings]) <= 20
    assert sum(low <= 1 <= high for (_, low, high), *_ in readings) >= 90


@pytest.mark.parametrize("length", [10, 40, 80])
def test_a_slow_start_is_cut_off_and_is_no_slowing(length: int) -> None:
    times = noise(length, 300)
    times[:length] *= 1.3
    reading = read_series(times, 0.01)
    assert reading.cut >= length
    assert reading.interval.center == pytest.approx(1, abs=0.01)
    assert not reading.slowing


@pytest.mark.parametrize("length", [20, 60, 140])
def test_a_start_that_was_faster_is_a_slowdown_never_warm_up(length: int) -> None:
    times = noise(length, 300)
    times[:length] /= 1.2
    assert read_series(times, 0.01).slowing


def test_a_plateau_that_lasts_half_of_the_series_is_still_warming() -> None:
    times = noise(1, 200)
    times[:110] *= 1.3
    reading = read_series(times, 0.01)
    assert reading.warming or reading.trending


@pytest.mark.parametrize(("change", "slowing"), [(1.15, True), (1 / 1.15, False)])
def test_a_steady_movement_is_found_in_both_directions(change: float, slowing: bool) -> None:
    reading = read_series(noise(2, 400) * np.linspace(1, change, 400), 0.01)
    assert reading.slowing == slowing
    assert reading.slowing or reading.trending or reading.cut > 0


def test_a_movement_below_the_target_is_no_trend() -> None:
    times = noise(2, 2000, 0.005) * np.linspace(1, 1.004, 2000)
    assert decisions(read_series(times, 0.01))[2:] == (False, False)


def test_correlation_lowers_what_the_samples_are_worth() -> None:
    plain = read_series(noise(3, 500), 0.01)
    sticky = read_series(stream("sticky", np.random.default_rng(3), 500), 0.01)
    assert sticky.effective(500) < plain.effective(500) / 3
    assert sticky.evidence_time > 5 * plain.evidence_time
