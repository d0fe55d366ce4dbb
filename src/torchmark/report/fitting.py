"""What fits into memory: the largest and the most efficient size, memory as a line, the rate as bars."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from torchmark.analyze.search import TRIES, Fitted, Probe, doubtful, recall_fitted
from torchmark.records import NO_ROOM, Case, Run
from torchmark.report import document as doc
from torchmark.report import units
from torchmark.report.names import longer, machine_line
from torchmark.report.results import failures, run_object

VARYING = 1.02  # times the least peak of a size: what differs by more is worth a word
_BAR = 24
_MOST_DOUBTS = 4
_CSV = ("case", "size", "fits", "status", "reason", "peak_bytes", "items_per_s", "step_s", "largest", "efficient")
_BOUNDS = {
    "parameter": "That is as far as it goes: the limit is the parameter's own, or --most, not memory.",
    "time": "The budget was spent before the answer was known to a step: give it more with --budget.",
    "timeout": "A size took longer than --timeout: larger ones may fit, but nobody would wait for them.",
    "crashed": "It was not memory that ended it: see the reason below.",
    "wrong-result": "It was not memory that ended it: see the reason below.",
    "unsupported": "It was not memory that ended it: see the reason below.",
    "interrupted": "It was interrupted.",
}


_FAILED = {
    "crashed": "crashed",
    "timeout": "took longer than --timeout",
    "wrong-result": "computed wrong numbers",
    "unsupported": "is not supported here",
}


def fitting_document(run: Run, case: Case, fitted: Fitted) -> doc.Document:
    """The outcome of a search for the largest size that fits."""
    run = replace(run, fitting=fitted.conclusion(case), results=tuple(probe.result for probe in fitted.probes))
    records = doc.Records(
        _CSV,
        lambda: [_csv_row(fitted, probe) for probe in fitted.probes],
        lambda: run_object(run) | {"fitted": _facts(fitted)},
        lambda: [_facts(fitted)],
    )
    return doc.Document(lambda: _blocks(run, case, fitted), records)


def stored_document(run: Run) -> doc.Document:
    """The outcome of a search, from what its run keeps of it."""
    assert run.fitting
    return fitting_document(run, run.fitting.case, recall_fitted(run))


def answer(fitted: Fitted) -> str:
    """The answer in one sentence."""
    name, limit = fitted.parameter, units.memory_limit(fitted.limit_bytes)
    if fitted.largest is None and fitted.bound in _FAILED:
        return f"{name.capitalize()} {_smallest(fitted)} {_FAILED[fitted.bound]}, so nothing is known."
    if fitted.largest is None and fitted.bound != "memory":
        return "Nothing is known: it ended before any size had fitted."
    if fitted.largest is None:
        return f"Not even {name} {_smallest(fitted)} fits into {limit}."
    beyond = f"; {too_large} does not" if (too_large := _too_large(fitted)) else ""
    if fitted.bound != "memory":
        return f"{name.capitalize()} {fitted.largest} fits into {limit}{_larger(fitted)}{beyond}."
    return f"{name.capitalize()} {fitted.largest} is the largest that fits into {limit}{beyond}."


def _smallest(fitted: Fitted) -> int:
    return min((probe.size for probe in fitted.probes), default=1)


def _too_large(fitted: Fitted) -> int | None:
    """The smallest size above the largest that fits for which there was no room; where memory ended the search, a crash
    was want of it, too."""
    above = [each for each in fitted.probes if not each.fits and each.size > (fitted.largest or 0)]
    lost = [each.size for each in above if fitted.bound == "memory" or each.result.status in NO_ROOM]
    return min(lost, default=None)


def _larger(fitted: Fitted) -> str:
    """What is known of sizes beyond the largest that was tried, where it was not memory that ended the search."""
    if fitted.bound in ("parameter", *_FAILED):
        return ""
    about = int(float(f"{fitted.model.size_for(fitted.limit_bytes):.2g}")) if fitted.model else 0
    if (fitted.largest or 0) < about < (_too_large(fitted) or math.inf):
        return f", and larger ones may: by what it takes, up to about {about}"
    return ", and larger ones may"


def conclusion(run: Run) -> list[str]:
    """The answer and what belongs to it, as the command, `show` and the page all say it."""
    fitted = recall_fitted(run)
    return [answer(fitted), *notes(fitted, run.header.command)]


def notes(fitted: Fitted, command: str) -> list[str]:
    """What is missing, and what else is worth knowing, a sentence each."""
    found = _doubts(fitted, command)
    best = next((probe for probe in fitted.probes if probe.size == fitted.efficient), None)
    if best and best.rate:
        share = best.rate / max(probe.rate or 0.0 for probe in fitted.probes if probe.size <= (fitted.largest or 0))
        reached = "the highest rate" if share == 1 else f"{share:.0%} of the highest rate"
        often = f"{best.tries} process{'es' if best.tries != 1 else ''}"
        rate = units.rate(best.rate, fitted.unit)
        found.append(f"Most efficient: {fitted.parameter} {best.size}, {rate}, {reached}, in {often}.")
    if fitted.model:
        model = fitted.model
        sign = "+" if model.fixed >= 0 else "-"
        found.append(
            f"Memory = {units.size(abs(model.fixed)) if sign == '+' else '-' + units.size(abs(model.fixed))} + "
            f"{units.size(model.per_item)} x {fitted.parameter} (within {units.percent(model.error)})."
        )
    found += _reliability(fitted)
    return found + ([_BOUNDS[fitted.bound]] if fitted.bound in _BOUNDS else [])


def _doubts(fitted: Fitted, command: str) -> list[str]:
    """Why no size is called the most efficient, and how to find it."""
    doubted = doubtful([probe for probe in fitted.probes if probe.size <= (fitted.largest or 0)])
    if not doubted:
        return []
    sizes = ", ".join(str(probe.size) for probe in doubted[:_MOST_DOUBTS])
    sizes += f" and {len(doubted) - _MOST_DOUBTS} more" if len(doubted) > _MOST_DOUBTS else ""
    causes = ", ".join(dict.fromkeys(probe.doubt for probe in doubted))
    return [
        f"Most efficient: unknown, as the rate at {fitted.parameter} {sizes} is not reliable ({causes}).",
        f"To find it, close other programs and run: {longer(command)}",
    ]


def _reliability(fitted: Fitted) -> list[str]:
    """How often the answer was tried, and how much its memory differs from process to process."""
    tries, peaks = (fitted.answer.tries, fitted.answer.peaks) if fitted.answer else (1, ())
    count = f"{len(fitted.probes)} size{'s' if len(fitted.probes) != 1 else ''}"
    often = f"; {fitted.parameter} {fitted.largest} fitted in {tries} of {tries}" if tries > 1 else ""
    found = [f"{count} in {units.duration(fitted.duration_s)}, each in a process of its own{often}."]
    if fitted.bound == "memory" and fitted.answer and tries < TRIES:
        found.append(f"It should have been tried {TRIES} times: give it more time with --budget or --timeout.")
    if len(peaks) > 1 and max(peaks) > VARYING * min(peaks):
        spread = f"{units.size(min(peaks))} to {units.size(max(peaks))}"
        found.append(f"The same size took {spread}: where in memory things come to lie is chance. Leave some room.")
    return found


def _blocks(run: Run, case: Case, fitted: Fitted) -> Iterator[doc.Block]:
    said, *more = conclusion(run)
    look = "good" if fitted.largest is not None else "bad"
    yield doc.Title(f"fit {case.text}", [machine_line(run.header.machine)])
    yield doc.Lines([doc.Cell(said, look), *(doc.Cell(note, "quiet") for note in more)])
    highest = max((probe.rate or 0.0 for probe in fitted.probes), default=0.0)
    titles = (fitted.parameter, "memory", "rate")
    columns = [*(doc.Column(title, "figure") for title in titles), doc.Column("", "name", drop=1), doc.Column("note")]
    rows = []
    for probe in fitted.probes:
        bar = "█" * max(1, round(_BAR * probe.rate / highest)) if probe.rate else ""
        figures = (str(probe.size), units.size(probe.bytes), units.rate(probe.rate, fitted.unit))
        rows.append([*figures, bar, _mark(fitted, probe)])
    yield doc.Table(columns, rows)
    # One for each status, by the smallest size that ended so: larger ones say the same.
    smallest = {probe.result.status: probe for probe in reversed(fitted.probes) if not probe.fits}
    sizes = {id(probe.result): f"{fitted.parameter} {probe.size}" for probe in smallest.values()}
    lost = failures([probe.result for probe in smallest.values()], lambda result: sizes[id(result)])
    yield from [doc.Section("Without a figure", [lost])] if lost.remarks else []


def _mark(fitted: Fitted, probe: Probe) -> str:
    if not probe.fits:
        return probe.result.status
    marks = []
    if probe.size == fitted.largest:
        marks.append("largest" if fitted.bound == "memory" else "largest that fitted")
    if probe.size == fitted.efficient:
        marks.append("most efficient")
    if probe in doubtful(fitted.probes):
        marks.append(probe.doubt)
    return ", ".join(marks)


def _facts(fitted: Fitted) -> dict[str, object]:
    """Everything but the results, which are in the run."""
    probes = [
        {name: getattr(probe, name) for name in ("size", "fits", "tries", "bytes", "peaks", "rate")}
        | {"case": probe.result.case.text, "status": probe.result.status}
        for probe in fitted.probes
    ]
    return msgspec.to_builtins(msgspec.structs.replace(fitted, probes=())) | {"probes": probes}  # type: ignore[no-any-return]


def _csv_row(fitted: Fitted, probe: Probe) -> list[doc.CsvValue]:
    estimate = probe.result.estimate
    cells: dict[str, doc.CsvValue] = {
        "case": probe.result.case.text,
        "size": probe.size,
        "fits": str(probe.fits).lower(),
        "status": probe.result.status,
        "reason": probe.result.reason,
        "peak_bytes": probe.bytes,
        "items_per_s": probe.rate,
        "step_s": estimate.center_s if estimate else None,
        "largest": str(probe.size == fitted.largest).lower(),
        "efficient": str(probe.size == fitted.efficient).lower(),
    }
    return [cells[name] for name in _CSV]
