"""All machines of one kind make one row, whatever some of them lack."""

from __future__ import annotations

from collections.abc import Callable

from torchmark.analyze.machines import tabulate
from torchmark.records import Result, Run, RunHeader


def test_a_row_has_the_median_and_the_range_of_its_kind(
    make_result: Callable[..., Result], make_header: Callable[..., RunHeader]
) -> None:
    def run(*results: Result) -> Run:
        return Run(make_header(), results)

    case = "mlp/infer@cpu/float32"
    lost = make_result(case, status="oom", estimate=None)
    members = [
        ("A", run(make_result(case, 0.010))),
        ("B", run(make_result(case, 0.002))),
        ("A", run(make_result(case, 0.012))),
        ("A", run(make_result(case, 0.011), make_result("matmul/infer@cpu/float32", status="oom", estimate=None))),
        ("A", run(lost)),
    ]
    first, second, third = tabulate(members)
    assert (first.case, first.kind, first.machines, first.step_s) == (case, "A", 3, 0.011)
    assert (first.low_s, first.high_s) == (0.010, 0.012)
    assert first.verdicts == ("stable 3", "oom 1")
    assert first.rate == 128 / 0.011
    assert (second.kind, second.machines, second.verdicts) == ("B", 1, ("stable",))
    assert second.spread == (0.002 * 1.004 - 0.002 * 0.996) / 2 / 0.002  # of one machine, its interval
    assert (third.case, third.step_s, third.spread) == ("matmul/infer@cpu/float32", None, None)
