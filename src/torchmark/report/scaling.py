"""The scaling table: what more workers bring, as plain cells that every report can set in its own way."""

from __future__ import annotations

from collections.abc import Sequence

from torchmark.analyze.scaling import Scaling, ScalingRow, find_scaling
from torchmark.records import Run
from torchmark.report import units
from torchmark.report.names import shared_place

COLUMNS = ("workers", "per step", "rate", "efficiency", "communication")
COLUMNS_OF_NODES = ("nodes", *COLUMNS)


def tables(run: Run) -> list[tuple[str, list[list[str]], str]]:
    """For each case that was measured with several counts of workers: its name, the rows, and what to know of them."""
    shared = shared_place(run.results)
    found = find_scaling(run.results)
    return [(_name(each, shared), [_cells(row, each.unit) for row in each.rows], note(each)) for each in found]


def tables_of_nodes(scalings: Sequence[Scaling]) -> list[tuple[str, list[list[str]], str]]:
    """The same for cases that were measured on several counts of nodes, which begin each row."""
    return [
        (each.case, [[str(row.nodes), *_cells(row, each.unit)] for row in each.rows], note(each)) for each in scalings
    ]


def note(scaling: Scaling) -> str:
    """On what footing the rows are compared."""
    if scaling.threads is None:
        footing = "Threads per rank differ between the rows or are not known: the efficiency is no fair one"
    else:
        footing = f"Every rank has {scaling.threads} thread{'s' if scaling.threads != 1 else ''}, in all rows"
    single = any(row.workers == 1 for row in scaling.rows)
    return f"{footing}. " + (
        "Efficiency: the rate for each worker against that of one alone."
        if single
        else "Without a row for one worker there is no efficiency: measure it with --workers 1, too."
    )


def _name(scaling: Scaling, shared: str | None) -> str:
    return scaling.case.replace(f"@{shared}", "", 1) if shared else scaling.case


def _cells(row: ScalingRow, unit: str) -> list[str]:
    return [
        str(row.workers),
        units.duration(row.step_s),
        units.rate(row.rate, unit),
        _efficiency(row),
        units.NOTHING if row.communication_share is None else units.percent(row.communication_share),
    ]


def _efficiency(row: ScalingRow) -> str:
    if row.efficiency is None:
        return units.NOTHING
    reach = units.relative(row.margin * row.efficiency) if row.margin else ""
    return f"{units.percent(row.efficiency)} {reach}".strip()
