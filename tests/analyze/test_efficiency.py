"""Ceilings, energy, cost and scaling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.efficiency import (
    LOADING,
    Ceiling,
    Ceilings,
    DeviceCeilings,
    Prices,
    bandwidth_at,
    case_again,
    ceilings_of,
    cost_of,
    extent_of,
    find_scaling,
    merge,
    peak_of,
    with_peak,
)
from torchmark.analyze.verdict import cautions_of
from torchmark.records import JobEstimate, Metered, Result, StageEstimate, Work
from torchmark.report import render
from torchmark.report.text import clean

KNOWN = Ceilings(
    {
        "cpu": DeviceCeilings(
            flops={"float32": Ceiling(300e9, "matmul/infer:size=1024@cpu/float32")},
            paths={"memory": (Ceiling(100e9, "small", 1e6), Ceiling(25e9, "large", 4e9))},
            issue_s=1e-6,
        )
    },
    run="abcd",
)


@pytest.fixture
def seen(make_result, make_estimate):
    """A result with processes that took these times."""

    def make(text: str, center_s: float, **changes: Any) -> Result:
        times = changes.pop("times", (center_s,))
        return make_result(text, center_s, processes=tuple(map(make_estimate, times)), **changes)

    return make


def stages(*pairs: tuple[str, float]) -> JobEstimate:
    return JobEstimate(0.0, 0.0, 0.0, False, tuple(StageEstimate(name, 0, each, each, each) for name, each in pairs))


def test_ceilings_are_the_best_of_all_processes_of_the_workloads_made_for_them(seen) -> None:
    product = Work(items=1, unit="product", flops=2e9, bytes=1e6)
    passes = Work(items=1, unit="pass", flops=0, bytes=3e9)
    found = ceilings_of(
        [
            seen("matmul/infer@cpu/float32", 0.011, work=product, times=(0.010, 0.012)),
            seen("matmul/infer:size=64@cpu/float32", 0.1, work=product),
            seen("matmul/infer@cpu/bfloat16", 1.0, work=product),
            seen("mlp/infer@cpu/float32", 1e-9),
            seen(
                "bandwidth/infer:sizes=all@cpu/float32",
                0.1,
                work=passes,
                params={"size_bytes": 10**9},
                job=stages(("1000000 bytes", 3e-5)),
            ),
            seen("launch/infer@cpu/float32", 1e-6),
            seen("launch/infer@cpu/float32+per-step", 3e-6),
        ]
    ).devices["cpu"]
    assert found.flops["float32"].value == pytest.approx(2e11)
    assert found.flops["float32"].case == "matmul/infer@cpu/float32"
    assert found.flops["bfloat16"].value == pytest.approx(2e9)
    assert [(point.bytes, point.value) for point in found.paths["memory"]] == [
        (pytest.approx(1e6), pytest.approx(1e11)),
        (pytest.approx(1e9), pytest.approx(3e10)),
    ]
    assert (found.issue_s, found.round_trip_s) == (1e-6, 3e-6)


def test_of_two_findings_the_better_counts() -> None:
    slow = Ceilings({"cpu": DeviceCeilings(flops={"float32": Ceiling(200e9, "a")}, issue_s=2e-6)})
    assert merge(KNOWN, slow).devices["cpu"].flops["float32"].value == 300e9
    assert merge(slow, KNOWN).devices["cpu"].issue_s == 1e-6
    assert merge(slow, KNOWN).run == "abcd"


@given(st.floats(1, 1e12), st.floats(1, 1e12))
def test_a_ceiling_never_rises_with_the_size_of_the_work(one: float, other: float) -> None:
    small, large = sorted((one, other))
    known = DeviceCeilings(paths={"memory": tuple(Ceiling(v, "", b) for b, v in ((1e5, 9e9), (1e7, 2e10), (1e9, 5e9)))})
    at_small, at_large = (bandwidth_at(known, "memory", count) for count in (small, large))
    assert at_small is not None
    assert at_large is not None
    assert 5e9 <= at_large <= at_small * (1 + 1e-9) <= 2e10 * (1 + 1e-8)


@pytest.mark.parametrize(
    ("flops", "byte_count", "center_s", "share", "bound"),
    [
        (3e9, 1e6, 0.02, 0.5, "compute"),
        (1e9, 4e9, 0.2, 0.8, "bandwidth"),
        (0, 8e9, 0.4, 0.8, "bandwidth"),
        (3e9, None, 0.02, 0.5, "compute"),
    ],
)
def test_a_result_is_held_against_what_is_closer(flops, byte_count, center_s, share, bound, make_result) -> None:
    found = peak_of(make_result(center_s=center_s, work=Work(1, "x", flops, byte_count)), KNOWN)
    assert found is not None
    assert (found.share, found.bound, found.limits) == (pytest.approx(share), bound, "abcd")


@pytest.mark.parametrize(
    "changes",
    [
        {"work": Work(items=0, unit="step", flops=0, bytes=0)},
        {"work": None},
        {"text": "mlp/infer@cpu/float64"},
        {"text": "mlp/infer@cuda:0/float32"},
        {"text": "mlp/infer@cpu/float32+as-published"},
        {"settings": {"nodes": 2}},
        {"status": "crashed", "estimate": None},
    ],
    ids=str,
)
def test_nothing_is_said_without_work_or_without_a_ceiling(changes: dict[str, Any], make_result) -> None:
    assert peak_of(make_result(**changes), KNOWN) is None


def test_operators_that_take_most_of_a_step_make_it_launch_bound(make_result) -> None:
    small = Work(items=1, unit="x", flops=1e3, bytes=1e3)
    found = with_peak(make_result(center_s=1e-4, work=small, metrics={"operators": 80.0}), KNOWN)
    assert found.peak is not None
    assert (found.peak.bound, found.peak.shares["launch"]) == ("launch", pytest.approx(0.8))
    assert found.estimate is not None
    assert "launch-bound" in found.estimate.flags
    (caution,) = [each for each in cautions_of(found) if each.kind == "launch-bound"]
    assert "80 operators takes at least 80%" in caution.cause


@pytest.mark.parametrize(("share", "bound"), [(0.95, "launch"), (0.6, "compute")])
def test_a_device_that_is_handed_work_ahead_is_not_launch_bound(share, bound, make_result, make_estimate) -> None:
    known = replace(KNOWN, devices={"cuda:0": KNOWN.devices["cpu"]})
    timed, work = make_estimate(2e-3, issue_share=share), Work(items=1, unit="x", flops=3e8, bytes=1e3)
    found = peak_of(make_result("mlp/infer@cuda:0/float32", work=work, estimate=timed), known)
    assert found is not None
    assert found.bound == bound


@pytest.mark.parametrize(
    ("device", "loaders", "seconds", "bound"),
    [
        ("cpu", 0, 1.5e-3, "loader"),
        ("cpu", 2, 1.5e-3, "loader"),  # they take its cores
        ("cpu", 0, 1e-4, "compute"),  # too little to speak of
        ("cuda:0", 0, 1.5e-3, "loader"),
        ("cuda:0", 2, 1.5e-3, "compute"),  # hidden behind the step
        ("cuda:0", 2, 2.5e-3, "loader"),
    ],
)
def test_waiting_for_data_is_what_bounds_unless_it_is_hidden(device, loaders, seconds, bound, make_result) -> None:
    known = replace(KNOWN, devices={device: KNOWN.devices["cpu"]})
    work, params, job = Work(1, "x", 1e6, 1e3), {"loader_workers": loaders}, stages((LOADING, seconds))
    found = peak_of(make_result(f"mlp/train@{device}/float32", job=job, params=params, work=work), known)
    assert found is not None
    assert found.bound == bound


def test_a_result_beyond_its_ceiling_is_implausible_only_after_that_was_measured_again(make_result, seen) -> None:
    folded = make_result(center_s=1e-3, work=Work(items=1, unit="x", flops=6e8, bytes=1e3))
    for again in (False, True):
        found = with_peak(folded, KNOWN, again=again)
        assert found.peak is not None
        assert found.estimate is not None
        assert found.peak.share == pytest.approx(2.0)
        assert ("implausible" in found.estimate.flags) is again
    (caution,) = [each for each in cautions_of(found) if each.kind == "implausible"]
    assert "200% of this machine's arithmetic" in caution.cause
    higher = merge(KNOWN, Ceilings({"cpu": DeviceCeilings(flops={"float32": Ceiling(700e9, "better")})}))
    relieved = with_peak(found, higher, again=True)
    assert relieved.estimate is not None
    assert "implausible" not in relieved.estimate.flags
    assert not ceilings_of([replace(found, case=seen("matmul/infer@cpu/float32", 1.0).case)]).devices


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(items=1, unit="x", flops=6e9, bytes=1e3), "matmul/infer:size=1024@cpu/float32"),
        (Work(items=1, unit="x", flops=1, bytes=3e9), "bandwidth/infer:kind=update,size_bytes=2999996416@cpu/float32"),
    ],
)
def test_what_is_measured_again_is_what_the_result_was_held_against(work: Work, expected: str, make_result) -> None:
    found = case_again(with_peak(make_result(center_s=1e-3, work=work), KNOWN), KNOWN)
    assert found is not None
    assert found.text == expected


@pytest.mark.parametrize(
    ("known", "result", "expected"),
    [
        ("matmul/infer:size=64@cpu/float32", "mlp/infer@cpu/float32", "matmul/infer:size=1024@cpu/float32"),
        ("matmul/infer@cpu/float32+threads=1", "mlp/infer@cpu/float32", "matmul/infer@cpu/float32"),
        ("matmul/infer:size=4096@cpu/float32+isa=avx2", "mlp/infer@cpu/float32", "matmul/infer:size=4096@cpu/float32"),
        (
            "matmul/infer@cpu/bfloat16",
            "mlp/infer@cpu/bfloat16+isa=avx512-core-bf16",
            "matmul/infer@cpu/bfloat16+isa=avx512-core-bf16",
        ),
    ],
)
def test_a_product_that_was_small_or_held_back_condemns_nothing(known: str, result: str, expected: str, seen) -> None:
    product, work = Work(items=1, unit="product", flops=1e9), Work(items=1, unit="x", flops=1e12)
    ceilings = ceilings_of([seen(known, 1.0, work=product)])
    found = case_again(with_peak(seen(result, 1e-3, work=work), ceilings), ceilings)
    assert found is not None
    assert found.text == expected


def test_a_shortened_product_has_a_ceiling_of_its_own(seen) -> None:
    work = Work(items=1, unit="product", flops=1e12)
    plain, short = "matmul/infer@cuda:0/float32", "matmul/infer@cuda:0/float32+matmul=high"
    ceilings = ceilings_of([seen(plain, 1.0, work=work), seen(short, 0.125, work=work)])
    assert {name: each.value for name, each in ceilings.devices["cuda:0"].flops.items()} == {
        "float32": 1e12,
        "float32+matmul=high": 8e12,
    }
    for text, share in ((plain, 0.5), (short, 0.0625)):
        peak = peak_of(seen(text.replace("matmul/", "mlp/"), 2.0, work=work), ceilings)
        assert peak is not None
        assert peak.share == pytest.approx(share)


@pytest.mark.parametrize(("variant", "passes"), [("as-written", 6), ("as-run", 2), ("resident", 3)])
def test_it_is_the_array_that_lies_in_a_cache_or_not_however_often_it_is_gone_through(variant, passes, seen) -> None:
    work = Work(items=1, unit="iteration", flops=1, bytes=passes * 1e6)
    assert extent_of(seen("tensor-add/infer@cpu/float32", 1.0, work=work, params={"variant": variant})) == 1e6


@pytest.mark.parametrize("size", ["many", True, -4, 0])
def test_a_file_from_anybody_may_name_any_size(size: object, seen) -> None:
    work = Work(items=1, unit="pass", flops=1, bytes=3e6)
    odd = seen("bandwidth/infer@cpu/float32", 1.0, work=work, params={"size_bytes": size})
    assert peak_of(odd, ceilings_of([odd, seen("matmul/infer@cpu/float32", 1.0, work=work)])) is not None


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


def test_unknown_power_costs_nothing_and_is_said(result, make_estimate) -> None:
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


CASE = "mlp/train@cpu/float32+threads=1"


def scaled(make_result, workers: int, step_s: float, text: str = CASE, **changes) -> Result:
    fields = {
        "work": Work(items=64 * workers, unit="sample"),
        "settings": {"threads": 1},
        "metrics": {"communication_share": 0.25} if workers > 1 else {},
    }
    return make_result(text + (f"+workers={workers}" if workers > 1 else ""), step_s, **(fields | changes))


def test_efficiency_is_the_rate_of_each_worker_against_one_alone(make_result) -> None:
    results = [scaled(make_result, workers, step_s) for workers, step_s in ((4, 0.004), (1, 0.002), (2, 0.0025))]
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
    one, two = scaled(make_result, 1, 0.002), scaled(make_result, 2, 0.002)
    other = scaled(make_result, 2, 0.002, "mlp/train:batch=64@cpu/float32")
    assert find_scaling([one, other]) == ()
    assert find_scaling([one, scaled(make_result, 2, 1.0, status="crashed", estimate=None)]) == ()
    assert len(find_scaling([one, two, other])) == 1


def test_without_one_worker_or_with_unequal_threads_the_table_says_so(make_result, make_header) -> None:
    from torchmark.records import Run

    two, four = scaled(make_result, 2, 0.002), scaled(make_result, 4, 0.002, settings={"threads": 2})
    (scaling,) = find_scaling([two, four])
    assert scaling.threads is None
    assert [row.efficiency for row in scaling.rows] == [None, None]
    text = " ".join(render(Run(make_header(), (two, four)), "table", 80).split())
    assert "Threads per rank differ" in text
    assert "add --workers 1" in text


def test_the_table_stands_below_the_results_in_a_terminal_and_in_markdown(make_result, make_header) -> None:
    from torchmark.records import Run

    results = tuple(scaled(make_result, workers, 0.002 * workers) for workers in (1, 2, 4))
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
        find_scaling([scaled(make_result, 2**index, step_s * each) for index, step_s in enumerate(steps)])[0]
        for each in (1.0, factor)
    ]
    first, second = ([row.efficiency for row in scaling.rows] for scaling in scalings)
    assert first == pytest.approx(second)
    assert first[0] == pytest.approx(1.0)
