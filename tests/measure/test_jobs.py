"""A whole job is run where there is time for it; where there is none, what its steps say is kept, with the reason."""

from __future__ import annotations

import time

import pytest

from torchmark.devices import open_device
from torchmark.measure.engine import Settings
from torchmark.measure.messages import MeasureJob
from torchmark.measure.pipeline import ENDING_S, PreparedCase, _measure_job
from torchmark.measure.timing import run_whole
from torchmark.records import JobEstimate, StageEstimate, Work, parse_case
from torchmark.workloads.contract import Step

CASE = parse_case("null/infer@fake/float32")
STEPS = 100


def job_of(step_s: float) -> JobEstimate:
    total = STEPS * step_s
    return JobEstimate(total, total, total, whole=False, stages=(StageEstimate("step", STEPS, step_s, step_s, step_s),))


@pytest.mark.parametrize(
    ("expected_s", "left_s", "is_whole", "least", "most"),
    [
        (0.01, 1.2, True, STEPS, STEPS),
        (0.01, 0.9, False, 0, 0),  # known before
        (0.002, 0.5, False, 1, STEPS - 1),  # found out on the way
    ],
)
def test_a_job_is_run_whole_or_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, expected_s: float, left_s: float, is_whole: bool, least: int, most: int
) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.01")
    done: list[int] = []
    device, step = open_device("fake"), Step(lambda: done.append(1), Work(1, "step"), job_steps=STEPS)
    began = device.clock()
    found = run_whole(step, device, job_of(expected_s), left_s, lambda _: None)
    assert bool(found and found.whole) == is_whole
    assert least <= len(done) <= most
    assert device.clock() - began < 1.02 * left_s


def test_a_job_that_would_be_ended_in_the_middle_keeps_what_its_steps_say(
    monkeypatch: pytest.MonkeyPatch, make_estimate
) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.01")
    device, step = open_device("fake"), Step(lambda: None, Work(1, "step"), job_steps=STEPS)
    for seconds, is_whole in ((0.5, False), (60.0, True)):
        job = MeasureJob(CASE, Settings(), whole=True, deadline_s=time.monotonic() + ENDING_S + seconds)
        case = PreparedCase(job, lambda _: None)
        case.device, case.step = device, step
        found = _measure_job(case, make_estimate(0.01))
        assert found is not None
        assert found.whole == is_whole
        assert found.seconds == pytest.approx(STEPS * 0.01, rel=0.05)
        assert ("--timeout" in found.note) != is_whole
