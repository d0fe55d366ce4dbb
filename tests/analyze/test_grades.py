"""Grades follow the interval and the load by others, and say what keeps them from being good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchmark.analyze.grades import Grade, grade_of, worst
from torchmark.records import Contention, Result


@pytest.mark.parametrize(
    ("half", "share", "word"),
    [
        (0.0499, 0.02, "good"),
        (0.051, 0.0, "fair"),
        (0.01, 0.021, "fair"),
        (0.1499, 0.10, "fair"),
        (0.16, 0.0, "poor"),
        (0.01, 0.11, "poor"),
    ],
)
def test_the_grade_follows_interval_and_load(
    make_result: Callable[..., Result], make_estimate: Callable[..., Any], half: float, share: float, word: str
) -> None:
    estimate = make_estimate(1.0, half, spread=0.01, contention=Contention(steal_share=share))
    found = grade_of(make_result(estimate=estimate))
    assert found
    assert found.word == word
    assert bool(found.cause) == bool(found.fix) == (word != "good")


@pytest.mark.parametrize("verdict", ["noisy", "warming", "slowing", "contended"])
def test_a_verdict_word_alone_spoils_no_grade(
    make_result: Callable[..., Result], make_estimate: Callable[..., Any], verdict: str
) -> None:
    assert grade_of(make_result(estimate=make_estimate(spread=0.01, verdict=verdict))) == Grade("good")


def test_what_cannot_be_graded(make_result: Callable[..., Result], make_estimate: Callable[..., Any]) -> None:
    assert grade_of(make_result(status="oom", estimate=None)) is None
    assert grade_of(make_result(estimate=make_estimate(verdict="as-published"))) is None
    unknown = grade_of(make_result(estimate=make_estimate(spread=None)))
    assert unknown
    assert unknown.text == "poor: few processes"
    nothing = grade_of(make_result(estimate=make_estimate(0.0, spread=0.01)))
    assert nothing
    assert nothing.word == "poor"


def test_the_worst_grade_counts() -> None:
    assert worst(["good", "poor", "fair"]) == "poor"
    assert worst(["good", "good"]) == "good"
