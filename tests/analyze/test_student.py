"""Student's t is the one that the world knows, also where freedom is a fraction and tails are thin."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from torchmark.analyze.spread import critical, two_sided

freedoms = st.floats(1, 1e6)


@given(st.floats(0, 200), freedoms)
def test_tails_are_those_of_scipy(t: float, freedom: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(2 * float(stdtr(freedom, -t)), rel=1e-8, abs=1e-250)


@given(freedoms, st.sampled_from([0.1, 0.05, 0.01, 1e-4, 1e-8]))
def test_the_critical_value_is_the_inverse(freedom: float, chance: float) -> None:
    assert critical(freedom, chance) == pytest.approx(-float(stdtrit(freedom, chance / 2)), rel=1e-8)
    assert two_sided(critical(freedom, chance), freedom) == pytest.approx(chance, rel=1e-8)


def test_endless_freedom_is_the_normal_distribution() -> None:
    assert critical(math.inf, 0.05) == pytest.approx(1.959963984540054)
    assert two_sided(0.0, math.inf) == 1.0
