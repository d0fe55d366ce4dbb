"""The table of all results on a page: its columns and its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from torchmark.analyze.energy import item_energy
from torchmark.records import Result
from torchmark.report import figures, meters, units
from torchmark.report.charts.series import Series, variant_name
from torchmark.report.elements import Cell, Column
from torchmark.report.looks import grade_text, look_of
from torchmark.report.text import shorten

REASON = 160
_PEAK = "share of the highest rate measured on this machine, and the limiting resource"


def columns(series: Sequence[Series]) -> list[Column]:
    """One of them names the machine where there are several."""
    return [
        Column("case"),
        *([Column("machine")] if len(series) > 1 else []),
        Column("rate", number=True, wraps=True, about="items per second"),
        Column("per step", number=True),
        Column("±", number=True, about="where a repeat would land, 95%"),
        *([Column("of peak", number=True, about=_PEAK)] if _has_peaks(series) else []),
        Column("first step", number=True, minor=True),
        Column("p99", number=True, minor=True, about="99% of steps take no longer than this"),
        Column("memory", number=True, minor=True, about="peak; device memory where the device has its own"),
        *([Column("energy", number=True, minor=True, wraps=True, about="per item")] if _energy_known(series) else []),
        Column("grade"),
    ]


def rows(series: Sequence[Series]) -> list[list[Cell]]:
    """All results of all series; a failed one has its status and reason instead of figures."""
    found, peaks = [], _has_peaks(series)
    for each in series:
        who = [Cell(each.name)] if len(series) > 1 else []
        found += [
            [_name(result), *who, *_figures(result, peaks), *_energy(result, series), grade(result)]
            for result in each.results
        ]
    return found


def grade(result: Result) -> Cell:
    """How far a figure can be relied on, or why there is none."""
    text = grade_text(result)
    if not text:
        return Cell(units.NOTHING)
    failed = result.status != "ok" or result.estimate is None
    word, _, cause = text.partition(": ")
    look = look_of(text)
    return Cell(word, look.rank, look.kind, shorten(result.reason or "", REASON) if failed else cause)


def grade_counts(series: Sequence[Series]) -> list[Cell]:
    """How many results have which grade or failed, the best first."""
    cells = [grade(result) for each in series for result in each.results]
    counts = Counter((cell.sort, cell.text, cell.kind) for cell in cells if cell.kind)
    return [Cell(f"{count} {text}", kind=kind) for (_, text, kind), count in sorted(counts.items())]


def _name(result: Result) -> Cell:
    case = result.case
    return Cell(
        shorten(case.workload, REASON), sort=shorten(case.text, REASON), note=shorten(variant_name(case), REASON)
    )


def _has_peaks(series: Sequence[Series]) -> bool:
    return any(result.peak for each in series for result in each.results)


def _peak(result: Result) -> Cell:
    if result.peak is None:
        return Cell(units.NOTHING)
    return Cell(units.percent(result.peak.share), _finite(result.peak.share), note=result.peak.bound)


def _figures(result: Result, peaks: bool) -> list[Cell]:
    found = result.estimate
    if result.status != "ok" or found is None:
        return [Cell(units.NOTHING)] * (6 + peaks)
    rate, tail = figures.step_rate(result), figures.tail(result)
    memory = (result.memory.device_peak_bytes or result.memory.host_peak_bytes) if result.memory else None
    published = figures.is_published(result)
    first = None if published else found.first_step_s
    return [
        Cell(units.rate(rate, shorten(result.work.unit, 24) if result.work else ""), _finite(rate)),
        Cell(figures.step_time(found), _finite(found.center_s), note=_job(result)),
        Cell(units.NOTHING) if published else Cell(figures.margin(found), _finite(found.precision)),
        *([_peak(result)] if peaks else []),
        Cell(units.duration(first), _finite(first)),
        Cell(units.duration(tail), _finite(tail)),
        Cell(units.size(memory), _finite(memory)),
    ]


def _energy_known(series: Sequence[Series]) -> bool:
    return any(meters.knows_energy(result) for each in series for result in each.results)


def _energy(result: Result, series: Sequence[Series]) -> list[Cell]:
    if not _energy_known(series):
        return []
    power = result.estimate.metered.mean_w if result.estimate else None
    note = f"{units.power(power)}" if power is not None else ""
    return [Cell(meters.energy(result), _finite(item_energy(result)), note=note)]


def _job(result: Result) -> str:
    return f"whole job {units.duration(result.job.seconds)}" if result.job and result.job.seconds > 0 else ""


def _finite(value: float | None) -> float | None:
    """To as many digits as a table can be sorted by."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
