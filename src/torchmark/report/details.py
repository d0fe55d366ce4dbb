"""Everything that is known about one result, for the reader who wants to know where a figure comes from."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torchmark.analyze.efficiency import Prices, cost_of
from torchmark.analyze.grades import grade_of, is_published
from torchmark.records import Contention, Estimate, Result, Run
from torchmark.report import figures, units
from torchmark.report.document import Block, Document, Facts, Section, Title
from torchmark.report.names import title
from torchmark.report.text import shorten

Row = tuple[str, str]

_BARS = "▁▂▃▄▅▆▇█"
_STRIP = 50  # columns of a strip of step times


def details_document(runs: Sequence[Run], prices: Prices | None = None) -> Document:
    """All results of the runs in full, one after the other."""

    def blocks() -> Iterator[Block]:
        for run in runs:
            yield from [Title(title(run))] if len(runs) > 1 else []
            for result in run.results:
                rows = [(name, shorten(text)) for name, text in _rows(result, prices)]
                yield Section(result.case.text, [Facts(rows)])

    return Document(blocks)


def strip(samples_s: Sequence[float], width: int = _STRIP) -> str:
    """Step times as a row of bars from the fastest to the slowest, each the median of its share of the samples."""
    width = min(width, len(samples_s))
    if not width:
        return ""
    edges = [round(index * len(samples_s) / width) for index in range(width + 1)]
    heights = [statistics.median(samples_s[start:end]) for start, end in pairwise(edges)]
    low, span = min(heights), max(heights) - min(heights)
    return "".join(_BARS[int((height - low) / span * 7.999) if span > 0 else 0] for height in heights)


def _rows(result: Result, prices: Prices | None) -> Iterator[Row]:
    yield "status", result.status + (f": {result.reason}" if result.reason else "")
    yield from (("", line) for line in (result.detail or "").splitlines())
    if result.estimate:
        yield from _published_rows(result) if is_published(result) else _estimate_rows(result.estimate)
    grade = grade_of(result)
    if grade:
        yield "grade", grade.text + (f" → {grade.fix}" if grade.fix else "")
    yield from _rate_rows(result)
    yield from _process_rows(result)
    if result.sustained:
        yield "sustained", figures.sustained(result)
    yield from figures.readings(result)
    yield from _check_rows(result)
    phases = {name: units.duration(seconds) for name, seconds in result.phases_s.items()}
    metrics = {name: units.digits(value) for name, value in result.metrics.items()}
    shown = (("parameters", result.params), ("settings", result.settings), ("metrics", metrics), ("phases", phases))
    for name, values in shown:
        known = ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)  # None: not set
        if known:
            yield name, known
    if not is_published(result):
        yield "measured with", f"rigor {result.rigor}, seed {result.seed}, workload version {result.version}"
    if result.budget_s is not None:
        yield "budget", units.duration(result.budget_s)
    for caution in result.cautions:
        yield f"caution {caution.kind}", f"{caution.cause} → {caution.fix}"
    cost = cost_of(result, prices) if prices else None
    if prices and cost:
        yield "cost", f"{figures.cost_text(result, cost)} ({figures.cost_heading(prices)})"


def _published_rows(result: Result) -> Iterator[Row]:
    """One figure for all steps together, and nothing about how sure it is."""
    assert result.estimate
    yield "per step", f"{figures.step_time(result.estimate)} (mean)"
    yield "verdict", result.estimate.verdict
    yield from (("", evidence) for evidence in result.estimate.evidence)
    if result.job:
        yield "all steps", units.duration(result.job.seconds) + ("" if result.job.whole else ", projected")
    if figures.first_step(result):
        yield "first step", units.duration(figures.first_step(result))


def _estimate_rows(found: Estimate) -> Iterator[Row]:
    duration = units.duration
    interval = f"{duration(max(found.low_s, 0.0))} to {duration(found.high_s)}"
    yield "per step", f"{figures.step_time(found)} {figures.margin(found)} ({found.estimand}, {interval})"
    yield "verdict", " ".join((found.verdict, *found.flags))
    yield from (("", evidence) for evidence in found.evidence)
    mean = f"{duration(found.mean_low_s)} to {duration(found.mean_high_s)}"
    yield "median, mean", f"{duration(found.median_s)}, {duration(found.mean_s)} ({mean})"
    yield "fastest", duration(found.min_s)
    if found.block_size == 1:
        yield "p90, p99", f"{_tail(found.p90_s, found.p90_high_s)}, {_tail(found.p99_s, found.p99_high_s)}"
    yield "spread", f"{duration(found.mad_s)} median deviation, {units.percent(found.outlier_share)} outliers"
    yield "first step", duration(found.first_step_s)
    if found.device_step_s is not None:
        yield "by device events", duration(found.device_step_s)
    blocks = f" of {found.block_size} steps" if found.block_size > 1 else ""
    worth = f"{found.warmup_cut} cut as warm-up, worth {units.digits(found.effective_samples)} independent ones"
    yield "samples", f"{found.sample_count}{blocks}, {worth}"
    yield "trend", f"{units.percent(found.trend.change)} (z {found.trend.z:.1f})"
    yield "autocorrelation", f"{units.digits(found.autocorrelation_time)} samples"
    yield "contention", _contention(found.contention)
    costs = f"{duration(found.sync_cost_s)} a synchronisation, {duration(found.call_cost_s)} a call"
    yield "costs taken off", costs
    yield "precision wanted", units.relative(found.target)
    yield "time spent", duration(found.duration_s)


def _tail(value: float, high: float | None) -> str:
    return units.duration(value) + (f" (at most {units.duration(high)})" if high is not None else "")


def _contention(found: Contention) -> str:
    shares = {
        "waited for a core": found.wait_share,
        "others' CPU": found.other_cpu_share,
        "stolen": found.steal_share,
        "throttled": found.throttled_share,
        "probe slower by": None if found.probe_dilation is None else found.probe_dilation - 1,
    }
    known = [f"{name} {units.percent(share)}" for name, share in shares.items() if share is not None]
    known += [f"{found.switches} involuntary switches"] if found.switches is not None else []
    return ", ".join(known) or "not readable here"


def _rate_rows(result: Result) -> Iterator[Row]:
    rates = [figures.rate(result), units.arithmetic(figures.step_flops(result))]
    known = [each for each in (*rates, units.bandwidth(figures.step_bandwidth(result))) if each != units.NOTHING]
    if known:
        yield "rate", ", ".join(known)
    peak = result.peak
    if peak:
        shares = [f"{name} {units.percent(share)}" for name, share in peak.shares.items() if share > 0]
        yield "of peak", f"{units.percent(peak.share)}, bound by {peak.bound} (of a step: {', '.join(shares)})"
        ceilings = (units.arithmetic(peak.flops_per_s), units.bandwidth(peak.bytes_per_s))
        found = f"found by run {peak.limits}" if peak.limits else "found in this run"
        again = ", measured again right after it" if peak.again else ""
        yield "", f"{', '.join(each for each in ceilings if each != units.NOTHING)}, {found}{again}"


def _process_rows(result: Result) -> Iterator[Row]:
    for number, process in enumerate(result.processes, 1):
        yield f"process {number}", f"{figures.step_time(process)} {figures.margin(process)} {process.verdict}"
        yield from [("", strip(process.samples_s))] if process.samples_s else []
    if result.estimate and result.estimate.samples_s and not result.processes:
        yield "step times", strip(result.estimate.samples_s)


def _check_rows(result: Result) -> Iterator[Row]:
    memory, numeric = result.memory, result.numeric
    if memory:
        peaks = {
            "host": memory.host_peak_bytes,
            "device": memory.device_peak_bytes,
            "reserved": memory.device_reserved_bytes,
        }
        known = [f"{name} {units.size(count)}" for name, count in peaks.items() if count is not None]
        yield "peak memory", ", ".join(known) or "unknown"
        if memory.provenance != "measured":
            yield "", memory.provenance
    if numeric:
        within = "within" if numeric.error <= numeric.tolerance else "beyond"
        yield "numeric check", f"error {numeric.error:.1e}, {within} {numeric.tolerance:.0e}, against {numeric.method}"
