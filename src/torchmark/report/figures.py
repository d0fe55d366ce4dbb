"""What every report says about a result, worked out once: figures, grades, jobs, meters, costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from torchmark.analyze.efficiency import Cost, Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.wording import counted, plural
from torchmark.records import Bound, Estimate, JobEstimate, Metered, Result, Run
from torchmark.report import units
from torchmark.report.units import NOTHING, duration, percent, relative

UNKNOWN = "±?"  # of one process, where it is not known how far others would differ
_STAGES = 2  # of a job, that a line names
_NOTABLE = 0.01  # a change from here on is reported
_VAGUE = 0.1  # an interval that reaches so far says nothing


def step_time(estimate: Estimate) -> str:
    """The time of a step, which is not below zero."""
    return duration(max(estimate.center_s, 0.0))


def margin(estimate: Estimate) -> str:
    """Where a repeat would land, relative to the step; in seconds where the step is no longer than the call of one."""
    if estimate.verdict == "as-published":
        return NOTHING
    if estimate.center_s <= estimate.call_cost_s:
        return f"±{duration((estimate.high_s - estimate.low_s) / 2)}"
    return UNKNOWN if estimate.spread is None else relative(estimate.precision)


def step_rate(result: Result) -> float | None:
    """Items per second; None where a step has no items, as for the empty workload."""
    return _per_second(result, result.work.items if result.work else None)


def rate(result: Result) -> str:
    """50.6k sample/s"""
    return units.rate(step_rate(result), result.work.unit if result.work else "")


def step_flops(result: Result) -> float | None:
    """Floating-point operations per second."""
    return _per_second(result, result.work.flops if result.work else None)


def step_bandwidth(result: Result) -> float | None:
    """Bytes per second that the work needs at least."""
    return _per_second(result, result.work.bytes if result.work else None)


def _per_second(result: Result, amount: float | None) -> float | None:
    center = result.estimate.center_s if result.estimate else 0.0
    return amount / center if amount and center > 0 else None


def first_step(result: Result) -> float | None:
    """The first step with its start-up cost; None where it was not timed."""
    return result.estimate.first_step_s or None if result.estimate else None


def tail(result: Result) -> float | None:
    """The p99, where single steps were timed: a block of steps has no tail."""
    estimate = result.estimate
    return estimate.p99_s if estimate and estimate.block_size == 1 and estimate.p99_s > 0 else None


def peak_memory(result: Result) -> int | None:
    """Bytes: of the device where it has memory of its own."""
    return (result.memory.device_peak_bytes or result.memory.host_peak_bytes) if result.memory else None


def is_printed(result: Result) -> bool:
    """Whether it stands in a publication."""
    return "printed" in result.settings


def printed(result: Result) -> str:
    """A published figure as it was printed; with its unit, which may have stood in the heading."""
    text, unit = (str(result.settings.get(name) or "") for name in ("printed", "unit"))
    return f"{text} {unit}" if text[-1:].isdigit() else text or NOTHING


def grade_text(result: Result) -> str:
    """good, fair: contended; the status where there is no figure; nothing for a published figure."""
    if result.status != "ok" or result.estimate is None:
        return result.status
    grade = grade_of(result)
    return grade.text if grade else ""


def peak(result: Result) -> str:
    """58% compute: the share of this machine's best, and what bounds it."""
    return f"{percent(result.peak.share)} {result.peak.bound}" if result.peak else NOTHING


def by_bound(run: Run) -> list[tuple[str, list[tuple[Result, float]]]]:
    """Each bound with the results that it bounds and their shares, the closest to the machine's best first."""
    known = [(result, result.peak) for result in run.results if result.peak]
    known.sort(key=lambda each: -each[1].share)
    bounds = {name: [(result, peak.share) for result, peak in known if peak.bound == name] for name in get_args(Bound)}
    return [(name, bounded) for name, bounded in bounds.items() if bounded]


def process_count(result: Result) -> int:
    """Fresh processes behind the figure."""
    return max(1, len(result.processes))


def interval_note(run: Run) -> str | None:
    """What ± means, and how many processes are behind the figures."""
    counts = {process_count(result) for result in run.results if result.estimate and not is_published(result)}
    if not counts:
        return None
    low, high = min(counts), max(counts)
    each = f"{low} to {high} processes" if low < high else counted(low, "process")
    return f"± is where a repeat of this command on this machine would land (95%). {each} per case."


def job(result: Result) -> str:
    """How long a whole job takes, and how that is known; empty where the case is no job."""
    found = result.job
    if found is None or not any(stage.steps for stage in found.stages):
        return ""
    known = "run whole" if found.whole else f"projected ({duration(found.low_s)} to {duration(found.high_s)})"
    return f"{duration(found.seconds)} {known}: {_stages(found)}{f'; {found.note}' if found.note else ''}"


def _stages(found: JobEstimate) -> str:
    """The stages that take most of the time."""
    stages = sorted((stage for stage in found.stages if stage.steps), key=lambda stage: -stage.steps * stage.center_s)
    listed = ", ".join(f"{stage.steps} × {stage.name}" for stage in stages[:_STAGES])
    return listed + (", …" if len(stages) > _STAGES else "")


