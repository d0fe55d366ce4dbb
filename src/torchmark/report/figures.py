"""What every report says about a result, worked out once."""

from __future__ import annotations

from typing import get_args

from torchmark.analyze.published import is_published as is_published  # for those who ask about figures
from torchmark.records import Bound, Estimate, JobEstimate, Result, Run
from torchmark.report.units import NOTHING, duration, percent, relative

UNKNOWN = "±?"  # of one process, where it is not known how far others would differ
_STAGES = 2  # of a job, that a line names


def step_time(estimate: Estimate) -> str:
    """The time of a step; one that came out below nothing is nothing."""
    return duration(max(estimate.center_s, 0.0))


def margin(estimate: Estimate) -> str:
    """Where a repeat would land, relative to the step; in seconds where the step is no longer than the call of one."""
    if estimate.verdict == "as-published":
        return NOTHING
    if estimate.center_s <= estimate.call_cost_s:
        return f"±{duration((estimate.high_s - estimate.low_s) / 2)}"
    return UNKNOWN if estimate.spread is None else relative(estimate.precision)


def step_rate(result: Result) -> float | None:
    """Items per second; None where a step is worth nothing, as for the empty workload."""
    return _per_second(result, result.work.items if result.work else None)


def step_flops(result: Result) -> float | None:
    """Floating-point operations per second."""
    return _per_second(result, result.work.flops if result.work else None)


def step_bandwidth(result: Result) -> float | None:
    """Bytes per second that the work cannot do without."""
    return _per_second(result, result.work.bytes if result.work else None)


def first_step(result: Result) -> float | None:
    """The first step, start-up cost and all; None where nobody looked at it."""
    return result.estimate.first_step_s or None if result.estimate else None


def is_printed(result: Result) -> bool:
    """Whether it stands in a publication."""
    return "printed" in result.settings


def printed(result: Result) -> str:
    """A published figure as it was printed; with its unit, which may have stood in the heading."""
    text, unit = (str(result.settings.get(name) or "") for name in ("printed", "unit"))
    return f"{text} {unit}" if text[-1:].isdigit() else text or NOTHING


def peak(result: Result) -> str:
    """58% compute: the share of this machine's best, and what bounds it."""
    return f"{percent(result.peak.share)} {result.peak.bound}" if result.peak else NOTHING


def by_bound(run: Run) -> list[tuple[str, list[tuple[Result, float]]]]:
    """What bounds, with the results that it bounds and their shares, the closest to the machine's best first."""
    known = [(result, result.peak) for result in run.results if result.peak]
    known.sort(key=lambda each: -each[1].share)
    bounds = {name: [(result, peak.share) for result, peak in known if peak.bound == name] for name in get_args(Bound)}
    return [(name, bounded) for name, bounded in bounds.items() if bounded]


def tail(result: Result) -> float | None:
    """The p99, where single steps were timed: a block of steps has no tail to speak of."""
    estimate = result.estimate
    return estimate.p99_s if estimate and estimate.block_size == 1 and estimate.p99_s > 0 else None


def process_count(result: Result) -> int:
    """Fresh processes behind the figure."""
    return max(1, len(result.processes))


def interval_note(run: Run) -> str | None:
    """What ± means, and how many processes are behind the figures."""
    counts = {process_count(result) for result in run.results if result.estimate and not is_published(result)}
    if not counts:
        return None
    low, high = min(counts), max(counts)
    each = f"{low} to {high} processes" if low < high else f"{low} process{'es' * (low > 1)}"
    return f"± is where a repeat of this command on this machine would land (95%). {each} per case."


def jobs(run: Run) -> list[tuple[Result, str]]:
    """How long whole jobs take, and how that is known."""
    found = []
    for result in run.results:
        if result.job is None or not any(stage.steps for stage in result.job.stages):
            continue
        interval = f"projected ({duration(result.job.low_s)} to {duration(result.job.high_s)})"
        known = "run whole" if result.job.whole else interval
        note = f"; {result.job.note}" if result.job.note else ""
        found.append((result, f"{duration(result.job.seconds)} {known}: {_stages(result.job)}{note}"))
    return found


def _stages(job: JobEstimate) -> str:
    """The stages that take most of the time."""
    stages = sorted((stage for stage in job.stages if stage.steps), key=lambda stage: -stage.steps * stage.center_s)
    listed = ", ".join(f"{stage.steps} × {stage.name}" for stage in stages[:_STAGES])
    return listed + (", …" if len(stages) > _STAGES else "")


def time_by_phase(run: Run) -> str | None:
    """Where the time went, over all cases and processes, longest first."""
    names = dict.fromkeys(name for result in run.results for name in result.phases_s)
    spent = {name: sum(result.phases_s.get(name, 0.0) for result in run.results) for name in names}
    parts = [f"{name} {duration(seconds)}" for name, seconds in sorted(spent.items(), key=lambda item: -item[1])]
    return f"Time went to: {', '.join(parts)}." if parts else None


def failures(run: Run) -> list[tuple[Result, str]]:
    """Results without a figure, each with its reason."""
    return [(result, result.reason or "no reason was given") for result in run.results if result.status != "ok"]


def _per_second(result: Result, amount: float | None) -> float | None:
    center = result.estimate.center_s if result.estimate else 0.0
    return amount / center if amount and center > 0 else None
