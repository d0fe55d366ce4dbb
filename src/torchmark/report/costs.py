"""The table of costs on a page: what every result costs at the user's own prices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchmark.analyze.money import Prices
from torchmark.report import money, units
from torchmark.report.charts.series import Series, full_name
from torchmark.report.elements import Cell, Column


def columns(series: Sequence[Series]) -> list[Column]:
    """One of them names the machine where there are several."""
    return [
        Column("case"),
        *([Column("machine")] if len(series) > 1 else []),
        Column("per million items", number=True),
        Column("per epoch", number=True),
        Column("whole job", number=True),
    ]


def rows(series: Sequence[Series], prices: Prices) -> list[list[Cell]]:
    """All results that have a cost."""
    found = []
    for each in series:
        who = [Cell(each.name)] if len(series) > 1 else []
        for result, cost in money.costs(each.run, prices):
            unit = result.work.unit if result.work else ""
            figures = [_cell(cost.million_items, unit), _cell(cost.epoch), _cell(cost.job)]
            found.append([Cell(full_name(result.case)), *who, *figures])
    return found


def _cell(value: float | None, note: str = "") -> Cell:
    if value is None or not math.isfinite(value):
        return Cell(units.NOTHING)
    return Cell(units.digits(value), float(f"{value:.6g}"), note=note)
