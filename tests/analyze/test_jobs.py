"""Whole jobs, sustained runs, and the bias of published procedures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.jobs import (
    COST,
    MADE,
    OVERHEAD,
    UNDONE,
    WARM_UP,
    Bias,
    end_counts,
    extrapolate,
    find_bias,
    later_step,
    overheads,
    sustained_of,
)
from torchmark.records import Estimate, JobEstimate, Laps, Result

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


def test_the_slope_is_reported_for_a_minute(make_estimate) -> None:
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


PUBLISHED, STEADY = "mlp/infer@cpu/float32+as-published", "mlp/infer@cpu/float32"
STEPS = 100


def found(
    make_result: Callable[..., Result],
    make_estimate: Callable[..., Estimate],
    published_s: float,
    steady_s: float,
    metrics: dict[str, float],
    steady_job_s: float | None = None,
) -> Bias:
    total = published_s * STEPS
    published = make_result(
        PUBLISHED,
        estimate=make_estimate(published_s, verdict="as-published"),
        job=JobEstimate(total, total, total, whole=True),
        metrics=metrics,
    )
    job = JobEstimate(steady_job_s, steady_job_s * 0.9, steady_job_s * 1.1, whole=False) if steady_job_s else None
    bias = find_bias(published, make_result(STEADY, steady_s, job=job))
    assert bias is not None
    return bias


def test_what_is_counted_in_addition_to_the_work_is_a_share_of_the_right_time(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.3, 1.0, {OVERHEAD + "moving": 10.0, OVERHEAD + "warm-up": 15.0})
    assert bias.share == pytest.approx(0.3)
    assert bias.causes == pytest.approx({"warm-up counted": 0.15, "moving counted": 0.10})
    assert list(bias.causes) == ["warm-up counted", "moving counted"]  # the largest first
    assert bias.rest == pytest.approx(0.05)


def test_a_fault_that_costs_a_tenth_of_a_right_step_explains_a_tenth(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.1, 1.0, {COST + "autograd graph": 0.1})
    assert list(bias.causes.values()) == pytest.approx([0.1])
    assert bias.rest == pytest.approx(0.0, abs=1e-9)


def test_work_that_was_not_waited_for_makes_the_figure_too_small(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 0.5, 1.0, {UNDONE: 1.0})
    assert bias.share == pytest.approx(-0.5)
    assert list(bias.causes.values()) == pytest.approx([-0.5])


def test_steps_that_were_not_counted_are_named(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.01, 1.0, {MADE: 101.0}, steady_job_s=500.0)
    assert not bias.whole_job  # the job of the right way holds more than the loop
    assert list(bias.causes) == ["101 steps counted as 100"]


def test_a_whole_job_is_compared_as_a_whole(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.2, 0.9, {OVERHEAD + "process start": 20.0}, steady_job_s=100.0)
    assert bias.whole_job
    assert (bias.published_s, bias.steady_s, bias.precision) == pytest.approx((120.0, 100.0, 0.1))
    assert bias.rest == pytest.approx(0.0, abs=1e-9)


def test_without_a_figure_there_is_no_bias(make_result) -> None:
    failed = make_result(PUBLISHED, status="oom", estimate=None)
    assert find_bias(failed, make_result(STEADY)) is None
    assert find_bias(make_result(PUBLISHED), replace(failed, case=make_result(STEADY).case)) is None


@given(
    st.floats(0.1, 10), st.floats(0.1, 10), st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0, 100)), st.data()
)
def test_causes_and_the_rest_add_up(make_result, make_estimate, published_s, steady_s, overheads, data) -> None:
    cost = data.draw(st.floats(-0.5, 2))
    metrics = {OVERHEAD + name: seconds for name, seconds in overheads.items()} | {COST + "x": cost, "loss": 3.0}
    bias = found(make_result, make_estimate, published_s, steady_s, metrics)
    assert sum(bias.causes.values()) + bias.rest == pytest.approx(bias.share)
