"""Results of runs in every form: a table for readers, CSV and JSON for programs, and what failed or needs care."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchmark.analyze.efficiency import Cost, Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.records import Remark, Result, Run, RunHeader
from torchmark.report import figures, units
from torchmark.report.document import Cell, Column, CsvValue, Records, Remarks, Table, judged
from torchmark.report.names import Names
from torchmark.report.text import shorten

_COLUMNS = (
    "run", "label", "created", "machine", "torch", "case", "workload", "version", "mode", "device", "dtype",
    "status", "reason", "verdict", "grade", "flags", "estimand", "step_s", "low_s", "high_s", "precision",
    "items_per_s", "unit", "flops_per_s", "bytes_per_s", "peak_share", "bound", "first_step_s", "min_s",
    "median_s", "mean_s", "p90_s", "p99_s", "processes", "sample_count", "effective_samples", "host_peak_bytes",
    "device_peak_bytes", "cautions", "mean_w", "peak_w", "step_j", "item_j", "energy", "clock_hz", "temperature_c",
    "throttle", "burst_step_s", "sustained_step_s",
)  # fmt: skip
_COSTS = ("cost_per_million_items", "cost_per_epoch", "cost_per_job")
_WIDE, _WIDEST = 120, 150  # columns of a terminal from which more figures are shown
_REASON = 160
# What a good grade answers already: `show --details` has them all the same.
_ANSWERED = frozenset(("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread"))

Maker = Callable[[Result], Cell]


def results_table(results: Sequence[Result], name: Maker, machine: Maker | None = None, caption: str = "") -> Table:
    """A row for each result; a failed one has its status instead of figures. Only columns with figures are there."""
    shown = [result for result in results if result.status == "ok" and result.estimate]
    published = all(map(is_published, results))
    columns: list[tuple[Column, Maker]] = [(Column("case", "case"), name)]
    columns += [(Column("machine"), machine)] if machine else []
    columns.append((Column("per step", "figure"), _step))
    if not published:
        columns.append((Column("±", "figure", drop=1, about="where a repeat would land, 95%"), _margin))
    if any(map(figures.is_printed, results)):
        columns.append((Column("published", "figure", drop=2), lambda result: Cell(figures.printed(result))))
    columns.append((Column("rate", "figure", drop=3, wraps=True, about="items per second"), _rate))
    columns += [(column, make) for column, make in _MORE if any(make(result).text != units.NOTHING for result in shown)]
    if any(map(figures.grade_text, results)):
        columns.append((Column("grade"), grade_cell))
    rows = [
        [
            make(result) if result in shown or make in (name, machine, grade_cell) else Cell(units.NOTHING)
            for _, make in columns
        ]
        for result in results
    ]
    return Table([column for column, _ in columns], rows, caption=caption)


def grade_cell(result: Result) -> Cell:
    """How far a figure can be relied on, or why there is none."""
    failed = result.status != "ok" or result.estimate is None
    return judged(figures.grade_text(result), shorten(result.reason or "", _REASON) if failed else "")


def _step(result: Result) -> Cell:
    assert result.estimate
    note = f"whole job {units.duration(result.job.seconds)}" if result.job and result.job.seconds > 0 else ""
    return Cell(figures.step_time(result.estimate), sort=_finite(result.estimate.center_s), note=note)


def _margin(result: Result) -> Cell:
    assert result.estimate
    return Cell(figures.margin(result.estimate), sort=_finite(result.estimate.precision))


def _rate(result: Result) -> Cell:
    rate, unit = figures.step_rate(result), shorten(result.work.unit, 24) if result.work else ""
    return Cell(units.rate(rate, unit), sort=_finite(rate))


def _duration(figure: Callable[[Result], float | None]) -> Maker:
    def make(result: Result) -> Cell:
        seconds = None if is_published(result) else figure(result)
        return Cell(units.duration(seconds), sort=_finite(seconds))

    return make


def _amount(figure: Callable[[Result], float | None], written: Callable[[float | None], str]) -> Maker:
    return lambda result: Cell(written(figure(result)), sort=_finite(figure(result)))


def _energy(result: Result) -> Cell:
    power = result.estimate.metered.mean_w if result.estimate else None
    text = figures.energy(result) if figures.knows_energy(result) else units.NOTHING
    return Cell(text, sort=_finite(item_energy(result)), note=units.power(power) if power is not None else "")


def _share(result: Result) -> Cell:
    return Cell(figures.peak(result), sort=_finite(result.peak.share if result.peak else None))


def _finite(value: float | None) -> float | None:
    """To as many digits as a table can be sorted by."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


