"""What a worker does with a case: every failure that can be caught becomes a status, and times are kept apart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from torchmark.measure.engine import Progress, Settings
from torchmark.measure.messages import MeasureJob, Message, Phase
from torchmark.measure.pipeline import measure, watch
from torchmark.records import Result, Work, parse_case

CASE = parse_case("null/infer@fake/float32")
JOB = MeasureJob(CASE, Settings(budget_s=2.0), seed=7)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    return lambda text: monkeypatch.setenv("TORCHMARK_FAKE", text)


def measured(job: MeasureJob = JOB) -> tuple[Result, list[Message]]:
    heard: list[Message] = []
    return measure(job, heard.append), heard


def test_a_case_is_measured_with_everything_that_belongs_to_it(script) -> None:
    script("stream=iid2,step=0.01")
    found, heard = measured()
    assert (found.status, found.case, found.seed, found.version, found.budget_s) == ("ok", CASE, 7, 1, 2.0)
    assert found.work == Work(items=0, unit="step", flops=0, bytes=0)
    assert found.estimate is not None
    assert found.estimate.center_s == pytest.approx(0.01, rel=0.02)
    assert found.processes[0].samples_s == found.estimate.samples_s
    assert found.memory is not None
    assert found.memory.host_peak_bytes
    assert "unavailable because" in found.memory.provenance
    assert {"import", "build", "first step", "check", "steps"} <= set(found.phases_s)
    phases = [message.name for message in heard if isinstance(message, Phase)]
    assert phases == ["import", "build", "first step", "steps", "job", "check"]  # which would disturb the steps
    assert any(isinstance(message, Progress) for message in heard)


def test_the_first_step_is_that_of_the_process_not_of_the_engine(script) -> None:
    script("stream=warm-step,step=0.01")  # its first step takes 50 times as long
    found, _ = measured()
    assert found.estimate is not None
    assert found.estimate.first_step_s == pytest.approx(0.01 * 1.3 * 50, rel=0.1)


def test_out_of_memory_is_a_status_that_keeps_the_phases(script) -> None:
    script("fault=oom")
    found, _ = measured()
    assert (found.status, found.estimate) == ("oom", None)
    assert found.reason == "out of memory: MemoryError during steps"
    assert found.detail == "the fake device was asked to run out of memory"
    assert "steps" in found.phases_s


def test_a_case_that_cannot_fit_says_how_long_it_would_take(script) -> None:
    script("step=60")
    found, _ = measured(replace(JOB, time_left_s=100.0))
    assert found.status == "skipped"
    assert "a process needs about 1" in (found.reason or "")
    assert "where 100 s are left" in (found.reason or "")
    assert "--budget" in (found.reason or "")


def test_a_wrong_script_is_reported_and_nothing_else_happens(script) -> None:
    script("fault=nonsense")
    found, _ = measured()
    assert found.status == "crashed"
    assert found.reason == "UnknownName during import"
    assert "nonsense" in (found.detail or "")


def test_the_live_rate_is_that_of_the_steps_not_of_the_waiting_for_them(script) -> None:
    script("stream=iid2,step=0.0001,sync=0.001")
    from torchmark.devices import open_device
    from torchmark.workloads import find_workload
    from torchmark.workloads.contract import Setting

    workload = find_workload("null")
    step = workload.prepare(workload.params(), Setting(mode="infer"))
    heard: list[Message] = []

    def say(message: Message) -> None:
        heard.append(message)
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(open_device("fake"), step, say)
    assert all(isinstance(message, Progress) for message in heard)
    assert heard[-1].center_s == pytest.approx(1e-4, rel=0.03)  # type: ignore[union-attr]
    assert [round(message.elapsed_s) for message in heard] == [1, 2, 3]  # type: ignore[union-attr]
