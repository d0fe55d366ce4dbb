"""Speed as bars: for each workload its variants, or for each work the machines that did it, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.records import Result, Work
from torchmark.report import figures, units
from torchmark.report.charts.rows import BELOW, HEIGHT, row_texts
from torchmark.report.charts.series import Series, full_name, is_measured, same_work, variant_parts
from torchmark.report.draw import TEXT, WIDTH, Chart
from torchmark.report.looks import grade_text
from torchmark.report.text import shorten

Member = tuple[Series, Result]
STEPS = Work(items=1, unit="step")
_UNIT = 24
_WIDEST = 1.6  # an interval that reaches further than this beyond the longest bar is cut


class Bar(Struct, frozen=True):
    """One speed in items per second, and how it is said."""

    label: str
    value: float
    low: float
    high: float
    figure: str
    margin: str  # none where none is known
    about: str
    color: str
    unit: str
    grade: str


class Panel(Struct, frozen=True):
    """Bars that share a unit, so that their lengths can be compared; `who` did them, where not each says it."""

    title: str
    bars: tuple[Bar, ...]
    who: str = ""


def find_panels(series: Sequence[Series]) -> tuple[Panel, ...]:
    """Work that several series did, each against the others; then what only one did, by workload."""
    works: dict[tuple[str, int, bool], list[Member]] = {}
    for each in series:
        for result in filter(is_measured, each.results):
            key = (same_work(result.case), result.version, _stands_alone(result))
            works.setdefault(key, []).append((each, result))
    shared = [_shared(members) for members in works.values() if len(members) > 1]
    single: dict[tuple[str, str, int], list[Member]] = {}
    for [(each, result)] in (members for members in works.values() if len(members) == 1):
        single.setdefault((each.name, result.case.workload, result.version), []).append((each, result))
    panels = [*shared, *(_single(members, len(series) > 1) for members in single.values())]
    return tuple(panel for panel in panels if panel.bars)


def _stands_alone(result: Result) -> bool:
    """Some published work has the shape of ours, but is not the same."""
    return any(caution.kind == "not-comparable" for caution in result.cautions)


def _shared(members: Sequence[Member]) -> Panel:
    """The same work, the fastest first. Who does not know what a step is worth is told by the others."""
    known = [result.work for _, result in members if result.work]
    work = known[0] if known else STEPS
    bars = _bars([(each.name, each, result, result.work or work) for each, result in members])
    return Panel(full_name(members[0][1].case), tuple(sorted(bars, key=lambda bar: -bar.value)))


def _single(members: Sequence[Member], several: bool) -> Panel:
    """The variants of one workload; what they have in common is said once, above them."""
    series, first = members[0]
    parts = [variant_parts(result.case) for _, result in members]
    common = [part for part in parts[0] if all(part in each for each in parts)] if len(parts) > 1 else []
    labels = [" · ".join(part for part in each if part not in common) for each in parts]
    rows = zip(labels, members, strict=True)
    bars = _bars([(label or result.case.dtype, series, result, result.work or STEPS) for label, (_, result) in rows])
    return Panel(" · ".join([first.case.workload, *common]), tuple(bars), series.name if several else "")


def _bars(rows: Sequence[tuple[str, Series, Result, Work]]) -> list[Bar]:
    """Those that have the first one's unit: other lengths cannot be compared with it."""
    bars = [_bar(label, series.color, result, work) for label, series, result, work in rows if work.items > 0]
    alike = [bar for bar in bars if bar.unit == bars[0].unit]
    return [bar for bar in alike if bar.value > 0 and math.isfinite(bar.high)]


def _bar(label: str, color: str, result: Result, work: Work) -> Bar:
    found = result.estimate
    assert found is not None
    value = work.items / found.center_s
    figure = units.rate(value, shorten(work.unit, _UNIT))
    margin = "" if figures.is_published(result) else figures.margin(found)
    step, grade = figures.step_time(found), grade_text(result)
    return Bar(
        label=label,
        value=value,
        low=min(work.items / found.high_s, value) if found.high_s > 0 else 0.0,
        high=min(max(work.items / found.low_s, value), value * _WIDEST) if found.low_s > 0 else value * _WIDEST,
        figure=figure,
        margin=margin,
        about=", ".join(filter(None, (f"{label}: {figure} {margin}".rstrip(), f"{step} a step", grade))),
        color=color,
        unit=work.unit,
        grade=grade,
    )


def draw_panel(panel: Panel) -> Chart:
    """Bars from zero with their intervals; a pale one is poor."""
    import altair as alt

    said = [f"{bar.figure} {bar.margin}".rstrip() for bar in panel.bars]
    rows = [
        {**asdict(bar), "row": row, "figure": figure, "strength": 0.45 if bar.grade.startswith("poor") else 0.9}
        for row, (bar, figure) in enumerate(zip(panel.bars, said, strict=True))
    ]
    scale = alt.Scale(domain=[0, max(bar.high for bar in panel.bars)])
    base = alt.Chart(alt.NamedData("rows")).encode(y=alt.Y("row:O", axis=None))
    marks = alt.layer(
        base.mark_bar(size=11, yOffset=BELOW).encode(
            x=alt.X("value:Q", axis=None, scale=scale),
            color=alt.Color("color:N", scale=None),
            opacity=alt.Opacity("strength:Q", scale=None),
            description=alt.Description("about:N"),
        ),
        base.mark_rule(yOffset=BELOW, color=TEXT, strokeWidth=1.5, aria=False).encode(
            x=alt.X("low:Q", axis=None, scale=scale), x2=alt.X2("high")
        ),
        *row_texts(base, said),
    )
    return Chart(marks.properties(width=WIDTH, height=HEIGHT * len(rows)), {"rows": rows})
