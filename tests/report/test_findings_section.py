"""Findings stand below a run's table where there is something to say, and only then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from torchmark.records import Run
from torchmark.report import render


@pytest.fixture
def sweep(full_run: Run, make_result, make_estimate) -> Run:
    """One workload at three batches on two devices, measured in three processes each."""

    def measured(text: str, center: float):
        processes = tuple(make_estimate(center * (1 + step / 500)) for step in (-1, 0, 1))
        return make_result(text, center, processes=processes)

    cases = {
        f"mlp/infer:batch={batch}@{device}/float32": (batch, device) for batch in (16, 64) for device in ("cpu", "mps")
    }
    results = [measured(text, 1e-3 if device == "mps" else 1e-4 * batch) for text, (batch, device) in cases.items()]
    return replace(full_run, results=tuple(results))


def test_findings_follow_the_table_and_fit(sweep: Run) -> None:
    text = render(sweep, "table", 80)
    table, findings = text.split("\nFindings\n")
    assert "mlp/infer:batch=16@mps/float32" in table
    assert "Use mps for mlp (3.2× the CPU)" in findings
    assert max(map(len, text.splitlines())) <= 80


def test_one_case_has_no_findings(sweep: Run) -> None:
    assert "Findings" not in render(replace(sweep, results=sweep.results[:1]))


def test_cautions_are_not_said_twice(full_run: Run) -> None:
    text = render(full_run)
    assert "contended" in text
    assert "slowed by a busy machine" not in text
