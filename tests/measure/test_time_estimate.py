"""What a case would take that was not measured follows from those that were, by the amount of their work."""

from __future__ import annotations

from torchmark.measure.session import least_s
from torchmark.records import Work, parse_case
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

PHASES = {"start": 9.0, "import": 0.5, "build": 1.5, "steps": 7.0, "job": 5.0}
DUE = parse_case("matmul/infer:size=4096@cpu/float32")


def work_of(text: str) -> Work | None:
    case = parse_case(text)
    workload = find_workload(case.workload)
    return workload.work(workload.params(**case.params), Setting(mode=case.mode))


def test_the_same_workload_reports_by_its_size_and_others_where_there_is_none(make_result) -> None:
    small, other = "matmul/infer:size=2048@cpu/float32", "mlp/infer@cpu/float32"
    same = make_result(small, 0.1, work=work_of(small), phases_s=PHASES)
    another = make_result(other, 50.0, work=work_of(other), phases_s=PHASES)
    assert least_s(DUE, [another, same]) == 6.0  # 2.0 + 4 * 0.8, rounded up
    assert (least_s(DUE, [another]) or 0.0) > 100


def test_what_has_no_known_work_is_taken_to_be_like_the_others_and_nothing_reports_nothing(make_result) -> None:
    case, counted = parse_case("null/infer@cpu/float32"), "matmul/infer@cpu/float32"
    assert least_s(case, [make_result(counted, 0.2, phases_s=PHASES)]) == 3.0
    elsewhere = make_result("mlp/infer@cuda:0/float32", 0.2)
    failed = make_result("mlp/infer@cpu/float32", status="crashed", estimate=None)
    assert least_s(DUE, [elsewhere, failed]) is None


def test_a_case_with_ranks_needs_the_time_to_start_them_and_never_less_than_a_second(make_result) -> None:
    """A skipped DDP case once "needed about 0.0865 s" where whole seconds had been left."""
    quick = make_result("mlp/infer@cpu/float32", 1e-4, work=work_of("mlp/infer@cpu/float32"), phases_s={"build": 0.01})
    ddp = parse_case("mnist-ddp-mlp/train@cpu/float32+workers=2")
    assert least_s(parse_case("mlp/infer:batch=64@cpu/float32"), [quick]) == 1.0
    assert (least_s(ddp, [quick]) or 0.0) >= 5.0
    other = make_result("mnist-ddp-sigmoid/train@cpu/float32+workers=2", 1e-4, phases_s={"build": 0.2, "ranks": 8.0})
    assert 8.0 < (least_s(ddp, [quick, other]) or 0.0) <= 10.0
    alone = parse_case("mnist-ddp-sigmoid/train@cpu/float32")
    assert (least_s(alone, [other]) or 0.0) < 8.0  # it starts no ranks


def test_the_phases_of_several_processes_are_not_added_up(make_result, make_estimate) -> None:
    processes = tuple(make_estimate(0.2) for _ in range(3))
    phases = {"build": 6.0}  # of all three
    known = make_result("matmul/infer@cpu/float32", 0.2, phases_s=phases, processes=processes)
    assert least_s(parse_case("null/infer@cpu/float32"), [known]) == 3.0
