"""What an estimate keeps, and how the estimates of several processes become one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.analyze.spread import relative_spread
from torchmark.analyze.statistics import read_series
from torchmark.analyze.verdict import cautions_of, combine, combine_results, summarise
from torchmark.records import Contention, Estimate, JobEstimate, Memory, NumericCheck, StageEstimate, Trend, Work

CENTERS = st.lists(st.floats(1e-6, 10), min_size=2, max_size=6)


def summary(samples: np.ndarray, **changes: Any) -> Estimate:
    fields: dict[str, Any] = {
        **dict.fromkeys(("center_s", "low_s", "high_s", "effective_samples"), 0.0),
        "estimand": "median",
        "verdict": "noisy",
        "first_step_s": 1.0,
        "warmup_cut": 0,
        "trend": Trend(0.0, 0.0),
        "duration_s": 5.0,
        "wall_step_s": 0.01,
    }
    known = Estimate(**fields | changes)
    return summarise(samples, read_series(samples, known.target, known.estimand), True, known)


def samples(count: int = 300) -> np.ndarray:
    return 0.01 * np.exp(0.02 * np.random.default_rng(1).standard_normal(count))


def test_every_figure_is_what_its_name_says() -> None:
    times = samples()
    times[:30] *= 1.5
    found = summary(times)
    kept = times[found.warmup_cut :]
    assert found.warmup_cut >= 30
    assert found.samples_s == tuple(times)
    assert (found.sample_count, found.median_s, found.center_s) == (300, np.median(kept), np.median(kept))
    assert (found.mean_s, found.min_s) == (pytest.approx(kept.mean()), kept.min())
    assert (found.p90_s, found.p99_s) == (np.quantile(kept, 0.9), np.quantile(kept, 0.99))
    assert found.p90_high_s is not None
    assert found.p90_s <= found.p90_high_s <= kept.max()
    assert found.p99_high_s is None  # of 270 samples no rank bounds the 99th percentile
    assert found.mad_s == np.median(np.abs(kept - np.median(kept)))
    assert found.effective_samples == pytest.approx(len(kept) / found.autocorrelation_time)


def test_outliers_are_counted_and_kept() -> None:
    times = samples()
    times[100:130:3] *= 10
    found = summary(times)
    assert found.outlier_share == pytest.approx(10 / (300 - found.warmup_cut))
    assert max(found.samples_s) == times.max()


def test_the_cost_of_a_call_is_taken_off_every_figure() -> None:
    plain, corrected = summary(samples()), summary(samples(), call_cost_s=0.002)
    figures = (
        "center_s",
        "low_s",
        "high_s",
        "median_s",
        "mean_s",
        "mean_low_s",
        "mean_high_s",
        "min_s",
        "p90_s",
        "p99_s",
    )
    for name in (*figures, "p90_high_s"):
        assert getattr(corrected, name) == pytest.approx(getattr(plain, name) - 0.002), name
    assert corrected.samples_s == pytest.approx([sample - 0.002 for sample in plain.samples_s])
    assert (corrected.mad_s, corrected.outlier_share) == (pytest.approx(plain.mad_s), plain.outlier_share)


def test_flags_come_from_what_was_seen() -> None:
    two_levels = samples() * np.where(np.random.default_rng(2).random(300) < 0.3, 1.2, 1.0)
    assert summary(two_levels).flags == ("bimodal",)
    assert summary(two_levels, estimand="mean").flags == ()
    assert summary(samples(), device_step_s=0.0098).flags == ()


def test_a_device_that_waits_for_work_is_launch_bound() -> None:
    assert summary(samples(), device_step_s=0.004).flags == ("launch-bound",)


def test_one_process_keeps_its_interval_and_says_that_it_is_alone(make_estimate) -> None:
    alone = make_estimate(1e-3, flags=("bimodal",))
    found = combine([alone])
    assert (found.center_s, found.low_s, found.high_s) == (alone.center_s, alone.low_s, alone.high_s)
    assert found.flags == ("bimodal", "single-process")
    assert combine([found]).flags == found.flags


def test_the_interval_over_processes_rests_on_their_spread(make_estimate) -> None:
    found = combine([make_estimate(center, 0.0001) for center in (1.00e-3, 1.05e-3, 1.10e-3)])
    assert found.center_s == pytest.approx((1.00 * 1.05 * 1.10) ** (1 / 3) * 1e-3)
    assert found.spread == pytest.approx(0.0477, rel=1e-2)
    assert found.center_s / found.low_s == pytest.approx(found.high_s / found.center_s)
    assert found.precision > 2.5 * found.spread  # two runs of three processes each, and little is known of the spread
    assert "single-process" not in found.flags


def test_processes_that_agree_by_chance_do_not_make_it_exact(make_estimate) -> None:
    found = combine([make_estimate(1e-3, 0.02)] * 4)
    assert found.precision == pytest.approx(1.96 * 2**0.5 * 0.01, rel=1e-2)  # runs differ as wholes


@given(centers=CENTERS)
def test_the_interval_encloses_the_centre_and_holds_no_negative_time(make_estimate, centers: list[float]) -> None:
    found = combine([make_estimate(center) for center in centers])
    assert 0 <= found.low_s <= found.center_s <= found.high_s
    assert min(centers) * (1 - 1e-9) <= found.center_s <= max(centers) * (1 + 1e-9)


@given(centers=CENTERS)
def test_the_order_of_the_processes_changes_no_figure(make_estimate, centers: list[float]) -> None:
    estimates = [make_estimate(center) for center in centers]
    forwards, backwards = combine(estimates), combine(estimates[::-1])
    names = ("center_s", "low_s", "high_s")
    assert [getattr(forwards, name) for name in names] == pytest.approx([getattr(backwards, name) for name in names])


def test_the_interval_covers_where_a_repeat_lands(make_estimate) -> None:
    chance = np.random.default_rng(5)
    drawn = [combine([make_estimate(1 + 0.05 * z) for z in chance.standard_normal(3)]) for _ in range(500)]
    pairs = list(itertools.pairwise(drawn))
    assert sum(a.low_s <= b.center_s <= a.high_s for a, b in pairs) >= 0.93 * len(pairs)


def test_the_worst_process_gives_the_verdict_and_its_evidence_and_all_the_load(make_estimate) -> None:
    quiet = make_estimate(1e-3, contention=Contention(wait_share=0.0, other_cpu_share=0.0))
    busy = make_estimate(
        1.2e-3,
        verdict="contended",
        evidence=("other processes used 40% of the processor",),
        flags=("bimodal",),
        contention=Contention(wait_share=0.1, other_cpu_share=0.4),
    )
    found = combine([quiet, busy, quiet])
    assert (found.verdict, found.evidence, found.flags) == ("contended", busy.evidence, ("bimodal",))
    shares = (found.contention.wait_share, found.contention.other_cpu_share)
    assert shares == (pytest.approx(0.1 / 3), pytest.approx(0.4 / 3))


def test_counts_and_times_add_up(make_estimate) -> None:
    found = combine([make_estimate(duration_s=2.0), make_estimate(duration_s=3.0, sample_count=100)])
    assert (found.sample_count, found.duration_s, found.effective_samples) == (500, 5.0, 424.0)


def test_medians_are_never_averaged_with_means(make_estimate) -> None:
    seen = [make_estimate(10e-6, mean_s=12e-6), make_estimate(12.1e-6, mean_s=12.1e-6, estimand="mean")]
    found = combine(seen)
    assert found.estimand == "mean"
    assert found.center_s == pytest.approx((12e-6 * 12.1e-6) ** 0.5)


def process(make_result, make_estimate, center_s: float = 1e-3, **changes: Any):
    return make_result(processes=(make_estimate(center_s),), **changes)


def test_a_process_that_failed_takes_no_figure_away(make_result, make_estimate) -> None:
    good = process(make_result, make_estimate)
    bad = make_result(status="oom", reason="no more memory", estimate=None, work=None, settings={}, processes=())
    found = combine_results([good, bad])
    assert (found.status, found.reason) == ("ok", "process 2: no more memory")
    assert found.estimate is not None
    assert "process-failed" in {caution.kind for caution in cautions_of(found)}
    assert (len(found.processes), found.work, found.settings) == (1, good.work, good.settings)
    alone = combine_results([bad])
    assert (alone.status, alone.reason, alone.estimate) == ("oom", "no more memory", None)


def test_results_keep_the_worst_check_the_most_memory_and_the_sum_of_phases(make_result, make_estimate) -> None:
    first = process(
        make_result,
        make_estimate,
        numeric=NumericCheck(5e-3, 1e-2, "a"),
        memory=Memory(host_peak_bytes=5),
        phases_s={"build": 1.0},
    )
    second = process(
        make_result,
        make_estimate,
        numeric=NumericCheck(1e-7, 1e-6, "b"),
        memory=Memory(host_peak_bytes=9),
        phases_s={"build": 2.0, "steps": 3.0},
    )
    found = combine_results([second, first, second])
    assert found.status == "ok"
    assert found.numeric == NumericCheck(5e-3, 1e-2, "a")
    assert found.memory == Memory(host_peak_bytes=9)
    assert found.phases_s == {"build": 5.0, "steps": 6.0}
    assert found.work == Work(items=128, unit="sample", flops=1.1e9, bytes=4.2e6)


def test_the_spread_between_processes_needs_two() -> None:
    assert relative_spread([1.0]) is None
    assert relative_spread([1.0, 1.1]) == pytest.approx(0.0707 / 1.05, rel=1e-3)


def test_a_job_takes_its_steps_from_all_processes_and_the_rest_from_the_first(make_result, make_estimate) -> None:
    stages = (StageEstimate("step", 10, 1.0, 0.9, 1.1), StageEstimate("start-up", 1, 3.0, 3.0, 3.0))
    first = JobEstimate(13.0, 12.0, 14.0, whole=False, stages=stages, note="not run whole")
    means = [make_estimate(mean_s=seconds) for seconds in (1.0, 1.21)]
    results = [make_result(job=job, processes=(mean,)) for job, mean in zip((first, None), means, strict=True)]
    job = combine_results(results).job
    assert job is not None
    assert (job.seconds, job.note) == (pytest.approx(10 * 1.1 + 3.0), "not run whole")
    assert job.low_s < job.seconds < job.high_s
