"""Everything an estimate keeps: from one process's samples, and from the estimates of several processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.spread import critical, own_spread, with_interval
from torchmark.analyze.statistics import (
    CONFIDENCE,
    MAD_TO_DEVIATION,
    WINSOR_MADS,
    Reading,
    Series,
    mean_interval,
    tail_bound,
)
from torchmark.analyze.verdict import contention_of, is_bimodal, is_launch_bound, judge, metered_of, worst
from torchmark.records import (
    STEP,
    Conditions,
    Contention,
    Estimand,
    Estimate,
    JobEstimate,
    Memory,
    Metered,
    Result,
    StageEstimate,
)


class Observations(Struct, frozen=True):
    """What the engine knows in addition to the samples and their reading."""

    estimand: Estimand
    block_size: int
    confirmed: bool
    first_step_s: float
    sync_cost_s: float
    call_cost_s: float
    target: float
    duration_s: float
    wall_step_s: float
    wait_share: float | None = None
    switches: int | None = None
    device_step_s: float | None = None
    readings: tuple[Conditions, ...] = ()


def summarise(samples: Series, reading: Reading, seen: Observations) -> Estimate:
    """The estimate of one process. The constant cost of calling a step is taken off every figure."""
    contention = contention_of(seen.readings, seen.wait_share, seen.switches)
    judgement = judge(reading, seen.confirmed, contention, seen.readings, seen.target)
    raw, cost = samples[reading.cut :], seen.call_cost_s
    mean = mean_interval(raw, reading.time)
    flags = list(judgement.flags)
    if is_launch_bound(seen.device_step_s, seen.wall_step_s):
        flags.append("launch-bound")
    if seen.estimand == "median" and is_bimodal(raw):
        flags.append("bimodal")
    return Estimate(
        center_s=reading.interval.center - cost,
        low_s=reading.interval.low - cost,
        high_s=reading.interval.high - cost,
        estimand=seen.estimand,
        verdict=judgement.verdict,
        first_step_s=seen.first_step_s,
        effective_samples=reading.effective(len(samples)),
        warmup_cut=reading.cut,
        trend=reading.trend,
        samples_s=tuple((samples - cost).tolist()),
        flags=tuple(flags),
        evidence=judgement.evidence,
        sample_count=len(samples),
        block_size=seen.block_size,
        autocorrelation_time=reading.time,
        mean_s=mean.center - cost,
        mean_low_s=mean.low - cost,
        mean_high_s=mean.high - cost,
        **describe(raw - cost),
        device_step_s=seen.device_step_s,
        wall_step_s=seen.wall_step_s,
        contention=contention,
        metered=metered_of(seen.readings),
        sync_cost_s=seen.sync_cost_s,
        call_cost_s=cost,
        target=seen.target,
        duration_s=seen.duration_s,
    )


def describe(kept: Series) -> dict[str, Any]:
    """The fields of an estimate that follow from the kept samples alone."""
    ordered = np.sort(kept)
    median = float(np.median(ordered))
    deviations = np.abs(ordered - median)
    mad = float(np.median(deviations))
    return {
        "median_s": median,
        "min_s": float(ordered[0]),
        "p90_s": float(np.quantile(ordered, 0.9)),
        "p90_high_s": tail_bound(ordered, 0.9),
        "p99_s": float(np.quantile(ordered, 0.99)),
        "p99_high_s": tail_bound(ordered, 0.99),
        "mad_s": mad,
        "outlier_share": float(np.mean(deviations > WINSOR_MADS * MAD_TO_DEVIATION * mad)) if mad > 0 else 0.0,
    }


def combine(processes: Sequence[Estimate]) -> Estimate:
    """One estimate over fresh processes: the geometric mean of their centres, and where a repeat would land.

    Two processes of one case differ by more than the interval inside each of them says. With a single process that
    spread is unknown, so `spread` is None until it is borrowed from others.
    """
    if len(processes) == 1:
        only = processes[0]
        return replace(only, flags=_union([only.flags, ("single-process",)]))
    if len({estimate.estimand for estimate in processes}) > 1:
        processes = [_as_mean(estimate) for estimate in processes]
    middle = sorted(processes, key=lambda estimate: estimate.center_s)[len(processes) // 2]
    return replace(
        _with_spread(middle, processes),
        verdict=worst([estimate.verdict for estimate in processes]),
        first_step_s=processes[0].first_step_s,
        effective_samples=sum(estimate.effective_samples for estimate in processes),
        sample_count=sum(estimate.sample_count for estimate in processes),
        void_count=sum(estimate.void_count for estimate in processes),
        duration_s=sum(estimate.duration_s for estimate in processes),
        samples_s=(),
        p90_s=max(estimate.p90_s for estimate in processes),
        p99_s=max(estimate.p99_s for estimate in processes),
        flags=_union([estimate.flags for estimate in processes]),
        evidence=_evidence(processes),
        contention=_mean_contention(processes),
        metered=_join_metered([estimate.metered for estimate in processes]),
    )


def _evidence(processes: Sequence[Estimate]) -> tuple[str, ...]:
    """The evidence of the deciding process; a noisy one speaks of its own interval only."""
    deciding = _deciding(processes)
    if deciding.verdict != "noisy":
        return deciding.evidence
    return tuple(f"in the worst of {len(processes)} processes {text}" for text in deciding.evidence)


def _as_mean(estimate: Estimate) -> Estimate:
    """Near the shortest step that is timed alone, some processes give a median and some only a mean."""
    return replace(
        estimate,
        estimand="mean",
        center_s=estimate.mean_s,
        low_s=estimate.mean_low_s,
        high_s=estimate.mean_high_s,
    )


def _with_spread(estimate: Estimate, processes: Sequence[Estimate]) -> Estimate:
    """The estimate with the centre and the interval of all processes; of empty steps, which have no logarithm, the
    mean of the centres with Student's t."""
    centers = np.array([process.center_s for process in processes])
    spread = own_spread(processes)
    if spread:
        return with_interval(replace(estimate, center_s=float(np.exp(np.log(centers).mean()))), spread, len(centers))
    center, reach = float(centers.mean()), between_reach(processes)
    return replace(
        estimate,
        center_s=center,
        low_s=max(center - reach, min(center, 0.0)),  # processes may disagree by more than there is time
        high_s=center + reach,
    )


