"""A run believes an honest device, and gives no figure for one that misleads."""

from __future__ import annotations

import pytest

from torchmark.measure.engine import Settings
from torchmark.measure.messages import MeasureJob
from torchmark.measure.pipeline import measure
from torchmark.records import Result, parse_case

CASES = ["null/infer@fake/float32", "mlp/infer:batch=2@fake/float32", "matmul/infer:size=16@fake/float32"]
FAULTS = {"no-sync": "of the work still to do", "nan": "NaN", "scaled": "is off by", "cached": "computes wrong numbers"}


def measured(case: str) -> Result:
    return measure(MeasureJob(parse_case(case), Settings(budget_s=1.0, steps=40), seed=3), lambda _: None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("script", ["step=0.01", "step=0.01,sync=0.0001", "step=0.00001,sync=0.00001"])
def test_an_honest_device_is_believed(monkeypatch: pytest.MonkeyPatch, case: str, script: str) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", script)
    assert measured(case).status == "ok"


@pytest.mark.parametrize("case", CASES[1:])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_way_to_mislead_ends_in_wrong_result(monkeypatch: pytest.MonkeyPatch, case: str, fault: str) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", f"step=0.01,fault={fault}")
    found = measured(case)
    assert (found.status, found.estimate) == ("wrong-result", None)
    assert found.reason is not None
    assert FAULTS[fault] in found.reason


def test_a_step_without_numbers_is_still_asked_whether_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "step=0.01,fault=no-sync")
    assert measured(CASES[0]).status == "wrong-result"
