"""Figures of any size are written as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.report import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.53e-3, "2.53 ms"),
        (0.9996e-3, "1.00 ms"),
        (999.4e-6, "999 µs"),
        (4.1e-8, "41.0 ns"),
        (3e-11, "0.0300 ns"),
        (1.0, "1.00 s"),
        (84.25, "84.2 s"),
        (600, "10.0 min"),
        (9000, "2.50 h"),
        (0, "0 ns"),
        (None, "-"),
        (float("inf"), "-"),
        (-1.0, "-"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (50600, "50.6k sample/s"),
        (999.7, "1.00k sample/s"),
        (0.1312, "0.131 sample/s"),
        (3.2e9, "3.20G sample/s"),
        (12, "12.0 sample/s"),
        (0, "-"),
        (None, "-"),
    ],
)
def test_rates(per_second: float | None, text: str) -> None:
    assert units.rate(per_second, "sample") == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.004, "±0.4%"), (0.0004, "±0.04%"), (0.000001, "±<0.01%"), (0.12, "±12%"), (0.0996, "±10%"), (50, "±>999%")],
)
def test_relative(share: float, text: str) -> None:
    assert units.relative(share) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(2 << 30, "2 GiB"), (3 << 29, "1.5 GiB"), (700 << 20, "700 MiB"), (2e9, "2.00 GB"), (5, "5 B")],
)
def test_a_limit_is_printed_as_people_write_it(count: float, text: str) -> None:
    assert units.memory_limit(count) == text


def test_sizes_and_work() -> None:
    assert units.size(1.81e9) == "1.81 GB"
    assert units.size(512) == "512 B"
    assert units.bandwidth(12.4e9) == "12.4 GB/s"
    assert units.arithmetic(1.81e12) == "1.81 TFLOP/s"
    assert units.factor(1.0234) == "1.023×"
    assert units.factor(26.04) == "26.0×"


@given(st.floats(1e-12, 1e15))
def test_no_figure_ever_shows_an_exponent_and_all_are_close(value: float) -> None:
    for text in (units.duration(value), units.rate(value, "x"), units.size(value), units.relative(value)):
        assert not re.search(r"\d[eE][+-]?\d", text)
        assert len(text) <= 24
    assert float(units.digits(value)) == pytest.approx(value, rel=6e-3, abs=1e-12)


@given(st.floats())
def test_nothing_is_too_odd_to_be_written(value: float) -> None:
    for write in (units.duration, units.size, units.bandwidth, units.arithmetic, units.relative, units.factor):
        assert write(value)
