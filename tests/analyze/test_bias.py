"""The bias of a published way of timing, and that its parts add up to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.jobs import COST, MADE, OVERHEAD, UNDONE, Bias, find_bias
from torchmark.records import Estimate, JobEstimate, Result

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


def test_what_is_counted_beside_the_work_is_a_share_of_the_right_time(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.3, 1.0, {OVERHEAD + "moving": 10.0, OVERHEAD + "warm-up": 15.0})
    assert bias.share == pytest.approx(0.3)
    assert {cause.name: cause.share for cause in bias.causes} == pytest.approx(
        {"warm-up counted": 0.15, "moving counted": 0.10}
    )
    assert [cause.name for cause in bias.causes] == ["warm-up counted", "moving counted"]  # the largest first
    assert bias.rest == pytest.approx(0.05)


def test_a_fault_that_costs_a_tenth_of_a_right_step_explains_a_tenth(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.1, 1.0, {COST + "autograd graph": 0.1})
    assert [cause.share for cause in bias.causes] == pytest.approx([0.1])
    assert bias.rest == pytest.approx(0.0, abs=1e-9)


def test_work_that_was_not_waited_for_makes_the_figure_too_small(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 0.5, 1.0, {UNDONE: 1.0})
    assert bias.share == pytest.approx(-0.5)
    assert [cause.share for cause in bias.causes] == pytest.approx([-0.5])


def test_steps_that_were_not_counted_are_named(make_result, make_estimate) -> None:
    bias = found(make_result, make_estimate, 1.01, 1.0, {MADE: 101.0}, steady_job_s=500.0)
    assert not bias.whole_job  # the job of the right way holds more than the loop
    assert [cause.name for cause in bias.causes] == ["101 steps counted as 100"]


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
def test_causes_and_the_rest_add_up(make_result, make_estimate, published_s, steady_s, beside, data) -> None:
    cost = data.draw(st.floats(-0.5, 2))
    metrics = {OVERHEAD + name: seconds for name, seconds in beside.items()} | {COST + "x": cost, "loss": 3.0}
    bias = found(make_result, make_estimate, published_s, steady_s, metrics)
    assert sum(cause.share for cause in bias.causes) + bias.rest == pytest.approx(bias.share)
