"""The report of a run: its headline, its results and what should be read next to them; and one result in full."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import get_args

from torchmark.analyze.efficiency import Prices, Scaling, ScalingRow, cost_of, find_scaling
from torchmark.analyze.findings import find_all
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.records import Bound, Estimate, Remark, Result, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.headline import headline_blocks
from torchmark.report.names import machine_line, names_of, shared_place, title
from torchmark.report.results import cautions, failures, results_table, run_object, run_records
from torchmark.report.text import shorten

_WIDE = 120  # columns from which the table has room for the share of the peak


def run_document(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> doc.Document:
    """The report of one run; of a stored study what its command reported. With prices it has costs."""

    def blocks() -> Iterable[doc.Block]:
        if prices is not None or not (run.tuning or run.limiting or (run.fitting and run.fitting.tried)):
            return _blocks(run, prices, headline)
        from torchmark.report.limits import limits_document  # late: they import numpy
        from torchmark.report.searches import fitting_document, tuning_document

        document = tuning_document if run.tuning else fitting_document if run.fitting else limits_document
        return document(run).blocks()

    return doc.Document(blocks, run_records([run], prices, lambda: run_object(run, prices, headline)))


def runs_document(
    runs: Sequence[Run], prices: Prices | None = None, headlines: Sequence[Headline | None] = ()
) -> doc.Document:
    """Several runs in one: what they say together, then each of them."""
    pairs = list(zip(runs, headlines or [None] * len(runs), strict=True))

    def blocks() -> Iterator[doc.Block]:
        yield doc.Remarks([Remark("", found.cause) for found in find_all(runs)])
        for run, headline in pairs:
            yield from _blocks(run, prices, headline, findings=False)

    records = run_records(runs, prices, lambda: {"runs": [run_object(run, prices, found) for run, found in pairs]})
    return doc.Document(blocks, records)


def conclusion(run: Run) -> list[str]:
    """What a study came to: the answer in one sentence, then what it rests on; empty for a plain run."""
    if not (run.tuning or run.fitting or run.limiting or run.live):
        return []
    from torchmark.report import limits, live, searches  # late: they import numpy

    return [
        *(searches.tuning_conclusion(run) if run.tuning else ()),
        *(searches.fitting_conclusion(run) if run.fitting else ()),
        *(limits.conclusion(run) if run.limiting else ()),
        *(live.conclusion(run) if run.live else ()),
    ]


def _blocks(run: Run, prices: Prices | None, headline: Headline | None, findings: bool = True) -> Iterator[doc.Block]:
    names = names_of(run.results)
    yield from headline_blocks(headline, run.header.machine) if headline else ()
    machine = "" if headline else machine_line(run.header.machine, (names.place or "").partition("/")[0])
    yield doc.Title(title(run), [machine, names.note])
    yield doc.Lines(conclusion(run))
    yield results_table(run.results, lambda result: doc.Cell(names.of(result)))
    yield doc.Lines([] if run.results else ["No results"])
    yield doc.quiet(figures.interval_note(run))
    closest = [(each.peak, names.of(each)) for each in run.results if each.peak]
    closest.sort(key=lambda each: -each[0].share)
    bounds = doc.grouped((peak.bound, f"{case} {units.percent(peak.share)}") for peak, case in closest)
    shares = [Remark(bound, ", ".join(bounds[bound])) for bound in get_args(Bound) if bound in bounds]
    heading = "Of this machine's peak, by what bounds it"
    yield doc.Section(heading, [doc.Remarks(shares)], only="terminal", below=_WIDE)
    if findings and len(run.results) > 1:  # that some were disturbed is among the cautions
        found = [finding.cause for finding in find_all([run]) if finding.kind != "disturbed"]
        yield doc.remarks("Findings", found[:5])
    yield from (scaling_section(each, shared_place(run.results)) for each in find_scaling(run.results))
    about = {"Whole jobs": figures.job, "Sustained": figures.sustained}
    for heading, text in about.items():
        remarks = [Remark("", text(result), cases=(names.of(result),)) for result in run.results]
        yield doc.Section(heading, [doc.Remarks([each for each in remarks if each.cause])])
    if prices:  # they are the user's, and the heading says so
        costs = figures.costs(run.results, prices)
        remarks = [Remark("", figures.cost_text(result, cost), cases=(names.of(result),)) for result, cost in costs]
        note = figures.cost_note(run.results, prices)
        remarks += [Remark("", note)] if note else []
        yield doc.Section(figures.cost_heading(prices), [doc.Remarks(remarks)])
    yield doc.Section("Without a figure", [failures(run.results, names.of)])
    yield doc.Section("Cautions", [doc.Remarks(cautions(run, names), brief=True)])
    yield doc.remarks("About the file", run.problems)


def scaling_section(found: Scaling, shared: str | None = None, nodes: bool = False) -> doc.Section:
    """What more workers bring; `nodes`: on several machines, whose count begins each row."""

    def efficiency(row: ScalingRow) -> str:
        if row.efficiency is None:
            return units.NOTHING
        reach = units.relative(row.margin * row.efficiency) if row.margin else ""
        return f"{units.percent(row.efficiency)} {reach}".strip()

    def communication(row: ScalingRow) -> str:
        return units.NOTHING if row.communication_share is None else units.percent(row.communication_share)

    columns = [
        doc.Column("nodes", "figure", shown=nodes, of=lambda row: str(row.nodes)),
        doc.Column("workers", "figure", of=lambda row: str(row.workers)),
        doc.Column("per step", "figure", of=lambda row: units.duration(row.step_s)),
        doc.Column("rate", "figure", of=lambda row: units.rate(row.rate, found.unit)),
        doc.Column("efficiency", "figure", of=efficiency),
        doc.Column("communication", "figure", of=communication),
    ]
    name = found.case.replace(f"@{shared}", "", 1) if shared else found.case
    table = doc.table(columns, found.rows)
    return doc.Section(f"Scaling of {name}", [table, doc.quiet(scaling_note(found))])


def scaling_note(found: Scaling) -> str:
    """What the rows have in common, and what their efficiency is relative to."""
    if found.threads is None:
        footing = "Threads per rank differ between the rows or are unknown: the efficiency is not a fair one"
    else:
        footing = f"Every rank has {found.threads} thread{'s' if found.threads != 1 else ''}, in all rows"
    if any(row.workers == 1 for row in found.rows):
        return f"{footing}. Efficiency: the rate for each worker against that of one alone."
    return f"{footing}. Without a row for one worker there is no efficiency: measure it with --workers 1, too."


def details_document(runs: Sequence[Run], prices: Prices | None = None) -> doc.Document:
    """All results of the runs in full, one after the other."""

    def blocks() -> Iterator[doc.Block]:
        for run in runs:
            yield from [doc.Title(title(run))] if len(runs) > 1 else []
            for result in run.results:
                rows = [(name, shorten(text)) for name, text in _details(result, prices) if text]
                yield doc.Section(result.case.text, [doc.Facts(rows)])

    return doc.Document(blocks)


def strip(samples_s: Sequence[float], width: int = 50) -> str:
    """Step times as a row of bars from the fastest to the slowest, each the median of its share of the samples."""
    width = min(width, len(samples_s))
    if not width:
        return ""
    edges = [round(index * len(samples_s) / width) for index in range(width + 1)]
    heights = [statistics.median(samples_s[start:end]) for start, end in pairwise(edges)]
    low, span = min(heights), max(heights) - min(heights)
    return "".join("▁▂▃▄▅▆▇█"[int((height - low) / span * 7.999) if span > 0 else 0] for height in heights)


def _details(result: Result, prices: Prices | None) -> Iterator[tuple[str, str]]:
    published = is_published(result)
    yield "status", result.status + (f": {result.reason}" if result.reason else "")
    yield from (("", line) for line in (result.detail or "").splitlines())
    if (found := result.estimate) and not published:
        yield from _estimate_rows(found)
    elif found:  # one figure for all steps together, without an interval
        yield "per step", f"{figures.step_time(found)} (mean)"
        yield "verdict", found.verdict
        yield from (("", evidence) for evidence in found.evidence)
        if job := result.job:
            yield "all steps", units.duration(job.seconds) + ("" if job.whole else ", projected")
        yield "first step", units.duration(found.first_step_s) if found.first_step_s else ""
    grade = grade_of(result)
    yield "grade", grade.text + (f" → {grade.fix}" if grade.fix else "") if grade else ""
    flops, bandwidth = (figures.step_rate(result, "flops"), figures.step_rate(result, "bytes"))
    yield "rate", _known(figures.rate(result), units.arithmetic(flops), units.bandwidth(bandwidth))
    if peak := result.peak:
        shares = [f"{name} {units.percent(share)}" for name, share in peak.shares.items() if share > 0]
        yield "of peak", f"{units.percent(peak.share)}, bound by {peak.bound} (of a step: {', '.join(shares)})"
        ceilings = _known(units.arithmetic(peak.flops_per_s), units.bandwidth(peak.bytes_per_s))
        origin = f"found by run {peak.limits}" if peak.limits else "found in this run"
        yield "", f"{ceilings}, {origin}{', measured again right after it' if peak.again else ''}"
    for number, process in enumerate(result.processes, 1):
        yield f"process {number}", f"{figures.step_time(process)} {figures.margin(process)} {process.verdict}"
        yield "", strip(process.samples_s)
    yield "step times", strip(result.estimate.samples_s) if result.estimate and not result.processes else ""
    yield "sustained", figures.sustained(result)
    yield from figures.readings(result)
    if memory := result.memory:
        peaks = (memory.host_peak_bytes, memory.device_peak_bytes, memory.device_reserved_bytes)
        named = zip(("host", "device", "reserved"), peaks, strict=True)
        known = ", ".join(f"{name} {units.size(each)}" for name, each in named if each is not None)
        yield "peak memory", known or "unknown"
        yield "", "" if memory.provenance == "measured" else memory.provenance
    if numeric := result.numeric:
        within = "within" if numeric.error <= numeric.tolerance else "beyond"
        yield "numeric check", f"error {numeric.error:.1e}, {within} {numeric.tolerance:.0e}, against {numeric.method}"
    phases = {name: units.duration(seconds) for name, seconds in result.phases_s.items()}
    metrics = {name: units.digits(value) for name, value in result.metrics.items()}
    shown: dict[str, Mapping[str, object]]
    shown = {"parameters": result.params, "settings": result.settings, "metrics": metrics, "phases": phases}
    for name, values in shown.items():
        yield name, ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)  # None: not set
    how = f"rigor {result.rigor}, seed {result.seed}, workload version {result.version}"
    yield "measured with", "" if published else how
    yield "budget", "" if result.budget_s is None else units.duration(result.budget_s)
    yield from ((f"caution {caution.kind}", f"{caution.cause} → {caution.fix}") for caution in result.cautions)
    if prices and (cost := cost_of(result, prices)):
        yield "cost", f"{figures.cost_text(result, cost)} ({figures.cost_heading(prices)})"


def _estimate_rows(found: Estimate) -> Iterator[tuple[str, str]]:
    duration, percent = units.duration, units.percent
    interval = f"{duration(max(found.low_s, 0.0))} to {duration(found.high_s)}"
    yield "per step", f"{figures.step_time(found)} {figures.margin(found)} ({found.estimand}, {interval})"
    yield "verdict", " ".join((found.verdict, *found.flags))
    yield from (("", evidence) for evidence in found.evidence)
    mean = f"{duration(found.mean_low_s)} to {duration(found.mean_high_s)}"
    yield "median, mean", f"{duration(found.median_s)}, {duration(found.mean_s)} ({mean})"
    yield "fastest", duration(found.min_s)
    if found.block_size == 1:
        tails = ((found.p90_s, found.p90_high_s), (found.p99_s, found.p99_high_s))
        most = (duration(tail) + ("" if high is None else f" (at most {duration(high)})") for tail, high in tails)
        yield "p90, p99", ", ".join(most)
    yield "spread", f"{duration(found.mad_s)} median deviation, {percent(found.outlier_share)} outliers"
    yield "first step", duration(found.first_step_s)
    yield "by device events", "" if found.device_step_s is None else duration(found.device_step_s)
    blocks = f" of {found.block_size} steps" if found.block_size > 1 else ""
    worth = f"{found.warmup_cut} cut as warm-up, worth {units.digits(found.effective_samples)} independent ones"
    yield "samples", f"{found.sample_count}{blocks}, {worth}"
    yield "trend", f"{percent(found.trend.change)} (z {found.trend.z:.1f})"
    yield "autocorrelation", f"{units.digits(found.autocorrelation_time)} samples"
    seen = found.contention
    shares = {
        "waited for a core": seen.wait_share,
        "others' CPU": seen.other_cpu_share,
        "stolen": seen.steal_share,
        "throttled": seen.throttled_share,
        "probe slower by": None if seen.probe_dilation is None else seen.probe_dilation - 1,
    }
    known = [f"{name} {percent(share)}" for name, share in shares.items() if share is not None]
    known += [f"{seen.switches} involuntary switches"] if seen.switches is not None else []
    yield "contention", ", ".join(known) or "not readable here"
    yield "costs taken off", f"{duration(found.sync_cost_s)} a synchronisation, {duration(found.call_cost_s)} a call"
    yield "precision wanted", units.relative(found.target)
    yield "time spent", duration(found.duration_s)


def _known(*texts: str) -> str:
    return ", ".join(text for text in texts if text != units.NOTHING)
