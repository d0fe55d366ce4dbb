"""Everything an estimate keeps: from one process's samples, and from the estimates of several processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.grades import worst
from torchmark.analyze.jobs import project
from torchmark.analyze.spread import CHANCE, MAD_TO_DEVIATION, critical, own_spread, with_interval
from torchmark.analyze.statistics import WINSOR_MADS, Reading, Series, deviation_of, mean_interval, tail_bound
from torchmark.analyze.verdict import contention_of, is_bimodal, is_launch_bound, judge, metered_of
from torchmark.records import STEP, Conditions, Contention, Estimate, Memory, Metered, Result


def summarise(
    samples: Series,
    reading: Reading,
    confirmed: bool,
    readings: Sequence[Conditions] = (),
    wait_share: float | None = None,
    switches: int | None = None,
    **known: Any,
) -> Estimate:
    """The estimate of one process; `known` are the fields that do not follow from its samples and readings. The
    constant cost of calling a step is taken off every figure."""
    cost, raw = known["call_cost_s"], samples[reading.cut :]
    contention = contention_of(readings, wait_share, switches)
    judgement = judge(reading, confirmed, contention, readings, known["target"])
    mean, ordered = mean_interval(raw, reading.time), np.sort(raw - cost)
    median, mad = float(np.median(ordered)), deviation_of(ordered)
    outlying = np.abs(ordered - median) > WINSOR_MADS * MAD_TO_DEVIATION * mad
    launch_bound = is_launch_bound(known.get("device_step_s"), known["wall_step_s"])
    bimodal = known["estimand"] == "median" and is_bimodal(raw)
    return Estimate(
        center_s=reading.interval.center - cost,
        low_s=reading.interval.low - cost,
        high_s=reading.interval.high - cost,
        verdict=judgement.verdict,
        effective_samples=reading.effective(len(samples)),
        warmup_cut=reading.cut,
        trend=reading.trend,
        samples_s=tuple((samples - cost).tolist()),
        flags=(*judgement.flags, *("launch-bound",) * launch_bound, *("bimodal",) * bimodal),
        evidence=judgement.evidence,
        sample_count=len(samples),
        autocorrelation_time=reading.time,
        median_s=median,
        mean_s=mean.center - cost,
        mean_low_s=mean.low - cost,
        mean_high_s=mean.high - cost,
        min_s=float(ordered[0]),
        p90_s=float(np.quantile(ordered, 0.9)),
        p90_high_s=tail_bound(ordered, 0.9),
        p99_s=float(np.quantile(ordered, 0.99)),
        p99_high_s=tail_bound(ordered, 0.99),
        mad_s=mad,
        outlier_share=float(np.mean(outlying)) if mad > 0 else 0.0,
        contention=contention,
        metered=metered_of(readings),
        **known,
    )


def combine(processes: Sequence[Estimate]) -> Estimate:
    """One estimate over fresh processes: the geometric mean of their centres. With one, the spread is unknown."""
    count, first = len(processes), processes[0]
    if count == 1:
        return replace(first, flags=_union([first.flags, ("single-process",)]))
    if len({estimate.estimand for estimate in processes}) > 1:
        # Near the shortest step that is timed alone, some processes give a median and some only a mean.
        processes = [
            replace(each, estimand="mean", center_s=each.mean_s, low_s=each.mean_low_s, high_s=each.mean_high_s)
            for each in processes
        ]
    middle = sorted(processes, key=lambda estimate: estimate.center_s)[count // 2]
    verdict = worst([estimate.verdict for estimate in processes])
    alike = (each for each in processes if each.verdict == verdict)
    deciding = max(alike, key=lambda estimate: estimate.high_s - estimate.low_s)  # the least precise of the worst
    evidence = deciding.evidence
    if verdict == "noisy":  # it speaks of its own interval only
        evidence = tuple(f"in the worst of {count} processes {text}" for text in evidence)
    added = ("effective_samples", "sample_count", "void_count", "duration_s")
    return replace(
        _with_spread(middle, processes),
        verdict=verdict,
        first_step_s=first.first_step_s,
        samples_s=(),
        p90_s=max(estimate.p90_s for estimate in processes),
        p99_s=max(estimate.p99_s for estimate in processes),
        flags=_union([estimate.flags for estimate in processes]),
        evidence=evidence,
        contention=_mean_contention(processes),
        metered=_join_metered([estimate.metered for estimate in processes]),
        **{name: sum(getattr(estimate, name) for estimate in processes) for name in added},
    )


def _with_spread(estimate: Estimate, processes: Sequence[Estimate]) -> Estimate:
    centers, count = np.array([process.center_s for process in processes]), len(processes)
    if spread := own_spread(processes):
        return with_interval(replace(estimate, center_s=float(np.exp(np.log(centers).mean()))), spread, count)
    # Empty steps have no logarithm: the mean with Student's t, never below what each process claims.
    within = math.sqrt(float(np.mean([((e.high_s - e.low_s) / 2) ** 2 for e in processes])) / count)
    center = float(centers.mean())
    reach = max(critical(count - 1, CHANCE) * float(centers.std(ddof=1)) / math.sqrt(count), within)
    low_s = max(center - reach, min(center, 0.0))  # processes may disagree by more than there is time
    return replace(estimate, center_s=center, low_s=low_s, high_s=center + reach)


def _mean_contention(processes: Sequence[Estimate]) -> Contention:
    def mean(name: str) -> float | None:
        seen = [(getattr(each.contention, name), max(each.duration_s, 1e-9)) for each in processes]
        known = [(share, seconds) for share, seconds in seen if share is not None]
        return sum(share * seconds for share, seconds in known) / sum(each for _, each in known) if known else None

    switches = [each.contention.switches for each in processes if each.contention.switches is not None]
    shares = {name: mean(name) for name in Contention.__struct_fields__ if name != "switches"}
    return Contention(**shares, switches=sum(switches) if switches else None)


def _join_metered(seen: Sequence[Metered]) -> Metered:
    powers = [each.mean_w for each in seen if each.mean_w is not None]
    clocks = [each.clock_hz for each in seen if each.clock_hz]
    temperatures = [each.temperature_c for each in seen if each.temperature_c]
    return Metered(
        mean_w=float(np.mean(powers)) if powers else None,
        peak_w=max((each.peak_w for each in seen if each.peak_w is not None), default=None),
        clock_hz=min(clocks, key=lambda ends: ends[1] / max(ends[0], 1.0), default=None),
        temperature_c=max(temperatures, key=lambda ends: ends[1], default=None),
        throttle=_union([each.throttle for each in seen]),
        major_faults=max((each.major_faults for each in seen if each.major_faults is not None), default=None),
    )


def combine_results(results: Sequence[Result], strict: bool = False) -> Result:
    """One result from those of its processes; one that failed decides the status only if `strict`."""
    good = [result for result in results if result.status == "ok"]
    failed = next((result for result in results if result.status != "ok"), None)
    estimates = tuple(estimate for result in good or results for estimate in result.processes)
    latest, first = good[-1] if good else results[0], results[0]
    decided = failed or latest
    position = f"process {results.index(failed) + 1}: " if failed and len(results) > 1 else ""
    checks = [result.numeric for result in results if result.numeric]
    phases = sorted({name for result in results for name in result.phases_s})
    # The job that was run whole; else the first one, its steps as long as on average in all processes.
    jobs = [result.job for result in good if result.job]
    job = next((job for job in jobs if job.whole), jobs[0] if jobs else None)
    if job and not job.whole and len(estimates) > 1:
        means = [replace(process, center_s=process.mean_s) for process in estimates]
        mean = _with_spread(means[0], means)
        known = {"center_s": mean.center_s, "low_s": max(mean.low_s, 0.0), "high_s": mean.high_s}
        job = project([replace(stage, **known) if stage.name == STEP else stage for stage in job.stages], job)
    return replace(
        latest,
        status=failed.status if failed and strict else latest.status,
        reason=f"{position}{decided.reason}" if position else decided.reason,
        detail=decided.detail,
        estimate=combine(estimates) if estimates else None,
        processes=estimates,
        work=latest.work or first.work,
        settings=latest.settings or first.settings,
        memory=most_memory([result.memory for result in results if result.memory]),
        numeric=max(checks, key=lambda check: check.error / check.tolerance, default=None),
        job=job,
        metrics=good[0].metrics | latest.metrics if good else latest.metrics,
        budget_s=sum(result.budget_s or 0.0 for result in results) or None,
        phases_s={name: sum(result.phases_s.get(name, 0.0) for result in results) for name in phases},
    )


def most_memory(memories: Sequence[Memory]) -> Memory | None:
    """The reading with the highest peak."""
    return max(memories, key=lambda memory: memory.device_peak_bytes or memory.host_peak_bytes or 0, default=None)


def _union(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))