def _mean_contention(processes: Sequence[Estimate]) -> Contention:
    """Each share over the whole measuring time; a count is a sum."""
    durations = [max(process.duration_s, 1e-9) for process in processes]

    def mean(name: str) -> float | None:
        seen = [getattr(process.contention, name) for process in processes]
        known = [(share, seconds) for share, seconds in zip(seen, durations, strict=True) if share is not None]
        return sum(share * seconds for share, seconds in known) / sum(each for _, each in known) if known else None

    switches = [count for process in processes if (count := process.contention.switches) is not None]
    shares = {name: mean(name) for name in Contention.__struct_fields__ if name != "switches"}
    return Contention(**shares, switches=sum(switches) if switches else None)


def _join_metered(seen: Sequence[Metered]) -> Metered:
    """The usual power, and the extreme of all else: the peak, the highest temperature, the deepest drop."""
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


def _deciding(processes: Sequence[Estimate]) -> Estimate:
    """Of the processes with the worst verdict the least precise."""
    verdict = worst([estimate.verdict for estimate in processes])
    return max((e for e in processes if e.verdict == verdict), key=lambda estimate: estimate.high_s - estimate.low_s)


def combine_results(results: Sequence[Result], strict: bool = False) -> Result:
    """One result of a case from those of its processes. A process that failed takes nothing away from the others,
    unless `strict`: then it decides the status."""
    good = [result for result in results if result.status == "ok"]
    failed = next((result for result in results if result.status != "ok"), None)
    estimates = tuple(estimate for result in good or results for estimate in result.processes)
    latest = good[-1] if good else results[0]
    phases = {name for result in results for name in result.phases_s}
    estimate = combine(estimates) if estimates else None
    reason = failed.reason if failed else latest.reason
    if failed and len(results) > 1:
        reason = f"process {results.index(failed) + 1}: {failed.reason}"
    return replace(
        latest,
        status=failed.status if failed and strict else latest.status,
        reason=reason,
        detail=failed.detail if failed else latest.detail,
        estimate=estimate,
        processes=estimates,
        work=latest.work or results[0].work,
        settings=latest.settings or results[0].settings,
        memory=most_memory([result.memory for result in results if result.memory]),
        numeric=max(
            (result.numeric for result in results if result.numeric),
            key=lambda check: check.error / check.tolerance,
            default=None,
        ),
        job=_combine_jobs([result.job for result in good if result.job], estimates),
        metrics=good[0].metrics | latest.metrics if good else latest.metrics,
        budget_s=sum(result.budget_s or 0.0 for result in results) or None,
        phases_s={name: sum(result.phases_s.get(name, 0.0) for result in results) for name in sorted(phases)},
    )


def _combine_jobs(jobs: Sequence[JobEstimate], processes: Sequence[Estimate]) -> JobEstimate | None:
    """The one that was run whole; else the first one, its steps as long as they were in all processes."""
    job = next((job for job in jobs if job.whole), jobs[0] if jobs else None)
    if job is None or job.whole or len(processes) < 2:
        return job
    return project([_over_all(stage, processes) if stage.name == STEP else stage for stage in job.stages], job)


def project(stages: Sequence[StageEstimate], job: JobEstimate) -> JobEstimate:
    """The job with these stages: its time is theirs."""
    return replace(
        job,
        stages=tuple(stages),
        seconds=sum(stage.steps * stage.center_s for stage in stages),
        low_s=sum(stage.steps * stage.low_s for stage in stages),
        high_s=sum(stage.steps * stage.high_s for stage in stages),
    )


def _over_all(stage: StageEstimate, processes: Sequence[Estimate]) -> StageEstimate:
    """A sum of many steps follows their mean, not their median."""
    means = [replace(process, center_s=process.mean_s) for process in processes]
    found = _with_spread(means[0], means)
    return replace(stage, center_s=found.center_s, low_s=max(found.low_s, 0.0), high_s=found.high_s)


def most_memory(memories: Sequence[Memory]) -> Memory | None:
    """The reading with the highest peak."""
    return max(memories, key=lambda memory: memory.device_peak_bytes or memory.host_peak_bytes or 0, default=None)


def between_reach(processes: Sequence[Estimate]) -> float:
    """Half the 95% interval: Student's t on the centres, never below what each process claims for itself."""
    centers = np.array([estimate.center_s for estimate in processes])
    count = len(centers)
    within = math.sqrt(float(np.mean([((e.high_s - e.low_s) / 2) ** 2 for e in processes])) / count)
    t = critical(count - 1, 1 - CONFIDENCE)
    return max(t * float(centers.std(ddof=1)) / math.sqrt(count), within)


def _union(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))
