"""Grades, and which results a conclusion may rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.analyze.grades import Grade, grade_of, is_contended, is_disturbed, with_spread, worst
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


@pytest.mark.parametrize(
    ("half", "spread", "taken", "disturbed"),
    [
        (0.02, 0.01, 0.0, False),
        (0.14, 0.05, 0.09, False),
        (0.02, None, 0.0, True),  # ±? says nothing about a repeat
        (0.30, 0.10, 0.0, True),
        (0.02, 0.01, 0.11, True),
    ],
)
def test_a_poor_figure_or_a_busy_machine_disturbs(
    make_result, make_estimate, half: float, spread: float | None, taken: float, disturbed: bool
) -> None:
    found = make_estimate(1e-3, half, spread=spread, contention=Contention(other_cpu_share=taken))
    assert is_disturbed(make_result(estimate=found)) is disturbed
    assert is_contended(found) is (taken > 0.1)


def test_no_figure_is_disturbed_and_a_published_one_is_not(make_result, make_estimate) -> None:
    assert is_disturbed(make_result(status="oom", estimate=None))
    assert not is_disturbed(make_result(estimate=make_estimate(verdict="as-published")))


def test_results_of_older_files_get_the_spread_of_their_processes_or_borrow_one(make_result, make_estimate) -> None:
    processes = tuple(make_estimate(center, spread=None) for center in (1e-3, 1.02e-3, 0.99e-3))
    several = make_result(estimate=make_estimate(1e-3, 0.04, spread=None), processes=processes)
    assert not is_disturbed(with_spread(several))
    single = make_result(estimate=make_estimate(1e-3, spread=None), processes=processes[:1])
    assert is_disturbed(with_spread(single))
    assert not is_disturbed(with_spread(single, 0.05))
    assert is_disturbed(with_spread(single, 0.10))
    known = replace(several, estimate=replace(several.estimate, spread=0.5))
    assert with_spread(known) is known