_PEAK = "share of the highest rate measured on this machine, and the limiting resource"
_P99 = "99% of steps take no longer than this"
_MEMORY = "peak; device memory where the device has its own"
_MORE: tuple[tuple[Column, Maker], ...] = (
    (Column("of peak", "figure", 4, _WIDE, wraps=True, about=_PEAK), _share),
    (Column("first step", "figure", 5, _WIDE, minor=True), _duration(figures.first_step)),
    (Column("p99", "figure", 6, _WIDE, minor=True, about=_P99), _duration(figures.tail)),
    (Column("memory", "figure", 10, _WIDEST - 1, minor=True, about=_MEMORY), _amount(figures.peak_memory, units.size)),
    (Column("energy", "figure", 7, _WIDE, minor=True, wraps=True, about="per item"), _energy),
    (Column("arithmetic", "figure", 8, _WIDEST, minor=True), _amount(figures.step_flops, units.arithmetic)),
    (Column("bandwidth", "figure", 9, _WIDEST, minor=True), _amount(figures.step_bandwidth, units.bandwidth)),
)


def failures(results: Sequence[Result], called: Callable[[Result], str]) -> Remarks:
    """Results without a figure, each with its reason; what failed for the same reason stands together."""
    alike: dict[tuple[str, str, str | None], list[str]] = {}
    for result in results:
        if result.status != "ok":
            key = (result.status, result.reason or "no reason was given", result.detail)
            alike.setdefault(key, []).append(called(result))
    remarks = [Remark(status, reason, cases=tuple(cases)) for (status, reason, _), cases in alike.items()]
    return Remarks(remarks, local=[detail for _, _, detail in alike])


def cautions(run: Run, names: Names) -> list[Remark]:
    """The cautions of all results: equal ones together, in the order in which their kinds came up.
    One without cases is about all of them."""
    cases: dict[Remark, list[str]] = {}
    for result in run.results:
        for caution in dict.fromkeys(_relevant(result)):
            cases.setdefault(caution, []).append(names.of(result))
    kinds = list(dict.fromkeys(caution.kind for caution in cases))
    figured = {names.of(result) for result in run.results if result.estimate}
    everywhere = figured if len(figured) > 1 else {""}
    return [
        replace(caution, cases=() if everywhere <= set(called) else tuple(called))
        for caution, called in sorted(cases.items(), key=lambda each: kinds.index(each[0].kind))
    ]


def _relevant(result: Result) -> list[Remark]:
    grade = grade_of(result)
    # Noise inside a process matters little next to the spread between several of them, which ± covers.
    hidden = _ANSWERED if grade and grade.word == "good" else {"noisy"} if len(result.processes) > 1 else frozenset()
    return [caution for caution in result.cautions if caution.kind not in hidden]


def run_records(runs: Sequence[Run], prices: Prices | None = None, json: Callable[[], Any] | None = None) -> Records:
    """A CSV row and a JSON line for each result; `json` replaces the object."""
    return Records(
        (*_COLUMNS, *_COSTS) if prices else _COLUMNS,
        lambda: ([*_row(run.header, result), *_costs(result, prices)] for run in runs for result in run.results),
        json or (lambda: {"runs": [run_object(run, prices) for run in runs]}),
        lambda: (_priced(result, prices) for run in runs for result in run.results),
    )


