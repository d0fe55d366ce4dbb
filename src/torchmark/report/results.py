"""Results of runs in every form: a table for readers, CSV and JSON for programs, and what failed or needs care."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.records import Remark, Result, Run, RunHeader
from torchmark.report import figures, units
from torchmark.report.document import Cell, Column, Field, Records, Remarks, Table, grouped, judged, value_of
from torchmark.report.names import Names
from torchmark.report.text import shorten

_WIDE, _WIDEST = 120, 150  # columns of a terminal from which more figures are shown
_REASON = 160
# What a good grade answers already: `show --details` has them all the same.
_ANSWERED = frozenset(("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread"))

Maker = Callable[[Result], Cell]


def results_table(results: Sequence[Result], name: Maker, machine: Maker | None = None, caption: str = "") -> Table:
    """A row for each result; a failed one has its status instead of figures. Only columns with figures are there."""
    measured = [result for result in results if result.status == "ok" and result.estimate]
    shown = {
        "machine": machine is not None,
        "±": not all(map(is_published, results)),
        "published": any("printed" in result.settings for result in results),
        "grade": any(map(figures.grade_text, results)),
    }
    shown |= {each.title: any(value_of(r, each.of).text != units.NOTHING for r in measured) for each in _IF_KNOWN}
    every = (Column("case", "case", of=name), Column("machine", of=machine or name), *_ALWAYS, *_IF_KNOWN, _GRADE)
    columns = [column for column in every if shown.get(column.title, True)]
    figured = set(map(id, measured))
    rows = []
    for each in results:
        known = id(each) in figured
        rows.append([value_of(each, one.of) if known or not one.is_number else units.NOTHING for one in columns])
    return Table(columns, rows, caption=caption)


def grade_cell(result: Result) -> Cell:
    """How far a figure can be relied on, or why there is none."""
    failed = result.status != "ok" or result.estimate is None
    return judged(figures.grade_text(result), shorten(result.reason or "", _REASON) if failed else "")


def finite(value: float | None) -> float | None:
    """To as many digits as a table can be sorted by."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _figure(value: Callable[[Result], float | None], written: Callable[[float | None], str]) -> Maker:
    return lambda result: Cell(written(value(result)), sort=finite(value(result)))


def _duration(seconds: Callable[[Result], float | None]) -> Maker:
    return _figure(lambda result: None if is_published(result) else seconds(result), units.duration)


def _step(result: Result) -> Cell:
    assert result.estimate
    note = f"whole job {units.duration(result.job.seconds)}" if result.job and result.job.seconds > 0 else ""
    return Cell(figures.step_time(result.estimate), sort=finite(result.estimate.center_s), note=note)


def _margin(result: Result) -> Cell:
    assert result.estimate
    return Cell(figures.margin(result.estimate), sort=finite(result.estimate.precision))


def _rate(result: Result) -> Cell:
    rate, unit = figures.step_rate(result), shorten(result.work.unit, 24) if result.work else ""
    return Cell(units.rate(rate, unit), sort=finite(rate))


def _share(result: Result) -> Cell:
    peak = result.peak
    return Cell(f"{units.percent(peak.share)} {peak.bound}", sort=finite(peak.share)) if peak else Cell(units.NOTHING)


def _energy(result: Result) -> Cell:
    power = result.estimate.metered.mean_w if result.estimate else None
    text = units.NOTHING if power is None else figures.energy(result)
    return Cell(text, sort=finite(item_energy(result)), note="" if power is None else units.power(power))


_PEAK = "share of the highest rate measured on this machine, and the limiting resource"
_P99 = "99% of steps take no longer than this"
_MEMORY = "peak; device memory where the device has its own"
_ALWAYS = (
    Column("per step", "figure", of=_step),
    Column("±", "figure", drop=1, about="where a repeat would land, 95%", of=_margin),
    Column("published", "figure", drop=2, of=lambda result: Cell(figures.printed(result))),
    Column("rate", "figure", drop=3, wraps=True, about="items per second", of=_rate),
)
_GRADE = Column("grade", of=grade_cell)
_FLOPS = _figure(lambda result: figures.step_rate(result, "flops"), units.arithmetic)
_BYTES = _figure(lambda result: figures.step_rate(result, "bytes"), units.bandwidth)
_IF_KNOWN = (
    Column("of peak", "figure", 4, _WIDE, wraps=True, about=_PEAK, of=_share),
    Column("first step", "figure", 5, _WIDE, minor=True, of=_duration(figures.first_step)),
    Column("p99", "figure", 6, _WIDE, minor=True, about=_P99, of=_duration(figures.tail)),
    Column("memory", "figure", 10, _WIDEST - 1, minor=True, about=_MEMORY, of=_figure(figures.peak_memory, units.size)),
    Column("energy", "figure", 7, _WIDE, minor=True, wraps=True, about="per item", of=_energy),
    Column("arithmetic", "figure", 8, _WIDEST, minor=True, of=_FLOPS),
    Column("bandwidth", "figure", 9, _WIDEST, minor=True, of=_BYTES),
)


