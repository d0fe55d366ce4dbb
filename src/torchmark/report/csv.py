"""A run as CSV: one line per result in base units, and no cell that a spreadsheet would take for a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from torchmark.analyze.energy import item_energy, step_energy
from torchmark.analyze.grades import grade_of
from torchmark.analyze.money import Prices
from torchmark.records import Result, Run, RunHeader
from torchmark.report import figures, money

Cell = str | float | None

COLUMNS = (
    "run", "label", "created", "machine", "torch", "case", "workload", "version", "mode", "device", "dtype",
    "status", "reason", "verdict", "grade", "flags", "estimand", "step_s", "low_s", "high_s", "precision",
    "items_per_s", "unit", "flops_per_s", "bytes_per_s", "peak_share", "bound", "first_step_s", "min_s",
    "median_s", "mean_s", "p90_s", "p99_s", "processes", "sample_count", "effective_samples", "host_peak_bytes",
    "device_peak_bytes", "cautions", "mean_w", "peak_w", "step_j", "item_j", "energy", "clock_hz", "temperature_c",
    "throttle", "burst_step_s", "sustained_step_s",
)  # fmt: skip


# Where a spreadsheet would begin a formula: at the start of a cell, or after what it may take for the end of one, as
# it does ; where numbers have a decimal comma. Some take the wide forms of the signs for the same.
_FORMULA = re.compile(r"""(?:^|[;|\t\r\n])(?=[\s"\0]*[=+\-@＝＋－＠])|^(?=[\t\r\n\0])""")


def render_csv(*runs: Run, prices: Prices | None = None) -> str:
    """All results with a heading line; rates and costs are worked out, everything else is as it was measured."""
    rows = [[*_row(run.header, result), *_costs(result, prices)] for run in runs for result in run.results]
    return table((*COLUMNS, *money.COLUMNS) if prices else COLUMNS, rows)


def _costs(result: Result, prices: Prices | None) -> tuple[Cell, ...]:
    return money.cells(result, prices) if prices else ()


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Any rows as CSV, with every text guarded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([guard(cell) for cell in row] for row in rows)
    return text.getvalue()


def guard(cell: Cell) -> Cell:
    """A text with a quote wherever a formula would begin; numbers are themselves."""
    return _FORMULA.sub(r"\g<0>'", cell).replace("\0", "") if isinstance(cell, str) else cell


def _row(header: RunHeader, result: Result) -> list[Cell]:
    case, work, memory = result.case, result.work, result.memory
    cells: dict[str, Cell] = {
        "run": header.id,
        "label": header.label,
        "created": header.created,
        "machine": header.machine.cpu or ", ".join(device.model for device in header.machine.devices),
        "torch": header.machine.torch,
        "case": case.text,
        "workload": case.workload,
        "version": result.version,
        "mode": case.mode,
        "device": case.device,
        "dtype": case.dtype,
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
    cells |= _estimate(result) | _metered(result)
    return [cells.get(column) for column in COLUMNS]


def _metered(result: Result) -> dict[str, Cell]:
    """`energy` says where the energy comes from, or why it is not there; clock at last, temperature at most."""
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


def _estimate(result: Result) -> dict[str, Cell]:
    found = result.estimate
    if found is None:
        return {}
    if figures.is_published(result):
        return {
            "estimand": found.estimand,
            "verdict": found.verdict,
            "step_s": found.center_s,
            "first_step_s": figures.first_step(result),
        }
    names: tuple[str, ...] = (
        "estimand",
        "verdict",
        "low_s",
        "high_s",
        "precision",
        "first_step_s",
        "min_s",
        "median_s",
        "mean_s",
    )
    names += ("p90_s", "p99_s", "sample_count", "effective_samples")
    grade = grade_of(result)
    return {name: getattr(found, name) for name in names} | {
        "grade": grade.word if grade else None,
        "step_s": found.center_s,
        "flags": " ".join(found.flags),
        "processes": figures.process_count(result),
    }
