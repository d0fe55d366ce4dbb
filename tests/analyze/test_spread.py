"""A run's spread between processes and Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from scipy.special import stdtr, stdtrit

from torchmark.analyze.spread import (
    LEAST_VARIANCES,
    Spread,
    critical,
    digamma,
    find_common,
    pooled,
    trigamma,
    trigamma_inverse,
    two_sided,
)

freedoms = st.floats(1, 1e6)


@given(st.floats(0, 200), freedoms)
def test_tails_are_those_of_scipy(t: float, freedom: float) -> None:
    assert two_sided(t, freedom)[0] == pytest.approx(2 * float(stdtr(freedom, -t)), rel=1e-8, abs=1e-250)


@given(freedoms, st.sampled_from([0.1, 0.05, 0.01, 1e-4, 1e-8]))
def test_the_critical_value_is_the_inverse(freedom: float, chance: float) -> None:
    assert critical(freedom, chance) == pytest.approx(-float(stdtrit(freedom, chance / 2)), rel=1e-8)
    assert two_sided(critical(freedom, chance), freedom)[0] == pytest.approx(chance, rel=1e-8)


def test_endless_freedom_is_the_normal_distribution() -> None:
    assert critical(math.inf, 0.05) == pytest.approx(1.959963984540054)
    assert two_sided(0.0, math.inf)[0] == 1.0


@given(st.floats(1e-3, 1e6))
def test_gamma_derivatives_agree_with_an_independent_computation(x: float) -> None:
    assert digamma(x) == pytest.approx(float(special.digamma(x)), rel=1e-9, abs=1e-9)
    assert trigamma(x) == pytest.approx(float(special.polygamma(1, x)), rel=1e-9)
    assert trigamma_inverse(trigamma(x)) == pytest.approx(x, rel=1e-6)


def test_too_few_cases_teach_nothing() -> None:
    assert find_common([Spread(1.0, 2.0)] * (LEAST_VARIANCES - 1)) is None
    assert find_common([Spread(0.0, 2.0)] * 100) is None


def test_cases_of_one_spread_share_it() -> None:
    random = np.random.default_rng(1)
    common = find_common([Spread(4.0 * random.chisquare(2) / 2, 2.0) for _ in range(500)])
    assert common is not None
    assert common.variance == pytest.approx(4.0, rel=0.2)
    assert common.freedom > 20  # as good as known


def test_cases_of_very_different_spreads_keep_their_own() -> None:
    random = np.random.default_rng(2)
    spreads = np.exp(random.normal(0, 3, 500))
    common = find_common([Spread(spread * random.chisquare(20) / 20, 20.0) for spread in spreads])
    assert common is not None
    assert common.freedom < 2
    moderated = pooled([Spread(1000.0, 20.0), common])
    assert 800 < moderated.variance < 1000
    assert moderated.freedom == pytest.approx(20 + common.freedom)


@given(st.lists(st.tuples(st.floats(1e-12, 1e6), st.floats(1, 50)), min_size=LEAST_VARIANCES, max_size=50))
def test_the_moderated_variance_lies_between_both(variances: list[tuple[float, float]]) -> None:
    common = find_common([Spread(*each) for each in variances])
    assert common is not None
    assert math.isfinite(common.variance)
    assert common.freedom <= math.fsum(freedom for _, freedom in variances) * (1 + 1e-9)
    for variance, freedom in variances:
        low, high = sorted((variance, common.variance))
        moderated = pooled([Spread(variance, freedom), common])
        assert low * (1 - 1e-9) <= moderated.variance <= high * (1 + 1e-9)
        assert moderated.freedom >= freedom


def test_with_it_intervals_of_three_processes_cover_and_are_narrower() -> None:
    """The promise behind it: 95% stays 95%, while three values alone need 4.3 standard errors and this needs fewer."""
    random = np.random.default_rng(3)
    spreads = 0.02 * np.sqrt(8 / random.chisquare(8, 2000))  # cases differ, as a prior of 8 degrees of freedom says
    logs = random.normal(0, spreads[:, None], (2000, 3))
    own = logs.var(axis=1, ddof=1)
    common = find_common([Spread(float(variance), 2.0) for variance in own])
    assert common is not None
    moderated = [pooled([Spread(float(variance), 2.0), common]) for variance in own]
    reach = [math.sqrt(each.variance / 3) * float(special.stdtrit(each.freedom, 0.975)) for each in moderated]
    covered = np.mean(np.abs(logs.mean(axis=1)) < reach)
    alone = np.median(np.sqrt(own / 3) * float(special.stdtrit(2, 0.975)))
    assert 0.93 < covered < 0.97
    assert np.median(reach) < 0.8 * alone
