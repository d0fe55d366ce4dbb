"""What a step is made of is seen without changing it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.analyze.verdict import cautions_of
from torchmark.measure.engine import Settings
from torchmark.measure.messages import Measured, MeasureJob, Message, Prepare, SumUp, TakeTurn
from torchmark.measure.pipeline import count_operators, measure, measure_in_turns, watch_fallback
from torchmark.records import Result, parse_case
from torchmark.workloads import launch
from torchmark.workloads.contract import Step

MPS = "The operator 'aten::linalg_svd' is not supported on the MPS backend and will fall back to run on the CPU."
PRIVATE = "The operator 'bigbank::merger_hunter' is not supported and will fall back to run on the CPU."
UNKNOWN = "The operator 'aten::merger_hunter' is not supported and will fall back to run on the CPU."
XPU = "Aten Op fallback from XPU to CPU happends. This may have performance implications."


def measured(text: str) -> Result:
    return measure(MeasureJob(parse_case(text), Settings(budget_s=0.3, min_time_s=0.1)), lambda _: None)


def test_operators_are_counted() -> None:
    import torch

    left, out = torch.ones(4, 4), torch.ones(4, 4)
    assert count_operators(lambda: [torch.add(left, left, out=out) for _ in range(7)]) == 7
    weight = torch.ones(4, 4, requires_grad=True)
    assert count_operators(lambda: (left @ weight).sum().backward()) > 3  # the way back counts, too


def test_a_short_step_on_the_cpu_reports_how_many_it_has() -> None:
    assert measured("launch/infer@cpu/float32").metrics == {"operators": 1.0}


@pytest.mark.parametrize(
    ("message", "named"),
    [(MPS, "aten::linalg_svd"), (XPU, "an operator"), (PRIVATE, "an operator"), (UNKNOWN, "an operator")],
)
def test_an_operator_that_left_the_device_is_noticed(message: str, named: str) -> None:
    with watch_fallback() as found, warnings.catch_warnings():
        warnings.warn(message, UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert found == [named]


def test_nothing_falls_back_from_the_cpu_to_the_cpu() -> None:
    with watch_fallback("cpu") as found, pytest.warns(UserWarning, match="fall back"):
        warnings.warn(MPS, UserWarning, stacklevel=1)
    assert found == []


def measured_in_turns(text: str) -> Result:
    """As a process of `ab` and `tune` measures."""
    answers: list[Message] = []
    orders = iter([Prepare(), TakeTurn(0.3, 1), SumUp()])

    def receive() -> Prepare | TakeTurn | SumUp:
        if isinstance(answers[-1], Measured):
            raise KeyboardInterrupt  # the pipe is closed
        return next(orders)

    job = MeasureJob(parse_case(text), Settings(budget_s=0.3, min_time_s=0.1), turns=8)
    with pytest.raises(KeyboardInterrupt):
        measure_in_turns(job, receive, answers.append)
    assert isinstance(answers[-1], Measured)
    return answers[-1].result


@pytest.mark.parametrize("measured", [measured, measured_in_turns])
def test_a_result_says_that_a_part_of_it_ran_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, measured: Callable[[str], Result]
) -> None:
    prepare = launch.Launch.prepare

    def prepare_warning(*arguments: Any) -> Step:
        step = prepare(*arguments)

        def run() -> object:
            warnings.warn(MPS, UserWarning, stacklevel=1)
            return step.run()

        return replace(step, run=run)

    monkeypatch.setattr(launch.Launch, "prepare", prepare_warning)
    with pytest.warns(UserWarning, match="fall back"):
        found = measured("launch/infer@fake/float32")
    assert found.estimate is not None
    assert "cpu-fallback" in found.estimate.flags
    assert found.settings["ran_on_cpu"] == "aten::linalg_svd"
    (caution,) = [each for each in cautions_of(found) if each.kind == "cpu-fallback"]
    assert caution.cause.startswith("aten::linalg_svd is missing on the device")


@pytest.mark.parametrize(("script", "bound"), [("step=0.001,issue=0.002", True), ("step=0.002,issue=0.001", False)])
def test_a_device_that_waits_for_the_host_is_launch_bound(
    monkeypatch: pytest.MonkeyPatch, script: str, bound: bool
) -> None:
    """One that is done as soon as it has been handed the last of a step could do more."""
    monkeypatch.setenv("TORCHMARK_FAKE", f"{script},sync=0")
    found = measured("null/infer@fake/float32").estimate
    assert found is not None
    assert found.issue_share is not None
    assert ("launch-bound" in found.flags) is bound
