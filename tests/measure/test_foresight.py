"""What a case would take that was not measured follows from those that were, by the amount of their work."""

from __future__ import annotations

import pytest

from torchmark.measure.foresight import least_s
from torchmark.records import Work, parse_case
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

PHASES = {"start": 9.0, "import": 0.5, "build": 1.5, "steps": 7.0, "job": 5.0}
DUE = parse_case("matmul/infer:size=4096@cpu/float32")


def work_of(text: str) -> Work | None:
    case = parse_case(text)
    workload = find_workload(case.workload)
    return workload.work(workload.params(**case.params), Setting(mode=case.mode))


def test_the_same_workload_tells_by_its_size_and_others_where_there_is_none(make_result) -> None:
    small, other = "matmul/infer:size=2048@cpu/float32", "mlp/infer@cpu/float32"
    same = make_result(small, 0.1, work=work_of(small), phases_s=PHASES)
    another = make_result(other, 50.0, work=work_of(other), phases_s=PHASES)
    assert least_s(DUE, [another, same]) == pytest.approx(2.0 + 4 * 0.8)
    assert (least_s(DUE, [another]) or 0.0) > 100


def test_what_has_no_known_work_is_taken_to_be_like_the_others_and_nothing_tells_nothing(make_result) -> None:
    case, counted = parse_case("null/infer@cpu/float32"), "matmul/infer@cpu/float32"
    assert least_s(case, [make_result(counted, 0.2, phases_s=PHASES)]) == pytest.approx(2.0 + 4 * 0.2)
    elsewhere = make_result("mlp/infer@cuda:0/float32", 0.2)
    failed = make_result("mlp/infer@cpu/float32", status="crashed", estimate=None)
    assert least_s(DUE, [elsewhere, failed]) is None