def run_object(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> dict[str, Any]:
    """`run` is the header with what is known of the whole run, `results` is one entry per case."""
    about = msgspec.to_builtins(run.header)
    cases = dict.fromkeys((*run.header.cases, *(result.case.text for result in run.results)))  # a search adds some
    about |= {"cases": [*cases], "process_spread": run.process_spread, "problems": run.problems}
    studies = {name: getattr(run, name) for name in ("tuning", "fitting", "limiting", "live")}
    about |= {name: study for name, study in studies.items() if study}
    priced = {"prices": prices} if prices else {}
    results = [_priced(result, prices) for result in run.results]
    return {"run": about, **priced, "results": results} | ({"headline": headline} if headline else {})


def _priced(result: Result, prices: Prices | None) -> Any:
    """With `cost` next to the fields of the record, where prices were named."""
    return msgspec.to_builtins(result) | {"cost": cost_of(result, prices)} if prices else result


def _costs(result: Result, prices: Prices | None) -> list[CsvValue]:
    cost = prices and (cost_of(result, prices) or Cost())
    return [cost.million_items, cost.epoch, cost.job] if cost else []


def _row(header: RunHeader, result: Result) -> list[CsvValue]:
    case, work, memory = result.case, result.work, result.memory
    cells: dict[str, CsvValue] = {
        "run": header.id,
        "label": header.label,
        "created": header.created,
        "machine": header.machine.cpu or ", ".join(device.model for device in header.machine.devices),
        "torch": header.machine.torch,
        "case": case.text,
        "version": result.version,
        "status": result.status,
        "reason": result.reason,
        "items_per_s": figures.step_rate(result),
        "unit": work.unit if work else None,
        "flops_per_s": figures.step_flops(result),
        "bytes_per_s": figures.step_bandwidth(result),
        "peak_share": result.peak.share if result.peak else None,
        "bound": result.peak.bound if result.peak else None,
        "host_peak_bytes": memory.host_peak_bytes if memory else None,
        "device_peak_bytes": memory.device_peak_bytes if memory else None,
        "cautions": " ".join(dict.fromkeys(caution.kind for caution in result.cautions)),
    }
    cells |= {name: getattr(case, name) for name in ("workload", "mode", "device", "dtype")}
    cells |= _estimate(result) | _metered(result)
    return [cells.get(column) for column in _COLUMNS]


def _metered(result: Result) -> dict[str, CsvValue]:
    """`energy` says where the energy comes from, or why it is missing; clock at last, temperature at most."""
    if result.estimate is None:
        return {}
    seen, kept_going = result.estimate.metered, result.sustained
    return {
        "mean_w": seen.mean_w,
        "peak_w": seen.peak_w,
        "step_j": step_energy(result.estimate),
        "item_j": item_energy(result),
        "energy": result.provenance.get("energy"),
        "clock_hz": seen.clock_hz[1] if seen.clock_hz else None,
        "temperature_c": seen.temperature_c[1] if seen.temperature_c else None,
        "throttle": ", ".join(seen.throttle),
        "burst_step_s": kept_going.first_s if kept_going else None,
        "sustained_step_s": kept_going.last_s if kept_going else None,
    }


def _estimate(result: Result) -> dict[str, CsvValue]:
    found, grade = result.estimate, grade_of(result)
    if found is None:
        return {}
    common: dict[str, CsvValue] = {"estimand": found.estimand, "verdict": found.verdict, "step_s": found.center_s}
    if is_published(result):
        return common | {"first_step_s": figures.first_step(result)}
    names = [name for name in _COLUMNS if name in found.__struct_fields__ or name == "precision"]
    return (
        common
        | {name: getattr(found, name) for name in names}
        | {
            "grade": grade.word if grade else None,
            "flags": " ".join(found.flags),
            "processes": figures.process_count(result),
        }
    )
