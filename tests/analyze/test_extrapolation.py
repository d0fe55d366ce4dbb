"""From a share of the steps to all of them: what happened once is counted once, and the truth lies in the interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.analyze.jobs import WARM_UP, extrapolate, later_step, overheads
from torchmark.records import Laps

seconds = st.floats(1e-6, 1e3)


@given(st.lists(seconds, min_size=2, max_size=50), seconds)
def test_what_was_run_whole_is_its_sum(steps: list[float], moving_s: float) -> None:
    job = extrapolate([Laps("moving", [moving_s]), Laps("step", steps, len(steps), is_work=True)])
    assert job.whole
    assert job.seconds == pytest.approx(moving_s + sum(steps))
    assert job.low_s == pytest.approx(job.high_s)


@given(seconds, seconds, seconds, st.integers(5, 40), st.integers(41, 10_000))
def test_the_first_step_and_what_happens_once_are_counted_once(
    moving_s: float, first_s: float, later_s: float, taken: int, published: int
) -> None:
    steps = [first_s] + [later_s] * (taken - 1)
    job = extrapolate([Laps("moving", [moving_s]), Laps("step", steps, published, is_work=True)])
    assert not job.whole
    assert job.seconds == pytest.approx(moving_s + first_s + (published - 1) * later_s)
    assert sum(stage.steps for stage in job.stages) == published + 1


def test_a_warm_up_of_many_steps_does_not_grow_with_the_loop() -> None:
    quiet = np.random.default_rng(0).normal(1.0, 0.01, 1000)
    quiet[:20] *= np.linspace(5.0, 1.5, 20)
    part, whole = (Laps("step", list(quiet[:count]), 1000, is_work=True) for count in (100, 1000))
    assert extrapolate([part]).seconds == pytest.approx(extrapolate([whole]).seconds, rel=0.02)
    assert later_step(part).center_s == pytest.approx(1.0, rel=0.01)
    assert overheads([part])[WARM_UP] == pytest.approx(float((quiet[:20] - 1).sum()), rel=0.1)


def test_a_start_that_was_faster_is_no_warm_up() -> None:
    slowing = [1.0] * 30 + [2.0] * 70
    job = extrapolate([Laps("step", slowing, 1000, is_work=True)])
    assert job.seconds == pytest.approx(1 + 999 * np.mean(slowing[1:]))


@pytest.mark.parametrize("slow", [[40], [40, 41, 44]], ids=["one lap", "a stretch"])
def test_an_interruption_is_not_multiplied(slow: list[int]) -> None:
    laps = np.ones(100)
    laps[slow] = 21.0
    job = extrapolate([Laps("step", laps.tolist(), 10_000, is_work=True)])
    assert job.seconds == pytest.approx(10_000 + 20 * len(slow))
    assert sum(stage.steps for stage in job.stages) == 10_000
    assert job.high_s == pytest.approx(10_000 + 20 * len(slow) * 100, rel=0.1)


def test_what_is_slow_again_and_again_belongs_to_the_loop() -> None:
    laps = np.ones(100)
    laps[[40, 80]] = 21.0
    job = extrapolate([Laps("step", laps.tolist(), 10_000, is_work=True)])
    assert job.seconds == pytest.approx(10_000 + 40 * 101, rel=0.01)


@pytest.mark.parametrize("taken", [5, 30, 200])
def test_the_interval_holds_what_it_promises(taken: int) -> None:
    held = 0
    for seed in range(200):
        steps = np.random.default_rng(seed).lognormal(0.0, 0.1, 2000)
        job = extrapolate([Laps("step", list(steps[:taken]), 2000, is_work=True)])
        held += job.low_s <= steps.sum() <= job.high_s
    assert held >= 180  # of 95% promised, what chance may leave of 200 tries


def test_stages_that_repeat_count_as_often_as_published() -> None:
    laps = [
        Laps("start", [3.0]),
        Laps("loader", [0.5], 9),
        Laps("step", [2.0] + [1.0] * 9, 100, is_work=True),
        Laps("test", [0.2] * 5, 20, is_work=True),
    ]
    job = extrapolate(laps)
    assert job.seconds == pytest.approx(3 + 9 * 0.5 + 2 + 99 + 20 * 0.2)
    assert overheads(laps) == pytest.approx({"start": 3.0, "loader": 4.5, WARM_UP: 1.0})
