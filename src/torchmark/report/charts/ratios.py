"""Speed against a baseline: for every case that both runs have, how many times as fast, with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.analyze.comparison import Comparison, Family, Pair, compare_all, overall
from torchmark.records import Case, Run
from torchmark.report import units
from torchmark.report.charts.rows import BELOW, HEIGHT, row_texts
from torchmark.report.charts.scales import factor_ticks
from torchmark.report.charts.series import devices_of, full_name, run_names, variant_name
from torchmark.report.draw import QUIET, SURFACE, WIDTH, Chart

Naming = Callable[[Case], str]
SHADES = {"faster": "var(--good)", "slower": "var(--bad)", "same": QUIET, "similar": QUIET, "unsure": QUIET}
_NARROWEST = 1.25  # the scale reaches at least from 1/1.25 to 1.25


class Ratio(Struct, frozen=True):
    """How many times as fast one case is; above 1 it is faster. Without an interval both ends are the value."""

    label: str
    value: float
    low: float
    high: float
    figure: str
    about: str
    color: str
    sure: bool


class Panel(Struct, frozen=True):
    """What belongs together: the cases of a workload, or those of a run; `mean` is what they come to on average."""

    title: str
    ratios: tuple[Ratio, ...]
    mean: str = ""


def find_panels(runs: Sequence[Run], baseline: int) -> tuple[Panel, ...]:
    """By workload where there is one other run, else by run; none where nothing can be compared."""
    names = run_names(runs)
    others = [index for index in range(len(runs)) if index != baseline]
    comparisons = compare_all([runs[baseline], *(runs[index] for index in others)])
    if len(others) == 1:
        panels = _by_workload(comparisons[0], _naming(runs[others[0]], variant_name))
    else:
        panels = [
            _panel(names[index], found.pairs, overall(found.families), _naming(runs[index], full_name))
            for index, found in zip(others, comparisons, strict=True)
        ]
    return tuple(panel for panel in panels if panel.ratios)


def _by_workload(comparison: Comparison, name: Naming) -> list[Panel]:
    groups: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        groups.setdefault(pair.a.case.workload, []).append(pair)
    means = {family.name: family for family in comparison.families}
    return [_panel(workload, pairs, means.get(workload), name) for workload, pairs in groups.items()]


def _naming(run: Run, name: Naming) -> Naming:
    """What a row must say because its panel does not."""
    return (lambda case: f"{name(case)} · {case.device}") if len(devices_of(run)) > 1 else name


def _panel(title: str, pairs: Sequence[Pair], mean: Family | None, name: Naming) -> Panel:
    rows = [_ratio(pair, name(pair.b.case)) for pair in pairs]
    sane = tuple(row for row in rows if 0 < row.low <= row.high < math.inf)
    said = f"On average {_factor(mean)}" if mean and len(pairs) > 1 else ""
    return Panel(title, sane, said)


def _ratio(pair: Pair, name: str) -> Ratio:
    value, low, high = _speeds(pair)
    known = pair.low is not None or pair.assumed is not None
    return Ratio(
        label=name,
        value=value,
        low=low,
        high=high,
        figure=f"{units.factor(value, rough=pair.assumed is not None)} {pair.verdict if known else ''}".strip(),
        about=f"{name}: {_factor(pair)}",
        color=SHADES[pair.verdict],
        sure=pair.verdict != "unsure",
    )


def _factor(row: Pair | Family) -> str:
    """1.43× as fast (1.40× to 1.46×), faster"""
    value, low, high = _speeds(row)
    interval = f" ({units.factor(low)} to {units.factor(high)}), {row.verdict}" if row.low is not None else ""
    return f"{units.factor(value)} as fast{interval}"


def _speeds(row: Pair | Family) -> tuple[float, float, float]:
    """The comparison is about times; a person asks about speed. Without an interval both ends are the value."""
    value = 1 / row.ratio
    return value, 1 / row.high if row.high else value, 1 / row.low if row.low else value


def draw_ratios(ratios: Sequence[Ratio], domain: Sequence[float]) -> Chart:
    """Points on a scale of factors, with a mark where both are equally fast; what is unsure is hollow."""
    import altair as alt

    rows = [
        {**asdict(ratio), "row": row, "fill": ratio.color if ratio.sure else SURFACE}
        for row, ratio in enumerate(ratios)
    ]
    scale = alt.Scale(type="log", domain=list(domain), nice=False, clamp=True)
    axis = alt.Axis(
        title=None, values=factor_ticks(*domain), labelExpr="datum.value + '×'", domain=False, ticks=False, grid=False
    )
    x, shade = alt.X("value:Q", axis=axis, scale=scale), alt.Color("color:N", scale=None)
    base = alt.Chart(alt.NamedData("rows")).encode(y=alt.Y("row:O", axis=None))
    marks = alt.layer(
        base.mark_tick(yOffset=BELOW, size=18, thickness=1.5, color=QUIET, opacity=0.6, aria=False).encode(
            x=alt.X(datum=1, type="quantitative", axis=axis, scale=scale)
        ),
        base.mark_rule(yOffset=BELOW, strokeWidth=2, aria=False).encode(
            x=alt.X("low:Q", axis=axis, scale=scale), x2=alt.X2("high"), color=shade
        ),
        base.mark_circle(yOffset=BELOW, size=64, strokeWidth=2, opacity=1).encode(
            x=x,
            stroke=alt.Stroke("color:N", scale=None),
            fill=alt.Fill("fill:N", scale=None),
            description=alt.Description("about:N"),
        ),
        *row_texts(base, [ratio.figure for ratio in ratios]),
    )
    return Chart(marks.properties(width=WIDTH, height=HEIGHT * len(rows)), {"rows": rows})


def shared_domain(ratios: Sequence[Ratio]) -> list[float]:
    """As far to either side as the values reach; an interval that reaches much further is cut by the edge."""
    low, high = min(ratio.value for ratio in ratios), max(ratio.value for ratio in ratios)
    low_end = max(min(ratio.low for ratio in ratios), low / 2)
    high_end = min(max(ratio.high for ratio in ratios), high * 2)
    return [min(low_end / 1.1, 1 / _NARROWEST), max(high_end * 1.1, _NARROWEST)]
