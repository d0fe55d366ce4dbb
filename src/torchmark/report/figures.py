"""What every report says about a result, worked out once: figures, grades, jobs, meters, costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from torchmark.analyze.efficiency import Cost, Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.wording import counted, plural
from torchmark.records import Estimate, Metered, Result, Run
from torchmark.report import units
from torchmark.report.text import shorten
from torchmark.report.units import NOTHING, duration, percent, relative


def step_time(estimate: Estimate | None) -> str:
    """The time of a step, which is not below zero."""
    return duration(max(estimate.center_s, 0.0)) if estimate else NOTHING


def margin(estimate: Estimate | None) -> str:
    """Where a repeat would land, relative to the step; in seconds where the step is no longer than the call of one."""
    if estimate is None or estimate.verdict == "as-published":
        return NOTHING
    if estimate.center_s <= estimate.call_cost_s:
        return f"±{duration((estimate.high_s - estimate.low_s) / 2)}"
    # Of one process it is not known how far others would differ.
    return "±?" if estimate.spread is None else relative(estimate.precision)


def step_rate(result: Result, amount: Literal["items", "flops", "bytes"] = "items") -> float | None:
    """Items, operations, or bytes that the work needs at least, per second; None where a step has none of them."""
    center, each = result.estimate.center_s if result.estimate else 0.0, getattr(result.work, amount, None)
    return each / center if each and center > 0 else None


def rate(result: Result) -> str:
    return units.rate(step_rate(result), shorten(result.work.unit, 24) if result.work else "")


def peak_memory(result: Result) -> int | None:
    """Bytes: of the device where it has memory of its own."""
    return (result.memory.device_peak_bytes or result.memory.host_peak_bytes) if result.memory else None


def printed(result: Result) -> str:
    """A published figure as it was printed; with its unit, which may have stood in the heading."""
    text, unit = (str(result.settings.get(name) or "") for name in ("printed", "unit"))
    return f"{text} {unit}" if text[-1:].isdigit() else text or NOTHING


def grade_text(result: Result) -> str:
    """good, fair: contended; the status where there is no figure; nothing for a published figure."""
    if result.status != "ok" or result.estimate is None:
        return result.status
    return grade.text if (grade := grade_of(result)) else ""


def interval_note(run: Run) -> str:
    """What ± means, and how many processes are behind the figures; empty for published ones."""
    measured = [result for result in run.results if result.estimate and not is_published(result)]
    if not measured:
        return ""
    counts = [max(1, len(result.processes)) for result in measured]
    low, high = min(counts), max(counts)
    each = f"{low} to {high} processes" if low < high else counted(low, "process")
    return f"± is where a repeat of this command on this machine would land (95%). {each} per case."


def job(result: Result) -> str:
    """How long a whole job takes, and how that is known; empty where the case is no job."""
    found = result.job
    if found is None or not any(stage.steps for stage in found.stages):
        return ""
    stages = sorted((stage for stage in found.stages if stage.steps), key=lambda stage: -stage.steps * stage.center_s)
    listed = [f"{stage.steps} × {stage.name}" for stage in stages[:2]] + ["…"] * (len(stages) > 2)
    known = "run whole" if found.whole else f"projected ({duration(found.low_s)} to {duration(found.high_s)})"
    return f"{duration(found.seconds)} {known}: {', '.join(listed)}{f'; {found.note}' if found.note else ''}"


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


def readings(result: Result) -> Iterator[tuple[str, str]]:
    """Everything that meters read, each with where it comes from, or why it is missing."""
    seen = result.estimate.metered if result.estimate else Metered()
    clock, heat, power = seen.clock_hz, seen.temperature_c, ""
    if result.estimate and seen.mean_w is not None:
        most = f" (peak {units.power(seen.peak_w)})" if seen.peak_w is not None else ""
        each = f", {energy(result)}" if item_energy(result) is not None else ""
        power = f"{units.power(seen.mean_w)}{most}, {units.energy(step_energy(result.estimate))}/step{each}"
    texts = {
        "energy": power,
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


def sustained(result: Result) -> str:
    """2.53 ms a step in the first 10 s, 2.71 ms in the last: 7.1% slower (6.8% to 7.5%), +3.2% a minute"""
    found = result.sustained
    if found is None or found.first_s <= 0:
        return ""
    change, (low, high) = found.last_s / found.first_s - 1, found.interval
    first, last, window = map(duration, (found.first_s, found.last_s, found.window_s))
    ends = f"{first} a step in the first {window}, {last} in the last"
    if low <= 0 <= high and max(-low, high) > 0.1:
        return f"{ends}: too noisy to distinguish ({units.signed(low)} to {units.signed(high)})"
    if low <= 0 <= high or abs(change) < 0.01:
        return f"{ends}: the same within {percent(max(abs(low), abs(high)))}"
    between = " to ".join(percent(abs(bound)) for bound in sorted((low, high), key=abs))
    cause = found.cause or ("no meter shows why" if change > 0 else "")
    said = f"{ends}: {percent(abs(change))} {'slower' if change > 0 else 'faster'} ({between})"
    return f"{said}, {units.signed(found.slope)} a minute" + (f"; {cause}" if cause else "")


def cost_heading(prices: Prices) -> str:
    """Cost at your prices: 2.50 an hour of this machine, 0.300 a kilowatt-hour"""
    named = {"an hour of this machine": prices.hour, "a kilowatt-hour": prices.kilowatt_hour}
    said = [f"{units.digits(price)} {what}" for what, price in named.items() if price is not None]
    return f"Cost at your prices: {', '.join(said)}"


def costs(results: Sequence[Result], prices: Prices) -> list[tuple[Result, Cost]]:
    found = [(result, cost_of(result, prices)) for result in results]
    return [(result, cost) for result, cost in found if cost is not None]


def cost_text(result: Result, cost: Cost) -> str:
    """0.0123 for a million samples, 0.45 an epoch, 4.5 the whole job"""
    many = plural(result.work.unit if result.work else "item")
    parts = {f"for a million {many}": cost.million_items, "an epoch": cost.epoch, "the whole job": cost.job}
    return ", ".join(f"{units.digits(value)} {what}" for what, value in parts.items() if value is not None)


def cost_note(results: Sequence[Result], prices: Prices) -> str:
    """What the costs leave out: power that was not metered, and work without items."""
    measured = [result for result in results if result.status == "ok" and result.estimate]
    silent = [result for result in measured if result.estimate and result.estimate.metered.mean_w is None]
    if prices.kilowatt_hour is None or not silent:
        return "" if costs(results, prices) else "No result has items that could be counted."
    why = silent[0].provenance.get("energy", "unavailable because it was not metered")
    which = "Power is" if len(silent) == len(measured) else f"The power of {len(silent)} cases is"
    return f"{which} {why}, so that its price is not in the cost."