def failures(results: Sequence[Result], called: Callable[[Result], str]) -> Remarks:
    """Results without a figure, each with its reason; what failed for the same reason stands together."""
    failed = [each for each in results if each.status != "ok"]
    alike = grouped(((each.status, each.reason or "no reason was given", each.detail), called(each)) for each in failed)
    remarks = [Remark(status, reason, cases=tuple(cases)) for (status, reason, _), cases in alike.items()]
    return Remarks(remarks, local=[detail for _, _, detail in alike])


def cautions(run: Run, names: Names) -> list[Remark]:
    """The cautions of all results: equal ones together, in the order in which their kinds came up.
    One without cases is about all of them."""
    cases: dict[Remark, list[str]] = {}
    for result in run.results:
        grade = grade_of(result)
        # Noise inside a process matters little next to the spread between several of them, which ± covers.
        noise = {"noisy"} if len(result.processes) > 1 else frozenset()
        hidden = _ANSWERED if grade and grade.word == "good" else noise
        for caution in dict.fromkeys(caution for caution in result.cautions if caution.kind not in hidden):
            cases.setdefault(caution, []).append(names.of(result))
    kinds = list(dict.fromkeys(caution.kind for caution in cases))
    figured = {names.of(result) for result in run.results if result.estimate}
    everywhere = figured if len(figured) > 1 else {""}
    return [
        replace(caution, cases=() if everywhere <= set(called) else tuple(called))
        for caution, called in sorted(cases.items(), key=lambda each: kinds.index(each[0].kind))
    ]


def run_records(runs: Sequence[Run], prices: Prices | None = None, json: Callable[[], Any] | None = None) -> Records:
    """A CSV row and a JSON line for each result; `json` replaces the object."""

    def row(header: RunHeader, result: Result) -> dict[str, Any]:
        sampled = {"sampled": result.estimate, "grade": grade_of(result)} if not is_published(result) else {}
        priced = {"cost": cost_of(result, prices)} if prices else {}
        return {"header": header, "machine": header.machine, "result": result, "sampled": None} | sampled | priced

    return Records(
        _CSV | _COSTS if prices else _CSV,
        lambda: (row(run.header, result) for run in runs for result in run.results),
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
    return msgspec.to_builtins(result) | {"cost": cost_of(result, prices)} if prices else result


def _under(place: str, names: str) -> dict[str, Field]:
    return {name: f"{place}.{name}" for name in names.split()}


# By the header, the result and its cost; `sampled` is an estimate that comes from samples, not from a publication.
_CSV: dict[str, Field] = {
    "run": "header.id",
    **_under("header", "label created"),
    "machine": lambda row: row["machine"].cpu or ", ".join(device.model for device in row["machine"].devices),
    "torch": "machine.torch",
    "case": "result.case.text",
    "workload": "result.case.workload",
    "version": "result.version",
    **_under("result.case", "mode device dtype"),
    **_under("result", "status reason"),
    "verdict": "result.estimate.verdict",
    "grade": "grade.word",
    "flags": lambda row: " ".join(row["sampled"].flags) if row["sampled"] else None,
    "estimand": "result.estimate.estimand",
    "step_s": "result.estimate.center_s",
    **_under("sampled", "low_s high_s precision"),
    "items_per_s": lambda row: figures.step_rate(row["result"]),
    "unit": "result.work.unit",
    "flops_per_s": lambda row: figures.step_rate(row["result"], "flops"),
    "bytes_per_s": lambda row: figures.step_rate(row["result"], "bytes"),
    "peak_share": "result.peak.share",
    "bound": "result.peak.bound",
    "first_step_s": lambda row: figures.first_step(row["result"]),
    **_under("sampled", "min_s median_s mean_s p90_s p99_s"),
    "processes": lambda row: max(1, len(row["result"].processes)) if row["sampled"] else None,
    **_under("sampled", "sample_count effective_samples"),
    **_under("result.memory", "host_peak_bytes device_peak_bytes"),
    "cautions": lambda row: " ".join(dict.fromkeys(caution.kind for caution in row["result"].cautions)),
    **_under("result.estimate.metered", "mean_w peak_w"),
    "step_j": lambda row: step_energy(row["result"].estimate) if row["result"].estimate else None,
    "item_j": lambda row: item_energy(row["result"]),
    "energy": lambda row: row["result"].provenance.get("energy") if row["result"].estimate else None,
    "clock_hz": "result.estimate.metered.clock_hz.1",
    "temperature_c": "result.estimate.metered.temperature_c.1",
    "throttle": lambda row: ", ".join(row["result"].estimate.metered.throttle) if row["result"].estimate else None,
    "burst_step_s": "result.sustained.first_s",
    "sustained_step_s": "result.sustained.last_s",
}
_COSTS: dict[str, Field] = {f"cost_per_{each}": f"cost.{each}" for each in ("million_items", "epoch", "job")}
