"""Scaling over workers: the measured rate next to ideal linear scaling."""

from __future__ import annotations

from torchmark.analyze.scaling import Scaling, ScalingRow
from torchmark.report import units
from torchmark.report.draw import QUIET, WIDTH, Chart

_HEIGHT = 170


def draw_scaling(scaling: Scaling, color: str = "var(--series-1)") -> Chart:
    """The rate of all workers together, with the ideal dashed where a single worker was measured."""
    import altair as alt

    single = next((row.rate for row in scaling.rows if row.workers == 1), None)
    rows = [
        {"workers": row.workers, "rate": row.rate, "about": _about(row, scaling.unit), "said": _said(row)}
        | ({"ideal": row.workers * single} if single else {})
        for row in scaling.rows
    ]
    x = alt.X(
        "workers:Q",
        axis=alt.Axis(values=[row.workers for row in scaling.rows], grid=False, format="d"),
        scale=alt.Scale(padding=14),
    )
    axis = alt.Axis(title=None, format="~s", tickCount=4, domain=False, ticks=False)
    y = alt.Y("rate:Q", axis=axis, scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("rows")).encode(x=x)
    ideal = base.mark_line(color=QUIET, strokeDash=[3, 3], strokeWidth=1.2, aria=False)
    layers = [
        base.mark_line(color=color, strokeWidth=2, aria=False).encode(y=y),
        base.mark_point(color=color, filled=True, size=56, opacity=1).encode(
            y=y, description=alt.Description("about:N")
        ),
        base.mark_text(dy=16, color=QUIET, fontSize=11, aria=False).encode(y=y, text=alt.Text("said:N")),
    ]
    if single:
        layers.insert(0, ideal.encode(y=alt.Y("ideal:Q", axis=axis)))
    return Chart(alt.layer(*layers).properties(width=WIDTH - 40, height=_HEIGHT), {"rows": rows})


def _said(row: ScalingRow) -> str:
    return "" if row.efficiency is None or row.workers == 1 else units.percent(row.efficiency)


def _about(row: ScalingRow, unit: str) -> str:
    efficiency = f", efficiency {units.percent(row.efficiency)}" if row.efficiency is not None else ""
    return f"{row.workers} worker{'s' if row.workers != 1 else ''}: {units.rate(row.rate, unit)}{efficiency}"
