"""A run as CSV: one line per result in base units, and no cell that a spreadsheet would take for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from torchmark.records import Result, Run, RunHeader
from torchmark.report import figures

Cell = str | float | None

COLUMNS = (
    "run", "label", "created", "machine", "torch", "case", "workload", "version", "mode", "device", "dtype",
    "status", "reason", "verdict", "flags", "estimand", "step_s", "low_s", "high_s", "precision",
    "items_per_s", "unit", "flops_per_s", "bytes_per_s", "first_step_s", "min_s", "median_s", "mean_s", "p90_s",
    "p99_s", "processes", "sample_count", "effective_samples", "host_peak_bytes", "device_peak_bytes", "cautions",
)  # fmt: skip


# What begins a formula; some spreadsheets take the wide forms for the same.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n", "\0")


def render_csv(*runs: Run) -> str:
    """All results with a heading line; the rates are worked out, everything else is as it was measured."""
    return table(COLUMNS, [_row(run.header, result) for run in runs for result in run.results])


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Any rows as CSV, with every text guarded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([guard(cell) for cell in row] for row in rows)
    return text.getvalue()


def guard(cell: Cell) -> Cell:
    """A text that begins like a formula gets a quote in front; numbers are themselves."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return "'" + cell.replace("\0", "")
    return cell.replace("\0", "") if isinstance(cell, str) else cell


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
        "host_peak_bytes": memory.host_peak_bytes if memory else None,
        "device_peak_bytes": memory.device_peak_bytes if memory else None,
        "cautions": " ".join(dict.fromkeys(caution.kind for caution in result.cautions)),
    }
    cells |= _estimate(result)
    return [cells.get(column) for column in COLUMNS]


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
    return {name: getattr(found, name) for name in names} | {
        "step_s": found.center_s,
        "flags": " ".join(found.flags),
        "processes": figures.process_count(result),
    }
