"""What more workers bring: efficiency against one worker, for every case that was measured with several counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.analyze.efficiency import find_scaling
from torchmark.records import Result, Work
from torchmark.report import render
from torchmark.report.text import clean

CASE = "mlp/train@cpu/float32+threads=1"


def result(make_result, workers: int, step_s: float, text: str = CASE, **changes) -> Result:
    fields = {
        "work": Work(items=64 * workers, unit="sample"),
        "settings": {"threads": 1},
        "metrics": {"communication_share": 0.25} if workers > 1 else {},
    }
    return make_result(text + (f"+workers={workers}" if workers > 1 else ""), step_s, **(fields | changes))


def test_efficiency_is_the_rate_of_each_worker_against_one_alone(make_result) -> None:
    results = [result(make_result, workers, step_s) for workers, step_s in ((4, 0.004), (1, 0.002), (2, 0.0025))]
    (scaling,) = find_scaling(results)
    assert scaling.case == CASE
    assert [row.workers for row in scaling.rows] == [1, 2, 4]
    assert [row.efficiency for row in scaling.rows] == pytest.approx([1.0, 0.8, 0.5])
    assert [row.rate for row in scaling.rows] == pytest.approx([32_000, 51_200, 64_000])
    assert [row.communication_share for row in scaling.rows] == [None, 0.25, 0.25]
    assert scaling.rows[0].margin == 0
    assert scaling.rows[1].margin == pytest.approx(0.004 * 2**0.5)
    assert scaling.threads == 1


def test_only_what_was_measured_with_several_counts_scales(make_result) -> None:
    one, two = result(make_result, 1, 0.002), result(make_result, 2, 0.002)
    other = result(make_result, 2, 0.002, "mlp/train:batch=64@cpu/float32")
    assert find_scaling([one, other]) == ()
    assert find_scaling([one, result(make_result, 2, 1.0, status="crashed", estimate=None)]) == ()
    assert len(find_scaling([one, two, other])) == 1


def test_without_one_worker_or_with_unequal_threads_the_table_says_so(make_result, make_header) -> None:
    from torchmark.records import Run

    two, four = result(make_result, 2, 0.002), result(make_result, 4, 0.002, settings={"threads": 2})
    (scaling,) = find_scaling([two, four])
    assert scaling.threads is None
    assert [row.efficiency for row in scaling.rows] == [None, None]
    text = " ".join(render(Run(make_header(), (two, four)), "table", 80).split())
    assert "Threads per rank differ" in text
    assert "measure it with --workers 1" in text


def test_the_table_stands_below_the_results_in_a_terminal_and_in_markdown(make_result, make_header) -> None:
    from torchmark.records import Run

    results = tuple(result(make_result, workers, 0.002 * workers) for workers in (1, 2, 4))
    run = Run(make_header(), results)
    for form in ("table", "md"):
        text = render(run, form, 80)
        below = " ".join(text.partition("Scaling of ")[2].split())
        assert "mlp/train+threads=1" in clean(below)
        assert "Every rank has 1 thread, in all rows" in below
        assert "50% ±0.3%" in below
        assert "25%" in below
        assert max(map(len, render(run, "table", 80).splitlines())) <= 80
    assert "Scaling" not in render(Run(make_header(), results[:1]), "table", 80)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=5), st.floats(0.1, 10))
def test_a_faster_machine_scales_no_better(make_result, steps: list[float], factor: float) -> None:
    """Efficiency depends on ratios alone."""
    scalings = [
        find_scaling([result(make_result, 2**index, step_s * each) for index, step_s in enumerate(steps)])[0]
        for each in (1.0, factor)
    ]
    first, second = ([row.efficiency for row in scaling.rows] for scaling in scalings)
    assert first == pytest.approx(second)
    assert first[0] == pytest.approx(1.0)
