"""Cost is arithmetic on the user's prices, and leaves out what no meter saw."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices, cost_of
from torchmark.records import JobEstimate, Metered, StageEstimate, Work

JOB = JobEstimate(7200.0, 7000.0, 7400.0, whole=False, stages=(StageEstimate("step", 9, 1, 1, 1),), epochs=8)


@pytest.fixture
def result(make_result, make_estimate):
    seen = make_estimate(0.036, metered=Metered(mean_w=200.0))
    return make_result(estimate=seen, work=Work(items=10, unit="sample"), job=JOB)


def test_an_hour_buys_a_million_items_an_epoch_and_a_job(result) -> None:
    cost = cost_of(result, Prices(hour=2.5))
    assert cost is not None
    assert cost.million_items == pytest.approx(2.5)  # 3.6 ms an item: a million in an hour
    assert (cost.job, cost.epoch) == (pytest.approx(5.0), pytest.approx(0.625))


def test_power_is_paid_by_the_kilowatt_hour(result) -> None:
    cost = cost_of(result, Prices(kilowatt_hour=0.3))
    assert cost is not None
    assert cost.million_items == pytest.approx(0.2 * 0.3)
    both = cost_of(result, Prices(hour=2.5, kilowatt_hour=0.3))
    assert both is not None
    assert both.million_items == pytest.approx(2.56)
    assert not both.without_power


def test_power_that_nobody_saw_costs_nothing_and_is_said(result, make_estimate) -> None:
    dark = replace(result, estimate=make_estimate(0.036))
    assert cost_of(dark, Prices(kilowatt_hour=0.3)) is None
    cost = cost_of(dark, Prices(hour=2.5, kilowatt_hour=0.3))
    assert cost is not None
    assert (cost.million_items, cost.without_power) == (pytest.approx(2.5), True)


def test_what_failed_or_is_worth_nothing_has_no_cost(result) -> None:
    assert cost_of(replace(result, status="oom", estimate=None), Prices(hour=1.0)) is None
    assert cost_of(replace(result, work=Work(items=0, unit="step"), job=None), Prices(hour=1.0)) is None
    job_alone = cost_of(replace(result, work=Work(items=0, unit="step")), Prices(hour=1.0))
    assert job_alone is not None
    assert (job_alone.million_items, job_alone.job) == (None, pytest.approx(2.0))
