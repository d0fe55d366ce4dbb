"""Results in words, as a table, CSV and JSON: figures, jobs, meters, costs, failures and cautions."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from torchmark.analyze.efficiency import Cost, Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.analyze.pairing import grouped
from torchmark.analyze.wording import counted, plural
from torchmark.records import Estimate, Metered, Remark, Result, Run, RunHeader
from torchmark.report import document as doc
from torchmark.report import units
from torchmark.report.names import Names
from torchmark.report.text import shorten
from torchmark.report.units import NOTHING, duration, percent, relative

_WIDE, _WIDEST = 120, 150  # widths of a terminal that show more figures
_REASON = 160
# A good grade answers these; `show --details` has them nevertheless.
_ANSWERED = frozenset(("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread"))

Maker = Callable[[Result], str | doc.Cell]


def step_time(estimate: Estimate | None) -> str:
    """Never below zero."""
    return duration(max(estimate.center_s, 0.0)) if estimate else NOTHING


def margin(estimate: Estimate | None) -> str:
    """Where a repeat would land, as a share; in seconds where a step takes no longer than its call."""
    if estimate is None or estimate.verdict == "as-published":
        return NOTHING
    if estimate.center_s <= estimate.call_cost_s:
        return f"±{duration((estimate.high_s - estimate.low_s) / 2)}"
    return "±?" if estimate.spread is None else relative(estimate.precision)  # one process says nothing of others


def step_rate(result: Result, amount: Literal["items", "flops", "bytes"] = "items") -> float | None:
    """Per second; None where a step has none of them."""
    center, each = result.estimate.center_s if result.estimate else 0.0, getattr(result.work, amount, None)
    return each / center if each and center > 0 else None


def rate(result: Result) -> str:
    return units.rate(step_rate(result), shorten(result.work.unit, 24) if result.work else "")


def peak_memory(result: Result) -> int | None:
    """Of the device where it has its own."""
    return (result.memory.device_peak_bytes or result.memory.host_peak_bytes) if result.memory else None


def printed(result: Result) -> str:
    """As printed, with its unit, which may have been in the heading."""
    text, unit = (str(result.settings.get(name) or "") for name in ("printed", "unit"))
    return f"{text} {unit}" if text[-1:].isdigit() else text or NOTHING


def grade_text(result: Result) -> str:
    """good, fair: contended; the status of a failure; empty for a published figure"""
    if result.status != "ok" or result.estimate is None:
        return result.status
    return grade.text if (grade := grade_of(result)) else ""


def interval_note(run: Run) -> str:
    """What ± means and how many processes it rests on; empty for published figures."""
    counts = [max(1, len(each.processes)) for each in run.results if each.estimate and not is_published(each)]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    each = f"{low} to {high} processes" if low < high else counted(low, "process")
    return f"± is where a repeat of this command on this machine would land (95%). {each} per case."


def job(result: Result) -> str:
    """The time of a whole job and how it is known; empty if the case is none."""
    found = result.job
    if found is None or not any(stage.steps for stage in found.stages):
        return ""
    stages = sorted((stage for stage in found.stages if stage.steps), key=lambda stage: -stage.steps * stage.center_s)
    listed = [f"{stage.steps} × {stage.name}" for stage in stages[:2]] + ["…"] * (len(stages) > 2)
    known = "run whole" if found.whole else f"projected ({duration(found.low_s)} to {duration(found.high_s)})"
    return f"{duration(found.seconds)} {known}: {', '.join(listed)}{f'; {found.note}' if found.note else ''}"


def time_by_phase(run: Run) -> str | None:
    """Over all cases and processes, longest first."""
    names = dict.fromkeys(name for result in run.results for name in result.phases_s)
    spent = {name: sum(result.phases_s.get(name, 0.0) for result in run.results) for name in names}
    parts = [f"{name} {duration(seconds)}" for name, seconds in sorted(spent.items(), key=lambda item: -item[1])]
    return f"Time went to: {', '.join(parts)}." if parts else None


def energy(result: Result) -> str:
    """Of an item, or of a step without items."""
    joules, unit = item_energy(result), result.work.unit if result.work else ""
    if joules is None:
        joules, unit = step_energy(result.estimate) if result.estimate else None, "step"
    mark = "~" if result.provenance.get("energy", "").startswith("estimated") else ""
    return NOTHING if joules is None else f"{mark}{units.energy(joules)}/{unit}"


def readings(result: Result) -> Iterator[tuple[str, str]]:
    """What meters read, with the source or why there is nothing."""
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
    yield "from disk", f"{seen.major_faults} pages" if seen.major_faults else ""


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


def cost_text(result: Result, prices: Prices) -> str:
    """0.0123 for a million samples, 0.45 an epoch, 4.5 the whole job"""
    cost, many = cost_of(result, prices) or Cost(), plural(result.work.unit if result.work else "item")
    parts = {f"for a million {many}": cost.million_items, "an epoch": cost.epoch, "the whole job": cost.job}
    return ", ".join(f"{units.digits(value)} {what}" for what, value in parts.items() if value is not None)


def cost_note(results: Sequence[Result], prices: Prices) -> str:
    measured = [result for result in results if result.status == "ok" and result.estimate]
    silent = [result for result in measured if result.estimate and result.estimate.metered.mean_w is None]
    if prices.kilowatt_hour is None or not silent:
        return "" if any(cost_of(each, prices) for each in results) else "No result has items that could be counted."
    why = silent[0].provenance.get("energy", "unavailable because it was not metered")
    which = "Power is" if len(silent) == len(measured) else f"The power of {len(silent)} cases is"
    return f"{which} {why}, so that its price is not in the cost."


def results_table(results: Sequence[Result], name: Maker, machine: Maker = lambda _: "", title: str = "") -> doc.Table:
    """A row for each result, without columns that have no figure; a failed one has its status."""
    figured, kept = {id(each) for each in results if each.status == "ok" and each.estimate}, []
    for column in (doc.Column("case", "case", of=name), doc.Column("machine", of=machine), *_FIGURES):
        cells = [column.cell(each) if id(each) in figured or not column.is_number else NOTHING for each in results]
        if column.title in ("per step", "rate") or any(doc.as_cell(cell).text not in ("", NOTHING) for cell in cells):
            kept.append((column, cells))
    rows = list(zip(*(cells for _, cells in kept), strict=True))
    return doc.Table([column for column, _ in kept], rows, caption=title)


def grade_cell(result: Result) -> doc.Cell:
    failed = result.status != "ok" or result.estimate is None
    return doc.judged(grade_text(result), shorten(result.reason or "", _REASON) if failed else "")


def _first_step(result: Result) -> float | None:
    """None where it was not timed here."""
    return None if is_published(result) else doc.value_of(result, "estimate.first_step_s") or None


def _tail(result: Result) -> float | None:
    """Only of single steps: a block of them has no tail."""
    estimate = None if is_published(result) else result.estimate
    return estimate.p99_s if estimate and estimate.block_size == 1 and estimate.p99_s > 0 else None


def _whole_job(result: Result) -> str:
    return f"whole job {duration(result.job.seconds)}" if result.job and result.job.seconds > 0 else ""


def _share(result: Result) -> str:
    return f"{percent(result.peak.share)} {result.peak.bound}" if result.peak else NOTHING


def _power(result: Result) -> str:
    power = doc.value_of(result, "estimate.metered.mean_w")
    return "" if power is None else units.power(power)


_FLOPS, _BYTES = partial(step_rate, amount="flops"), partial(step_rate, amount="bytes")
_AGAIN = "where a repeat would land, 95%"
_PEAK = "share of the highest rate measured on this machine, and the limiting resource"
_P99 = "99% of steps take no longer than this"
_MEMORY = "peak; device memory where the device has its own"
_FIGURES = (
    doc.Column("per step", "figure", of="estimate", written=step_time, key="estimate.center_s", note=_whole_job),
    doc.Column("±", "figure", 1, about=_AGAIN, of="estimate", written=margin, key="estimate.precision"),
    doc.Column("published", "figure", 2, of=printed),
    doc.Column("rate", "figure", 3, wraps=True, about="items per second", of=rate, key=step_rate),
    doc.Column("of peak", "figure", 4, _WIDE, wraps=True, about=_PEAK, of=_share, key="peak.share"),
    doc.Column("first step", "figure", 5, _WIDE, minor=True, of=_first_step, written=duration),
    doc.Column("p99", "figure", 6, _WIDE, minor=True, about=_P99, of=_tail, written=duration),
    doc.Column("memory", "figure", 10, _WIDEST - 1, minor=True, about=_MEMORY, of=peak_memory, written=units.size),
    doc.Column(
        "energy", "figure", 7, _WIDE, minor=True, wraps=True, about="per item", of=energy, key=item_energy, note=_power
    ),
    doc.Column("arithmetic", "figure", 8, _WIDEST, minor=True, of=_FLOPS, written=units.arithmetic),
    doc.Column("bandwidth", "figure", 9, _WIDEST, minor=True, of=_BYTES, written=units.bandwidth),
    doc.Column("grade", of=grade_cell),
)


def failures(results: Sequence[Result], called: Callable[[Result], str]) -> doc.Remarks:
    """Results without a figure, by reason."""
    failed = (each for each in results if each.status != "ok")
    alike = grouped(failed, lambda each: (each.status, each.reason or "no reason was given", each.detail))
    remarks = [Remark(status, why, cases=tuple(map(called, own))) for (status, why, _), own in alike.items()]
    return doc.Remarks(remarks, local=[detail for _, _, detail in alike])


def cautions(run: Run, names: Names) -> list[Remark]:
    """The cautions of all results, equal ones together, by kind. Without cases: about all of them."""
    cases: dict[Remark, list[str]] = {}
    for result in run.results:
        grade = grade_of(result)
        # Noise inside a process is small next to the spread between several, which ± covers.
        noise = {"noisy"} if len(result.processes) > 1 else frozenset()
        hidden = _ANSWERED if grade and grade.word == "good" else noise
        for caution in dict.fromkeys(caution for caution in result.cautions if caution.kind not in hidden):
            cases.setdefault(caution, []).append(names.of(result))
    figured = {names.of(result) for result in run.results if result.estimate}
    everywhere = figured if len(figured) > 1 else {""}
    return [
        replace(caution, cases=() if everywhere <= set(called) else tuple(called))
        for alike in grouped(cases.items(), lambda each: each[0].kind).values()
        for caution, called in alike
    ]


def records_of(runs: Sequence[Run], prices: Prices | None = None, json: Callable[[], Any] | None = None) -> doc.Records:
    """A CSV row and a JSON line per result; `json` replaces the object."""
    return doc.Records(
        _CSV | doc.fields(_COSTS if prices else ""),
        lambda: (_row(run.header, result, prices) for run in runs for result in run.results),
        json or (lambda: {"runs": [run_object(run, prices) for run in runs]}),
        lambda: (_priced(result, prices) for run in runs for result in run.results),
    )


def run_object(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> dict[str, Any]:
    """`run`: the header and all about the whole run; `results`: one entry per case."""
    cases = dict.fromkeys((*run.header.cases, *(result.case.text for result in run.results)))  # a search adds some
    about = msgspec.to_builtins(run.header)
    about |= {"cases": [*cases], "process_spread": run.process_spread, "problems": run.problems}
    about |= {name: study for name in ("tuning", "fitting", "limiting", "live") if (study := getattr(run, name))}
    results = [_priced(result, prices) for result in run.results]
    whole = {"run": about, "prices": prices, "results": results, "headline": headline}
    return {name: each for name, each in whole.items() if each or name in ("run", "results")}


def _priced(result: Result, prices: Prices | None) -> Any:
    return msgspec.to_builtins(result) | {"cost": cost_of(result, prices)} if prices else result


def _row(header: RunHeader, result: Result, prices: Prices | None) -> dict[str, Any]:
    """The values of a CSV row; `sampled`: the estimate unless it was published."""
    machine, estimate = header.machine, result.estimate
    sampled = None if is_published(result) else estimate
    return {
        "header": header,
        "machine": machine.cpu or ", ".join(device.model for device in machine.devices),
        "result": result,
        "estimate": estimate,
        "sampled": sampled,
        "grade": grade_of(result) if sampled else None,
        "flags": " ".join(sampled.flags) if sampled else None,
        **{f"{amount}_per_s": step_rate(result, amount) for amount in ("items", "flops", "bytes")},
        "first_step_s": estimate.first_step_s or None if estimate else None,
        "processes": max(1, len(result.processes)) if sampled else None,
        "cautions": " ".join(dict.fromkeys(caution.kind for caution in result.cautions)),
        "step_j": step_energy(estimate) if estimate else None,
        "item_j": item_energy(result),
        "energy": result.provenance.get("energy") if estimate else None,
        "throttle": ", ".join(estimate.metered.throttle) if estimate else None,
        "cost": cost_of(result, prices) if prices else None,
    }


_CSV = doc.fields("""
    run=header.id label=header.label created=header.created machine torch=header.machine.torch case=result.case.text
    workload=result.case.workload version=result.version mode=result.case.mode device=result.case.device
    dtype=result.case.dtype status=result.status reason=result.reason verdict=estimate.verdict grade=grade.word flags
    estimand=estimate.estimand step_s=estimate.center_s low_s=sampled.low_s high_s=sampled.high_s
    precision=sampled.precision items_per_s unit=result.work.unit flops_per_s bytes_per_s peak_share=result.peak.share
    bound=result.peak.bound first_step_s min_s=sampled.min_s median_s=sampled.median_s mean_s=sampled.mean_s
    p90_s=sampled.p90_s p99_s=sampled.p99_s processes sample_count=sampled.sample_count
    effective_samples=sampled.effective_samples host_peak_bytes=result.memory.host_peak_bytes
    device_peak_bytes=result.memory.device_peak_bytes cautions mean_w=estimate.metered.mean_w
    peak_w=estimate.metered.peak_w step_j item_j energy clock_hz=estimate.metered.clock_hz.1
    temperature_c=estimate.metered.temperature_c.1 throttle burst_step_s=result.sustained.first_s
    sustained_step_s=result.sustained.last_s
""")
_COSTS = "cost_per_million_items=cost.million_items cost_per_epoch=cost.epoch cost_per_job=cost.job"