def time_by_phase(run: Run) -> str | None:
    """Where the time went, over all cases and processes, longest first."""
    names = dict.fromkeys(name for result in run.results for name in result.phases_s)
    spent = {name: sum(result.phases_s.get(name, 0.0) for result in run.results) for name in names}
    parts = [f"{name} {duration(seconds)}" for name, seconds in sorted(spent.items(), key=lambda item: -item[1])]
    return f"Time went to: {', '.join(parts)}." if parts else None


def energy(result: Result) -> str:
    """The energy of one item; of a step where a step has no items."""
    joules, unit = item_energy(result), result.work.unit if result.work else ""
    if joules is None:
        joules, unit = step_energy(result.estimate) if result.estimate else None, "step"
    mark = "~" if result.provenance.get("energy", "").startswith("estimated") else ""
    return NOTHING if joules is None else f"{mark}{units.energy(joules)}/{unit}"


def knows_energy(result: Result) -> bool:
    """Whether a meter measured its power."""
    return bool(result.estimate and result.estimate.metered.mean_w is not None)


def readings(result: Result) -> Iterator[tuple[str, str]]:
    """Everything that meters read, each with where it comes from, or why it is missing."""
    seen = result.estimate.metered if result.estimate else Metered()
    clock, heat = seen.clock_hz, seen.temperature_c
    texts = {
        "energy": _power(result, seen),
        "clock": f"{clock[1] / 1e9:.2f} GHz at last, at most {clock[0] / 1e9:.2f} GHz" if clock else "",
        "temperature": f"{heat[0]:.0f} °C at first, at most {heat[1]:.0f} °C" if heat else "",
        "throttling": ", ".join(seen.throttle),
    }
    for name, source in result.provenance.items():
        known, text = name in texts, texts.pop(name, "")
        if known or source.startswith("unavailable"):  # the sources of contention are reported with it
            yield name, f"{text} ({source})" if text else source
    yield from ((name, text) for name, text in texts.items() if text)
    if seen.major_faults:
        yield "from disk", f"{seen.major_faults} pages"


def _power(result: Result, seen: Metered) -> str:
    if seen.mean_w is None or result.estimate is None:
        return ""
    peak = f" (peak {units.power(seen.peak_w)})" if seen.peak_w is not None else ""
    each = f", {energy(result)}" if item_energy(result) is not None else ""
    return f"{units.power(seen.mean_w)}{peak}, {units.energy(step_energy(result.estimate))}/step{each}"


def sustained(result: Result) -> str:
    """2.53 ms a step in the first 10 s, 2.71 ms in the last: 7.1% slower (6.8% to 7.5%), +3.2% a minute"""
    found = result.sustained
    if found is None or found.first_s <= 0:
        return ""
    change, (low, high) = found.last_s / found.first_s - 1, found.interval
    first, last, window = map(duration, (found.first_s, found.last_s, found.window_s))
    ends = f"{first} a step in the first {window}, {last} in the last"
    if low <= 0 <= high and max(-low, high) > _VAGUE:
        return f"{ends}: too noisy to tell them apart ({signed(low)} to {signed(high)})"
    if low <= 0 <= high or abs(change) < _NOTABLE:
        return f"{ends}: the same within {percent(max(abs(low), abs(high)))}"
    between = " to ".join(percent(abs(bound)) for bound in sorted((low, high), key=abs))
    cause = found.cause or ("no meter shows why" if change > 0 else "")
    said = f"{ends}: {percent(abs(change))} {'slower' if change > 0 else 'faster'} ({between})"
    return f"{said}, {signed(found.slope)} a minute" + (f"; {cause}" if cause else "")


def signed(share: float) -> str:
    """+2.1%"""
    return ("+" if share >= 0 else "") + percent(share)


def cost_heading(prices: Prices) -> str:
    """Cost at your prices: 2.50 an hour of this machine, 0.300 a kilowatt-hour"""
    named = [
        f"{units.digits(prices.hour)} an hour of this machine" if prices.hour is not None else "",
        f"{units.digits(prices.kilowatt_hour)} a kilowatt-hour" if prices.kilowatt_hour is not None else "",
    ]
    return f"Cost at your prices: {', '.join(filter(None, named))}"


def costs(results: Sequence[Result], prices: Prices) -> list[tuple[Result, Cost]]:
    """The results that have a cost."""
    found = [(result, cost_of(result, prices)) for result in results]
    return [(result, cost) for result, cost in found if cost is not None]


def cost_text(result: Result, cost: Cost) -> str:
    """0.0123 for a million samples, 0.45 an epoch, 4.5 the whole job"""
    many = plural(result.work.unit if result.work else "item")
    parts = [
        f"{units.digits(cost.million_items)} for a million {many}" if cost.million_items is not None else "",
        f"{units.digits(cost.epoch)} an epoch" if cost.epoch is not None else "",
        f"{units.digits(cost.job)} the whole job" if cost.job is not None else "",
    ]
    return ", ".join(filter(None, parts))


def cost_note(results: Sequence[Result], prices: Prices) -> str:
    """What the costs leave out: power that was not metered, and work without items."""
    measured = [result for result in results if result.status == "ok" and result.estimate]
    silent = [result for result in measured if not knows_energy(result)]
    if prices.kilowatt_hour is None or not silent:
        return "" if costs(results, prices) else "No result has items that could be counted."
    why = silent[0].provenance.get("energy", "unavailable because it was not metered")
    which = "Power is" if len(silent) == len(measured) else f"The power of {len(silent)} cases is"
    return f"{which} {why}, so that its price is not in the cost."
