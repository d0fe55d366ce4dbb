"""The limits of a machine: its best at everything, what has no fast path, and where work turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchmark.analyze.efficiency import (
    EXCHANGE,
    MEMORY,
    NO_FAST_PATH,
    Ceiling,
    DeviceCeilings,
    arithmetic,
    ceilings_of,
    slower_than_float32,
)
from torchmark.records import Result, Run, parse_case
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import machine_line, title
from torchmark.report.text import shorten

_WHY = {
    "tiny": "sizes as tiny as these show no limits",
    "incomplete": "the search is not complete",
    "doubted": "twice the work did not take twice the time",
    "disturbed": "the machine was busy",
}
_COLUMNS = [
    doc.Column("", "name", repeats="blank", of=lambda limit: doc.Cell(limit[0], "quiet")),
    doc.Column("", "name", of="1"),
    doc.Column("", "figure", of="2"),
    doc.Column("", of=lambda limit: doc.Cell(limit[3], "quiet")),
]
Limit = tuple[str, str, str, str]  # of what, which, the figure, what is to be said about it


def limits_document(run: Run) -> doc.Document:
    """What the run found out about each device."""

    def blocks() -> Iterator[doc.Block]:
        known = ceilings_of(run.results)
        yield doc.Title(title(run), [machine_line(run.header.machine)])
        for device in dict.fromkeys(result.case.device for result in run.results):
            own = [result for result in run.results if result.case.device == device]
            found = _limits(own, known.devices.get(device, DeviceCeilings()))
            yield doc.Section(device, [doc.table(_COLUMNS, found, headings=False)])
        yield doc.Lines(conclusion(run))
        skipped = sum(result.status == "skipped" for result in run.results)
        failed = sum(result.status != "ok" for result in run.results) - skipped
        said = [f"{len(run.results)} cases, the best of their fresh processes"]
        said += [f"{count} {what}" for what, count in (("failed", failed), ("skipped", skipped)) if count]
        yield doc.quiet(f"{', '.join(said)}. `torchmark show --details` shows every case in full")

    return doc.Document(blocks)


def conclusion(run: Run) -> list[str]:
    """Whether later results are held against these limits, what is missing, and how to get it."""
    found = run.limiting
    if found is None:
        return []
    said = ["Kept: later results are compared with these limits." if found.kept else f"Not kept: {_WHY[found.why]}."]
    if found.missing:
        busy = "other programs were busy, or the times varied too much"
        said.append(f"Not known, because {busy}: {', '.join(found.missing)}.")
        said.append("To find them, close other programs and run: torchmark limits")
    return said


def _limits(results: Sequence[Result], known: DeviceCeilings) -> Iterator[Limit]:
    products = [each for each in results if each.case.workload == "matmul"]
    for name in dict.fromkeys(arithmetic(each.case) for each in products):
        yield _arithmetic([each for each in products if arithmetic(each.case) == name], known, name)
    memory, exchange = (sorted(known.paths.get(path, ()), key=lambda point: point.bytes) for path in (MEMORY, EXCHANGE))
    for result in results:
        if result.case.workload == "bandwidth":
            kind = str(result.params.get("kind", result.case.params.get("kind", "triad")))
            yield _bandwidth("memory", kind, result, memory[:-1] if kind == "update" else ())
    for path, points in known.paths.items():
        if path not in (MEMORY, EXCHANGE):
            most = units.bandwidth(max(point.value for point in points))
            yield "link", path.replace("-", " "), most, _by_size(points)
    if known.issue_s:
        yield "launch", "issue", units.duration(known.issue_s), "to hand one operator over"
    if known.round_trip_s:
        yield "launch", "round trip", units.duration(known.round_trip_s), "until its result is on the host"
    for result in results:
        if result.case.workload == "all-reduce":
            yield _bandwidth("all-reduce", f"{result.case.workers} workers", result, exchange[:-1])
    # What twice the work took, relative to once.
    for double in (each for each in products if each.processes and each.estimate and each.params.get("batch") == 2):
        alike = (each for each in products if each.processes and each is not double)
        if single := next((each for each in alike if _work(each) == _work(double)), None):
            once, twice = (min(process.center_s for process in each.processes) for each in (single, double))
            doubted = double.estimate and "implausible" in double.estimate.flags
            about = "implausible: nothing here can be believed" if doubted else "times as long takes twice the work"
            yield "audit", "", units.digits(twice / once) if once > 0 else units.NOTHING, about
    if memory and (plain := known.flops.get("float32")):  # where bandwidth stops and arithmetic begins to bound
        turn = units.digits(plain.value / memory[-1].value)
        yield "turns at", "float32", f"{turn} FLOP/byte", "work with less is bandwidth-bound"


def _arithmetic(own: Sequence[Result], known: DeviceCeilings, name: str) -> Limit:
    ceiling = known.flops.get(name)
    if ceiling is None:
        return "arithmetic", name, own[0].status, shorten(own[0].reason or "", 200)
    limited = next((each.settings.get("onednn_max_isa") for each in own if each.case.text == ceiling.case), None)
    said = [f"a product of {_size(ceiling.case)}" + (f" with {limited} instructions" if limited else "")]
    skinny = [each for each in own if "rows" in each.case.params and each.status == "ok"]
    said += [f"{units.arithmetic(figures.step_rate(each, 'flops'))} with {each.params['rows']} rows" for each in skinny]
    slower = slower_than_float32(known, name) or 1.0
    if slower >= NO_FAST_PATH:
        said = [f"no fast path: {units.digits(slower)} times slower than float32"]
    failed = [each for each in own if each.status != "ok" and "batch" not in each.case.params]
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


def _work(result: Result) -> tuple[str, dict[str, object]]:
    return arithmetic(result.case), {name: value for name, value in result.params.items() if name != "batch"}
