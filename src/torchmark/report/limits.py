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
from torchmark.report import figures, units
from torchmark.report.document import Block, Cell, Column, Document, Lines, Row, Section, Table, Title
from torchmark.report.names import machine_line, title
from torchmark.report.text import shorten

_WHY = {
    "tiny": "sizes as tiny as these show no limits",
    "incomplete": "the search is not complete",
    "doubted": "twice the work did not take twice the time",
    "disturbed": "the machine was busy",
}
Limit = tuple[str, str, str, str]  # of what, which, the figure, what is to be said about it


_COLUMNS = (Column("", "name", repeats="blank"), Column("", "name"), Column("", "figure"), Column(""))


def limits_document(run: Run) -> Document:
    """What the run found out about each device."""
    return Document(lambda: _blocks(run))


def _blocks(run: Run) -> Iterator[Block]:
    known = ceilings_of(run.results)
    yield Title(title(run), [machine_line(run.header.machine)])
    for device in dict.fromkeys(result.case.device for result in run.results):
        own = [result for result in run.results if result.case.device == device]
        found = _rows(own, known.devices.get(device, DeviceCeilings()))
        rows: list[Row] = [
            [Cell(what, "quiet"), which, figure, Cell(about, "quiet")] for what, which, figure, about in found
        ]
        yield Section(device, [Table(_COLUMNS, rows, headings=False)])
    yield from [Lines(said)] if (said := conclusion(run)) else []
    yield Lines([Cell(_note(run), "quiet")])


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


def _rows(results: Sequence[Result], known: DeviceCeilings) -> Iterator[Limit]:
    for name in dict.fromkeys(arithmetic(each.case) for each in results if each.case.workload == "matmul"):
        yield _arithmetic(results, known, name)
    yield from _memory(results, known)
    for path, points in known.paths.items():
        if path not in (MEMORY, EXCHANGE):
            yield (
                "link",
                path.replace("-", " "),
                units.bandwidth(max(point.value for point in points)),
                _by_size(points),
            )
    if known.issue_s:
        yield "launch", "issue", units.duration(known.issue_s), "to hand one operator over"
    if known.round_trip_s:
        yield "launch", "round trip", units.duration(known.round_trip_s), "until its result is on the host"
    yield from _exchange(results, known)
    yield from _doubling(results)
    yield from _turn(known)


def _arithmetic(results: Sequence[Result], known: DeviceCeilings, name: str) -> Limit:
    own = [each for each in results if each.case.workload == "matmul" and arithmetic(each.case) == name]
    ceiling = known.flops.get(name)
    if ceiling is None:
        return "arithmetic", name, own[0].status, shorten(own[0].reason or "", 200)
    skinny = [each for each in own if "rows" in each.case.params and each.status == "ok"]
    limited = next((each.settings.get("onednn_max_isa") for each in own if each.case.text == ceiling.case), None)
    said = [f"a product of {_size(ceiling.case)}" + (f" with {limited} instructions" if limited else "")]
    said += [f"{units.arithmetic(figures.step_flops(each))} with {each.params['rows']} rows" for each in skinny]
    slower = slower_than_float32(known, name) or 1.0
    if slower >= NO_FAST_PATH:
        said = [f"no fast path: {units.digits(slower)} times slower than float32"]
    failed = [each for each in own if each.status != "ok" and "batch" not in each.case.params]
    said += [f"{_size(each.case.text)}: {each.status}" for each in failed]
    return "arithmetic", name, units.arithmetic(ceiling.value), ", ".join(said)


def _size(case: str) -> str:
    size = parse_case(case).params.get("size", 2048)
    return f"{size}×{size}"


def _memory(results: Sequence[Result], known: DeviceCeilings) -> Iterator[Limit]:
    passes = [each for each in results if each.case.workload == "bandwidth"]
    for result in passes:
        kind, about = str(result.params.get("kind", result.case.params.get("kind", "triad"))), ""
        figure = units.bandwidth(figures.step_bandwidth(result)) if result.status == "ok" else result.status
        if result.status != "ok":
            about = shorten(result.reason or "", 200)
        elif kind == "update":
            smaller = sorted(known.paths.get(MEMORY, ()), key=lambda point: point.bytes)[:-1]
            about = _by_size(smaller)
        yield "memory", kind, figure, about


def _by_size(points: Sequence[Ceiling]) -> str:
    return ", ".join(f"{units.bandwidth(point.value)} on {units.size(point.bytes)}" for point in points)


def _exchange(results: Sequence[Result], known: DeviceCeilings) -> Iterator[Limit]:
    for result in results:
        if result.case.workload != "all-reduce":
            continue
        which = f"{result.case.workers} workers"
        if result.status != "ok":
            yield "all-reduce", which, result.status, shorten(result.reason or "", 200)
            continue
        points = known.paths.get(EXCHANGE, ())
        yield "all-reduce", which, units.bandwidth(figures.step_bandwidth(result)), _by_size(points[:-1])


def _doubling(results: Sequence[Result]) -> Iterator[Limit]:
    """What twice the work took, relative to once."""
    for double in results:
        if double.case.workload != "matmul" or double.params.get("batch") != 2 or not double.processes:
            continue
        params = {name: value for name, value in double.params.items() if name != "batch"}
        single = [
            each
            for each in results
            if each.case.workload == "matmul" and arithmetic(each.case) == arithmetic(double.case) and each.processes
            if {name: value for name, value in each.params.items() if name != "batch"} == params and each is not double
        ]
        if single and double.estimate:
            seconds = [min(process.center_s for process in each.processes) for each in (single[0], double)]
            doubted = "implausible" in double.estimate.flags
            about = "implausible: nothing here can be believed" if doubted else "times as long takes twice the work"
            yield "audit", "", units.digits(seconds[1] / seconds[0]) if seconds[0] > 0 else units.NOTHING, about


def _turn(known: DeviceCeilings) -> Iterator[Limit]:
    """Where bandwidth stops and arithmetic begins to be what bounds."""
    plain, points = known.flops.get("float32"), known.paths.get(MEMORY, ())
    if plain and points:
        slowest = max(points, key=lambda point: point.bytes).value
        yield (
            "turns at",
            "float32",
            f"{units.digits(plain.value / slowest)} FLOP/byte",
            "work with less is bandwidth-bound",
        )


def _note(run: Run) -> str:
    failed = sum(result.status not in ("ok", "skipped") for result in run.results)
    skipped = sum(result.status == "skipped" for result in run.results)
    said = [f"{len(run.results)} cases, the best of their fresh processes"]
    said += [f"{failed} failed"] if failed else []
    said += [f"{skipped} skipped"] if skipped else []
    return f"{', '.join(said)}. `torchmark show --details` shows every case in full"
