"""Results of runs in every form: a table for readers, CSV and JSON for programs, and what failed or needs care."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices, cost_of, item_energy, step_energy
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.headline import Headline
from torchmark.records import Remark, Result, Run, RunHeader
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import Names
from torchmark.report.text import shorten

_WIDE, _WIDEST = 120, 150  # columns of a terminal from which more figures are shown
_REASON = 160
# What a good grade answers already: `show --details` has them all the same.
_ANSWERED = frozenset(("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread"))

Maker = Callable[[Result], str | doc.Cell]


def results_table(results: Sequence[Result], name: Maker, machine: Maker | None = None, caption: str = "") -> doc.Table:
    """A row for each result; a failed one has its status instead of figures. Only columns with figures are there."""
    measured = [result for result in results if result.status == "ok" and result.estimate]
    shown = {
        "machine": machine is not None,
        "±": not all(map(is_published, results)),
        "published": any("printed" in result.settings for result in results),
        "grade": any(map(figures.grade_text, results)),
    }
    for column in _IF_KNOWN:
        shown[column.title] = any(doc.as_cell(column.cell(each)).text != units.NOTHING for each in measured)
    every = (
        doc.Column("case", "case", of=name),
        doc.Column("machine", of=machine or name),
        *_ALWAYS,
        *_IF_KNOWN,
        _GRADE,
    )
    columns = [column for column in every if shown.get(column.title, True)]
    figured = set(map(id, measured))
    rows = []
    for each in results:
        known = id(each) in figured
        rows.append([one.cell(each) if known or not one.is_number else units.NOTHING for one in columns])
    return doc.Table(columns, rows, caption=caption)


def grade_cell(result: Result) -> doc.Cell:
    """How far a figure can be relied on, or why there is none."""
    failed = result.status != "ok" or result.estimate is None
    return doc.judged(figures.grade_text(result), shorten(result.reason or "", _REASON) if failed else "")


def _figure(value: doc.Field, text: Callable[[Result], str], note: Callable[[Result], str] = lambda _: "") -> Maker:
    """A text that is sorted by a value."""
    return lambda result: doc.Cell(text(result), sort=doc.finite(doc.value_of(result, value)), note=note(result))


def _whole_job(result: Result) -> str:
    return f"whole job {units.duration(result.job.seconds)}" if result.job and result.job.seconds > 0 else ""


def _share(result: Result) -> str:
    return f"{units.percent(result.peak.share)} {result.peak.bound}" if result.peak else units.NOTHING


def _first_step(result: Result) -> float | None:
    """The first step with its start-up cost; None where it was not timed here."""
    return None if is_published(result) else doc.value_of(result, "estimate.first_step_s") or None


def _tail(result: Result) -> float | None:
    """The p99, where single steps were timed: a block of steps has no tail."""
    estimate = None if is_published(result) else result.estimate
    return estimate.p99_s if estimate and estimate.block_size == 1 and estimate.p99_s > 0 else None


def _power(result: Result) -> str:
    power = doc.value_of(result, "estimate.metered.mean_w")
    return "" if power is None else units.power(power)


_FLOPS, _BYTES = partial(figures.step_rate, amount="flops"), partial(figures.step_rate, amount="bytes")
_PEAK = "share of the highest rate measured on this machine, and the limiting resource"
_P99 = "99% of steps take no longer than this"
_MEMORY = "peak; device memory where the device has its own"
_STEP = _figure("estimate.center_s", lambda result: figures.step_time(result.estimate), _whole_job)
_MARGIN = _figure("estimate.precision", lambda result: figures.margin(result.estimate))
_ALWAYS = (
    doc.Column("per step", "figure", of=_STEP),
    doc.Column("±", "figure", drop=1, about="where a repeat would land, 95%", of=_MARGIN),
    doc.Column("published", "figure", drop=2, of=figures.printed),
    doc.Column("rate", "figure", 3, wraps=True, about="items per second", of=_figure(figures.step_rate, figures.rate)),
)
_IF_KNOWN = (
    doc.Column("of peak", "figure", 4, _WIDE, wraps=True, about=_PEAK, of=_figure("peak.share", _share)),
    doc.Column("first step", "figure", 5, _WIDE, minor=True, of=_first_step, written=units.duration),
    doc.Column("p99", "figure", 6, _WIDE, minor=True, about=_P99, of=_tail, written=units.duration),
    doc.Column(
        "memory", "figure", 10, _WIDEST - 1, minor=True, about=_MEMORY, of=figures.peak_memory, written=units.size
    ),
    doc.Column(
        "energy",
        "figure",
        7,
        _WIDE,
        minor=True,
        wraps=True,
        about="per item",
        of=_figure(item_energy, figures.energy, _power),
    ),
    doc.Column("arithmetic", "figure", 8, _WIDEST, minor=True, of=_FLOPS, written=units.arithmetic),
    doc.Column("bandwidth", "figure", 9, _WIDEST, minor=True, of=_BYTES, written=units.bandwidth),
)
_GRADE = doc.Column("grade", of=grade_cell)


def failures(results: Sequence[Result], called: Callable[[Result], str]) -> doc.Remarks:
    """Results without a figure, each with its reason; what failed for the same reason stands together."""
    failed = [each for each in results if each.status != "ok"]
    alike = doc.grouped(
        ((each.status, each.reason or "no reason was given", each.detail), called(each)) for each in failed
    )
    remarks = [Remark(status, reason, cases=tuple(cases)) for (status, reason, _), cases in alike.items()]
    return doc.Remarks(remarks, local=[detail for _, _, detail in alike])


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


def run_records(
    runs: Sequence[Run], prices: Prices | None = None, json: Callable[[], Any] | None = None
) -> doc.Records:
    """A CSV row and a JSON line for each result; `json` replaces the object."""
    return doc.Records(
        _CSV | doc.fields(_COSTS if prices else ""),
        lambda: (_row(run.header, result, prices) for run in runs for result in run.results),
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


def _row(header: RunHeader, result: Result, prices: Prices | None) -> dict[str, Any]:
    """What the columns show; `sampled` is an estimate that comes from samples, not from a publication."""
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
        **{f"{amount}_per_s": figures.step_rate(result, amount) for amount in ("items", "flops", "bytes")},
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
