"""Speed over something that was varied: a parameter such as the batch, or the number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.analyze.efficiency import Scaling
from torchmark.analyze.grades import is_published
from torchmark.analyze.wording import counted
from torchmark.records import Result, Value
from torchmark.report import figures, units
from torchmark.report.charts.bars import speed_range
from torchmark.report.charts.drawing import (
    QUIET,
    WIDTH,
    Chart,
    Series,
    Spec,
    chart,
    color,
    factor_ticks,
    field,
    is_measured,
    layer,
)
from torchmark.report.text import shorten

FEWEST = 3  # values from which a parameter makes a curve
_WIDTH, _HEIGHT = WIDTH - 40, 170
_APART = 8  # times as fast, from which curves need a logarithmic scale


class Point(Struct, frozen=True):
    """The speed at one value of the parameter, in items per second."""

    x: float
    rate: float
    low: float
    high: float
    about: str


class Curve(Struct, frozen=True):
    """One series with everything but the parameter held fixed; `lost` are values at which there was no figure."""

    name: str
    color: str
    points: tuple[Point, ...]
    lost: tuple[tuple[float, str], ...] = ()


class Panel(Struct, frozen=True):
    """Curves over one parameter of one workload and mode."""

    title: str
    parameter: str
    unit: str
    curves: tuple[Curve, ...]


class _Member(Struct, frozen=True):
    """A result seen as a point on a curve."""

    series: Series
    result: Result
    x: float
    fixed: dict[str, Value]  # all settings but the one that is swept


def find_curves(series: Sequence[Series]) -> tuple[Panel, ...]:
    """A panel for every parameter of which a workload was measured with three values or more."""
    implied = _implied_by_items([result for each in series for result in each.results])
    groups: dict[tuple[str, str, str, int, str], list[_Member]] = {}
    for each in series:
        for result in each.results:
            unit = result.work.unit if result.work else "step"
            for name, member in _members(each, result, implied.get(result.case.workload, set())):
                key = (result.case.workload, result.case.mode, name, result.version, unit)
                groups.setdefault(key, []).append(member)
    panels = (_panel(f"{key[0]}/{key[1]}", key[2], key[4], members) for key, members in groups.items())
    return tuple(panel for panel in panels if panel.curves)


def _implied_by_items(results: Sequence[Result]) -> dict[str, set[str]]:
    """By workload, the parameters that always are the items of a step: published cases leave a usual batch unsaid."""
    seen: dict[tuple[str, str], set[tuple[Value, float]]] = {}
    for result in results:
        for name, value in (result.case.params | result.params).items():
            if result.work:
                seen.setdefault((result.case.workload, name), set()).add((value, result.work.items))
    implied: dict[str, set[str]] = {}
    for (workload, name), pairs in seen.items():
        if len(pairs) > 1 and all(value == items for value, items in pairs):
            implied.setdefault(workload, set()).add(name)
    return implied


def _members(series: Series, result: Result, implied: Set[str]) -> Iterator[tuple[str, _Member]]:
    case = result.case
    settings: dict[str, Value] = {**case.params, **result.params, "dtype": case.dtype, "compile": case.compile}
    settings |= {"transfer": case.transfer, "workers": case.workers, "protocol": case.protocol}
    settings |= {"threads": case.threads} if case.threads is not None else {}
    settings |= case.options
    if result.work:
        settings |= {name: result.work.items for name in implied if name not in settings}
    for name, value in settings.items():
        if name != "workers" and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            fixed = {key: each for key, each in settings.items() if key != name}
            yield name, _Member(series, result, float(value), fixed)


def _panel(title: str, parameter: str, unit: str, members: Sequence[_Member]) -> Panel:
    lines: dict[tuple[str, str], list[_Member]] = {}
    for member in members:
        lines.setdefault((member.series.name, repr(sorted(member.fixed.items()))), []).append(member)
    swept = [
        line for line in lines.values() if len({member.x for member in line if is_measured(member.result)}) >= FEWEST
    ]
    names = _names(swept)
    alone = len({line[0].series.name for line in swept}) == len(swept)
    colors = [line[0].series.color if alone else color(index) for index, line in enumerate(swept)]
    curves = [_curve(name, shade, line) for name, shade, line in zip(names, colors, swept, strict=True)]
    return Panel(title, parameter, unit, tuple(curve for curve in curves if len(curve.points) >= FEWEST))


def _names(lines: Sequence[Sequence[_Member]]) -> list[str]:
    """What tells each curve from the others of its panel."""
    fixed = [line[0].fixed for line in lines]
    differing = [
        key
        for key in dict.fromkeys(key for each in fixed for key in each)
        if len({repr(each.get(key)) for each in fixed}) > 1
    ]
    several = len({line[0].series.name for line in lines}) > 1
    names = []
    for line in lines:
        parts = [line[0].series.name] if several else []
        parts += [f"{key}={line[0].fixed[key]}" for key in differing if key in line[0].fixed]
        names.append(shorten(" · ".join(parts), 48))
    return names


def _curve(name: str, shade: str, line: Sequence[_Member]) -> Curve:
    points = [_point(name, member) for member in line if is_measured(member.result)]
    known = {point.x: point for point in points if point}
    lost = {member.x: member.result.status for member in line if member.result.status not in ("ok", "skipped")}
    return Curve(
        name, shade, tuple(known[x] for x in sorted(known)), tuple((x, lost[x]) for x in sorted(lost) if x not in known)
    )


def _point(name: str, member: _Member) -> Point | None:
    result = member.result
    assert result.estimate
    items, unit = (result.work.items, shorten(result.work.unit, 24)) if result.work else (1.0, "step")
    rate, low, high = speed_range(result, items, 2.0)
    if not (0 < rate < math.inf):
        return None
    margin = "as published" if is_published(result) else figures.margin(result.estimate)
    about = f"{name + ', ' if name else ''}{units.digits(member.x)}: {units.rate(rate, unit)} {margin}"
    return Point(member.x, rate, low, high, about)


def draw_curves(panel: Panel) -> Chart:
    """Points with their intervals, joined; a value without a figure is marked at the bottom with its status."""
    scale = _y_scale(panel)
    axis: Spec = {"title": None, "format": "~s", "domain": False, "ticks": False}
    axis |= {"values": factor_ticks(*scale["domain"])} if "domain" in scale else {}
    names, shades = [curve.name for curve in panel.curves], [curve.color for curve in panel.curves]
    legend = {"orient": "bottom", "columns": 1, "title": None, "labelLimit": WIDTH - 100} if len(names) > 1 else None
    shade = field("curve", "nominal", scale={"domain": names, "range": shades}, legend=legend)
    base = {"x": _x(panel), "color": shade}
    y, low = (field(name, axis=axis, scale=scale) for name in ("rate", "low"))
    rows = [{"curve": curve.name, **asdict(point)} for curve in panel.curves for point in curve.points]
    lost = [{"x": x, "status": status, "curve": curve.name} for curve in panel.curves for x, status in curve.lost]
    points = base | {"y": y, "description": field("about", "nominal")}
    missing = base | {"y": {"value": _HEIGHT}, "text": field("status", "nominal")}
    layers = [
        layer("line", base | {"y": y}, strokeWidth=2),
        layer("rule", base | {"y": low, "y2": {"field": "high"}}, strokeWidth=1.5),
        layer("point", points, filled=True, size=48, opacity=1),
        layer("text", missing, "lost", dy=-6, fontSize=11),
    ]
    return chart(layers, _HEIGHT, _WIDTH, rows=rows, lost=lost)


def _x(panel: Panel) -> Spec:
    """The values that were varied, and no others; as powers where they grow like such."""
    seen = {point.x for curve in panel.curves for point in curve.points}
    values = sorted(seen | {x for curve in panel.curves for x, _ in curve.lost})
    style = "~s" if values[-1] >= 1e5 else "~f"
    axis = {"values": values, "title": panel.parameter, "format": style, "grid": False, "labelOverlap": True}
    growth = {"type": "log", "base": 2} if values[-1] / values[0] >= 4 else {"zero": False}
    return field("x", axis=axis, scale={"nice": False, "padding": 10, **growth})


def _y_scale(panel: Panel) -> Spec:
    """From zero; logarithmic where the lowest curve would otherwise look flat next to the highest."""
    highest = [max(point.rate for point in curve.points) for curve in panel.curves]
    if max(highest) <= _APART * min(highest):
        return {"zero": True}
    lowest = min(point.rate for curve in panel.curves for point in curve.points)
    return {"type": "log", "domain": [lowest / 2, max(highest) * 2], "nice": False, "clamp": True}


def draw_scaling(scaling: Scaling, shade: str = "var(--series-1)") -> Chart:
    """The rate of all workers together, with the ideal dashed where a single worker was measured."""
    single = next((row.rate for row in scaling.rows if row.workers == 1), None)
    rows = []
    for row in scaling.rows:
        share = "" if row.efficiency is None else units.percent(row.efficiency)
        about = f"{counted(row.workers, 'worker')}: {units.rate(row.rate, scaling.unit)}"
        about += f", efficiency {share}" if share else ""
        said = share if row.workers > 1 else ""
        rows.append({"workers": row.workers, "rate": row.rate, "about": about, "said": said})
        rows[-1] |= {"ideal": row.workers * single} if single else {}
    x_axis = {"values": [row.workers for row in scaling.rows], "grid": False, "format": "d"}
    x = field("workers", axis=x_axis, scale={"padding": 14})
    y_axis = {"title": None, "format": "~s", "tickCount": 4, "domain": False, "ticks": False}
    base = {"x": x, "y": field("rate", axis=y_axis, scale={"zero": True})}
    ideal = layer("line", {"x": x, "y": field("ideal", axis=y_axis)}, color=QUIET, strokeDash=[3, 3], strokeWidth=1.2)
    points = base | {"description": field("about", "nominal")}
    layers = [
        *([ideal] if single else []),
        layer("line", base, color=shade, strokeWidth=2),
        layer("point", points, color=shade, filled=True, size=56, opacity=1),
        layer("text", base | {"text": field("said", "nominal")}, dy=16, color=QUIET, fontSize=11),
    ]
    return chart(layers, _HEIGHT, _WIDTH, rows=rows)
