"""A case that was kept going: its ends are told apart by more than chance, and the slope is that of the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.analyze.jobs import end_counts, sustained_of


def played(make_estimate, samples: np.ndarray, **changes):
    return make_estimate(samples_s=tuple(samples.tolist()), duration_s=float(samples.sum()), **changes)


def noisy(times: np.ndarray, seed: int = 1) -> np.ndarray:
    return times * np.exp(0.02 * np.random.default_rng(seed).standard_normal(len(times)))


def test_a_slow_down_is_found_with_its_size_and_its_cause(make_estimate) -> None:
    steps = noisy(np.where(np.arange(10_000) < 4_000, 0.010, 0.012))
    found = sustained_of(played(make_estimate, steps, verdict="throttled", evidence=("the clock fell",)))
    assert found is not None
    assert (found.window_s, found.cause) == (10.0, "the clock fell")
    assert found.first_s == pytest.approx(0.010, rel=0.01)
    assert found.last_s / found.first_s - 1 == pytest.approx(0.2, abs=0.01)
    assert found.interval[0] < 0.2 < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.02


def test_the_slope_is_told_for_a_minute(make_estimate) -> None:
    at = np.linspace(0, 120, 12_000)
    found = sustained_of(played(make_estimate, noisy(0.010 * (1 + 0.03 * at / 60)), verdict="slowing"))
    assert found is not None
    assert found.slope == pytest.approx(0.03, abs=0.004)
    assert found.cause is None


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_case_has_no_change_beyond_its_interval(make_estimate, seed: int) -> None:
    found = sustained_of(played(make_estimate, noisy(np.full(12_000, 0.01), seed), verdict="stable"))
    assert found is not None
    assert found.interval[0] <= 0.001
    assert found.interval[1] >= -0.001
    assert abs(found.slope) < 0.002


def test_a_spike_moves_neither_end(make_estimate) -> None:
    steps = np.full(1_000, 0.02)
    steps[[3, 990]] = 5.0
    found = sustained_of(played(make_estimate, steps))
    assert found is not None
    assert (found.first_s, found.last_s, found.slope) == (0.02, 0.02, 0.0)


def test_too_few_samples_have_no_two_ends(make_estimate) -> None:
    assert sustained_of(played(make_estimate, np.full(11, 1.0))) is None


@given(st.lists(st.floats(1e-4, 10.0), min_size=12, max_size=200), st.floats(0.0, 1.0))
def test_both_ends_always_have_samples(samples: list[float], share: float) -> None:
    values = np.array(samples)
    seconds = float(values.sum())
    early, late = end_counts(values, seconds, share * seconds)
    assert 6 <= early <= len(values)
    assert 6 <= late <= len(values)
