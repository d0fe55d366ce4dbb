"""The report of a run: headline, results, remarks; one result in full; limits."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, get_args

from torchmark.analyze import efficiency
from torchmark.analyze.efficiency import Ceiling, DeviceCeilings, Prices, Scaling, ScalingRow, find_scaling
from torchmark.analyze.findings import find_all
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.analyze.pairing import grouped
from torchmark.analyze.wording import counted
from torchmark.records import Bound, Estimate, Remark, Result, Run, parse_case
from torchmark.report import comparison, figures, units
from torchmark.report import document as doc
from torchmark.report.headline import headline_blocks
from torchmark.report.names import machine_line, machine_of, names_of, shared_place, title
from torchmark.report.text import shorten

_WIDE = 120  # width of a table with the share of the peak


def run_document(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> doc.Document:
    """One run; of a stored study what its command reported, unless costs are wanted."""

    def blocks() -> Iterable[doc.Block]:
        if prices is not None or not (run.tuning or run.limiting or (run.fitting and run.fitting.tried)):
            return _blocks(run, prices, headline)
        if not (run.tuning or run.fitting):
            return _limits_blocks(run)
        from torchmark.report.searches import fitting_document, tuning_document  # late: it imports numpy

        return (tuning_document if run.tuning else fitting_document)(run).blocks()

    return doc.Document(blocks, figures.records_of([run], prices, lambda: figures.run_object(run, prices, headline)))


def runs_document(runs: Sequence[Run], prices: Prices | None, headlines: Sequence[Headline | None]) -> doc.Document:
    def blocks() -> Iterator[doc.Block]:
        yield doc.Remarks([Remark("", found.cause) for found in find_all(runs)])
        for run, headline in zip(runs, headlines, strict=True):
            yield from _blocks(run, prices, headline, findings=False)

    def objects() -> dict[str, Any]:
        return {"runs": [figures.run_object(run, prices, each) for run, each in zip(runs, headlines, strict=True)]}

    return doc.Document(blocks, figures.records_of(runs, prices, objects))


def conclusion(run: Run) -> list[str]:
    """The answer of a study, then its basis; empty for a plain run."""
    said = limits_conclusion(run)
    if run.tuning or run.fitting:
        from torchmark.report import searches  # late: it imports numpy

        said += searches.tuning_conclusion(run) if run.tuning else []
        said += searches.fitting_conclusion(run) if run.fitting else []
    return said + (comparison.live_conclusion(run) if run.live else [])


def _blocks(run: Run, prices: Prices | None, headline: Headline | None, findings: bool = True) -> Iterator[doc.Block]:
    names = names_of(run.results)
    yield from headline_blocks(headline, run.header.machine) if headline else ()
    yield doc.Title(title(run), ["" if headline else machine_of(run), names.note])
    yield doc.Lines(conclusion(run))
    yield figures.results_table(run.results, lambda result: doc.Cell(names.of(result)))
    yield doc.Lines([] if run.results else ["No results"])
    yield doc.quiet(figures.interval_note(run))
    peaks = [(each.peak, names.of(each)) for each in run.results if each.peak]
    peaks.sort(key=lambda each: (get_args(Bound).index(each[0].bound), -each[0].share))
    shares = [
        Remark(bound, ", ".join(f"{case} {units.percent(peak.share)}" for peak, case in own))
        for bound, own in grouped(peaks, lambda each: each[0].bound).items()
    ]
    heading = "Of this machine's peak, by what bounds it"
    yield doc.Section(heading, [doc.Remarks(shares)], only="terminal", below=_WIDE)
    if findings and len(run.results) > 1:  # that some were disturbed is among the cautions
        found = (finding.cause for finding in find_all([run]) if finding.kind != "disturbed")
        yield doc.remarks("Findings", islice(found, 5))
    yield from (scaling_section(each, shared_place(run.results)) for each in find_scaling(run.results))

    def section(heading: str, text_of: Callable[[Result], str], note: str = "") -> doc.Section:
        remarks = [Remark("", text_of(result), cases=(names.of(result),)) for result in run.results]
        return doc.remarks(heading, [each for each in (*remarks, Remark("", note)) if each.cause])

    yield section("Whole jobs", figures.job)
    yield section("Sustained", figures.sustained)
    if prices:
        cost, note = partial(figures.cost_text, prices=prices), figures.cost_note(run.results, prices)
        yield section(figures.cost_heading(prices), cost, note)
    yield doc.Section("Without a figure", [figures.failures(run.results, names.of)])
    yield doc.remarks("Cautions", figures.cautions(run, names), brief=True)
    yield doc.remarks("About the file", run.problems)


def scaling_section(found: Scaling, shared: str | None = None, nodes: bool = False) -> doc.Section:
    """What more workers bring, on several `nodes` or one."""

    def share(row: ScalingRow) -> str:
        reach = units.relative(row.margin * row.efficiency) if row.margin and row.efficiency is not None else ""
        return f"{units.percent(row.efficiency)} {reach}".strip()

    columns = [
        doc.Column("nodes", "figure", shown=nodes, of="nodes", written=str),
        doc.Column("workers", "figure", of="workers", written=str),
        doc.Column("per step", "figure", of="step_s", written=units.duration),
        doc.Column("rate", "figure", of=lambda row: units.rate(row.rate, found.unit)),
        doc.Column("efficiency", "figure", of=share),
        doc.Column("communication", "figure", of="communication_share", written=units.percent),
    ]
    name = found.case.replace(f"@{shared}", "", 1) if shared else found.case
    return doc.Section(f"Scaling of {name}", [doc.table(columns, found.rows), doc.quiet(scaling_note(found))])


def scaling_note(found: Scaling) -> str:
    basis = "No efficiency without a row for one worker: add --workers 1."
    if any(row.workers == 1 for row in found.rows):
        basis = "Efficiency: the rate per worker against that of one alone."
    if found.threads is None:
        return f"Threads per rank differ or are unknown: the efficiency is not fair. {basis}"
    return f"Every rank has {counted(found.threads, 'thread')}, in all rows. {basis}"


def details_document(runs: Sequence[Run], prices: Prices | None = None) -> doc.Document:
    def blocks() -> Iterator[doc.Block]:
        for run in runs:
            yield from [doc.Title(title(run))] if len(runs) > 1 else []
            for result in run.results:
                rows = [(name, shorten(text)) for name, text in _details(result, prices) if text]
                yield doc.Section(result.case.text, [doc.Facts(rows)])

    return doc.Document(blocks)


def strip(samples_s: Sequence[float], width: int = 50) -> str:
    """Bars from the fastest to the slowest, each the median of its share of the samples."""
    if not samples_s:
        return ""
    width = min(width, len(samples_s))
    edges = [round(index * len(samples_s) / width) for index in range(width + 1)]
    heights = [statistics.median(samples_s[start:end]) for start, end in pairwise(edges)]
    low, span = min(heights), max(heights) - min(heights)
    return "".join("▁▂▃▄▅▆▇█"[int((height - low) / span * 7.999) if span > 0 else 0] for height in heights)


def _details(result: Result, prices: Prices | None) -> Iterator[tuple[str, str]]:
    published = is_published(result)
    yield "status", ": ".join(filter(None, (result.status, result.reason)))
    yield from (("", line) for line in (result.detail or "").splitlines())
    if (found := result.estimate) and not published:
        yield from _estimate_rows(found)
    elif found:  # one figure for all steps, without an interval
        yield "per step", f"{figures.step_time(found)} (mean)"
        yield "verdict", found.verdict
        yield from (("", evidence) for evidence in found.evidence)
        if job := result.job:
            yield "all steps", units.duration(job.seconds) + ("" if job.whole else ", projected")
        yield "first step", units.duration(found.first_step_s) if found.first_step_s else ""
    if grade := grade_of(result):
        yield "grade", " → ".join(filter(None, (grade.text, grade.fix)))
    flops, bandwidth = figures.step_rate(result, "flops"), figures.step_rate(result, "bytes")
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
        peaks = {"host": memory.host_peak_bytes, "device": memory.device_peak_bytes}
        peaks["reserved"] = memory.device_reserved_bytes
        known = ", ".join(f"{name} {units.size(each)}" for name, each in peaks.items() if each is not None)
        yield "peak memory", known or "unknown"
        yield "", "" if memory.provenance == "measured" else memory.provenance
    if numeric := result.numeric:
        within = "within" if numeric.error <= numeric.tolerance else "beyond"
        yield "numeric check", f"error {numeric.error:.1e}, {within} {numeric.tolerance:.0e}, against {numeric.method}"
    lists: dict[str, Mapping[str, object]] = {"parameters": result.params, "settings": result.settings}
    lists["metrics"] = {name: units.digits(value) for name, value in result.metrics.items()}
    lists["phases"] = {name: units.duration(seconds) for name, seconds in result.phases_s.items()}
    for name, values in lists.items():
        yield name, ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)  # None: not set
    if not published:
        yield "measured with", f"rigor {result.rigor}, seed {result.seed}, workload version {result.version}"
    yield "budget", "" if result.budget_s is None else units.duration(result.budget_s)
    yield from ((f"caution {caution.kind}", f"{caution.cause} → {caution.fix}") for caution in result.cautions)
    if prices and (cost := figures.cost_text(result, prices)):
        yield "cost", f"{cost} ({figures.cost_heading(prices)})"


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
    shares = {"waited for a core": seen.wait_share, "others' CPU": seen.other_cpu_share, "stolen": seen.steal_share}
    slower = None if seen.probe_dilation is None else seen.probe_dilation - 1
    shares |= {"throttled": seen.throttled_share, "probe slower by": slower}
    known = [f"{name} {percent(share)}" for name, share in shares.items() if share is not None]
    known += [] if seen.switches is None else [f"{seen.switches} involuntary switches"]
    yield "contention", ", ".join(known) or "not readable here"
    yield "costs taken off", f"{duration(found.sync_cost_s)} a synchronisation, {duration(found.call_cost_s)} a call"
    yield "precision wanted", units.relative(found.target)
    yield "time spent", duration(found.duration_s)


def _known(*texts: str) -> str:
    return ", ".join(text for text in texts if text != units.NOTHING)


_NOT_KEPT = {
    "tiny": "sizes as tiny as these show no limits",
    "incomplete": "the search is not complete",
    "doubted": "twice the work did not take twice the time",
    "disturbed": "the machine was busy",
}
Limit = tuple[str, str, str, str]  # what, which, figure, remark


def _limits_blocks(run: Run) -> Iterator[doc.Block]:
    known = efficiency.ceilings_of(run.results)
    yield doc.Title(title(run), [machine_line(run.header.machine)])
    figure = doc.Column("", "figure")
    columns = [doc.Column("", "name", repeats="blank"), doc.Column("", "name"), figure, doc.Column("")]
    for device, own in grouped(run.results, lambda result: result.case.device).items():
        found = _limits(own, known.devices.get(device, DeviceCeilings()))
        rows = [(doc.Cell(row[0], "quiet"), row[1], row[2], doc.Cell(row[3], "quiet")) for row in found]
        yield doc.Section(device, [doc.Table(columns, rows, headings=False)])
    yield doc.Lines(limits_conclusion(run))
    ends = Counter("failed" if each.status not in ("ok", "skipped") else each.status for each in run.results)
    said = [f"{len(run.results)} cases, the best of their fresh processes"]
    said += [f"{ends[end]} {end}" for end in ("failed", "skipped") if ends[end]]
    yield doc.quiet(f"{', '.join(said)}. `torchmark show --details` shows every case in full")


def limits_conclusion(run: Run) -> list[str]:
    """Whether the limits are kept, what is missing, and how to get it."""
    found = run.limiting
    if found is None:
        return []
    kept = "Kept: later results are compared with these limits."
    said = [kept if found.kept else f"Not kept: {_NOT_KEPT[found.why]}."]
    if found.missing:
        said.append(f"Unknown, because other programs were busy or times varied too much: {', '.join(found.missing)}.")
        said.append("To find them, close other programs and run: torchmark limits")
    return said


def _limits(results: Sequence[Result], known: DeviceCeilings) -> Iterator[Limit]:
    by_workload = grouped(results, lambda each: each.case.workload)
    products = by_workload.get("matmul", [])
    for name, own in grouped(products, lambda each: efficiency.arithmetic(each.case)).items():
        yield _arithmetic(own, known, name)
    links = {path: sorted(points, key=lambda point: point.bytes) for path, points in known.paths.items()}
    memory, exchange = links.pop(efficiency.MEMORY, []), links.pop(efficiency.EXCHANGE, [])
    for result in by_workload.get("bandwidth", ()):
        kind = str(result.params.get("kind", result.case.params.get("kind", "triad")))
        yield _bandwidth("memory", kind, result, memory[:-1] if kind == "update" else ())
    for path, points in links.items():
        yield "link", path.replace("-", " "), units.bandwidth(max(each.value for each in points)), _by_size(points)
    if known.issue_s:
        yield "launch", "issue", units.duration(known.issue_s), "to hand one operator over"
    if known.round_trip_s:
        yield "launch", "round trip", units.duration(known.round_trip_s), "until its result is on the host"
    for result in by_workload.get("all-reduce", ()):
        yield _bandwidth("all-reduce", f"{result.case.workers} workers", result, exchange[:-1])
    # Twice the work, relative to once.
    works = grouped(
        (each for each in products if each.processes),
        lambda each: (efficiency.arithmetic(each.case), repr(sorted((each.params | {"batch": 0}).items()))),
    )
    for alike in works.values():
        double = next((each for each in alike if each.params.get("batch") == 2), None)
        single = next((each for each in alike if each is not double), None)
        if single and double and double.estimate:
            once, twice = (min(process.center_s for process in each.processes) for each in (single, double))
            doubted = "implausible" in double.estimate.flags
            about = "implausible: nothing here can be believed" if doubted else "times as long takes twice the work"
            yield "audit", "", units.digits(twice / once) if once > 0 else units.NOTHING, about
    if memory and (plain := known.flops.get("float32")):  # where bandwidth stops and arithmetic begins to bound
        turn = units.digits(plain.value / memory[-1].value)
        yield "turns at", "float32", f"{turn} FLOP/byte", "work with less is bandwidth-bound"


def _arithmetic(own: Sequence[Result], known: DeviceCeilings, name: str) -> Limit:
    ceiling = known.flops.get(name)
    if ceiling is None:
        return "arithmetic", name, own[0].status, shorten(own[0].reason or "", 200)
    isa = next((each.settings.get("onednn_max_isa") for each in own if each.case.text == ceiling.case), None)
    said = [f"a product of {_size(ceiling.case)}" + (f" with {isa} instructions" if isa else "")]
    skinny = [each for each in own if "rows" in each.case.params and each.status == "ok"]
    said += [f"{units.arithmetic(figures.step_rate(each, 'flops'))} with {each.params['rows']} rows" for each in skinny]
    plain = known.flops.get("float32", ceiling)
    if (slower := plain.value / ceiling.value) >= efficiency.NO_FAST_PATH:
        said = [f"no fast path: {units.digits(slower)} times slower than float32"]
    failed = (each for each in own if each.status != "ok" and "batch" not in each.case.params)
    said += [f"{_size(each.case.text)}: {each.status}" for each in failed]
    return "arithmetic", name, units.arithmetic(ceiling.value), ", ".join(said)


def _size(case: str) -> str:
    size = parse_case(case).params.get("size", 2048)
    return f"{size}×{size}"


def _bandwidth(what: str, which: str, result: Result, smaller: Sequence[Ceiling]) -> Limit:
    if result.status != "ok":
        return what, which, result.status, shorten(result.reason or "", 200)
    return what, which, units.bandwidth(figures.step_rate(result, "bytes")), _by_size(smaller)


def _by_size(points: Sequence[Ceiling]) -> str:
    return ", ".join(f"{units.bandwidth(point.value)} on {units.size(point.bytes)}" for point in points)
