"""The roofline: what results get out of a device, below the roof that its bandwidth and its arithmetic make."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.records import Bound, Result
from torchmark.report import figures, units
from torchmark.report.charts.scales import factor_ticks
from torchmark.report.charts.series import Series, color, full_name, is_measured
from torchmark.report.draw import QUIET, TEXT, WIDTH, Chart

BOUNDS: tuple[str, ...] = get_args(Bound)
_HEIGHT = 250
_LINE = 13  # pixels that a line of text takes


class Point(Struct, frozen=True):
    """A result: FLOPs for each byte that it cannot do without, and FLOP/s."""

    intensity: float
    rate: float
    share: float  # of the roof above it
    bound: str
    about: str


class Roof(Struct, frozen=True):
    """A line that nothing is above: what it stands for, and where it begins and ends."""

    name: str
    start: float
    end: float
    start_rate: float
    end_rate: float


class Panel(Struct, frozen=True):
    """One device with its roofs and what was measured below them."""

    title: str
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    low: tuple[float, float]  # the corner of the chart
    high: tuple[float, float]

    @property
    def about(self) -> str:
        close = sum(point.share >= 0.5 for point in self.points)
        return f"{len(self.points)} results, {close} of them at half of the roof or more."


def find_panels(series: Sequence[Series]) -> tuple[Panel, ...]:
    """A panel for every device whose ceilings are known."""
    found = [(each, [result for result in each.results if _is_shown(result)]) for each in series]
    return tuple(_panel(each, results) for each, results in found if results)


def _is_shown(result: Result) -> bool:
    peak, work = result.peak, result.work
    known = peak is not None and work is not None and peak.flops_per_s and peak.bytes_per_s
    return bool(known and work and work.flops and work.bytes) and is_measured(result)


def _panel(series: Series, results: Sequence[Result]) -> Panel:
    points = tuple(map(_point, results))
    flops = {each.case.dtype: each.peak.flops_per_s for each in results if each.peak and each.peak.flops_per_s}
    paths = [each.peak.bytes_per_s for each in results if each.peak and each.peak.bytes_per_s]
    slow, fast, most = min(paths), max(paths), max(flops.values())
    low = (min(point.intensity for point in points) / 2, min(point.rate for point in points) / 3)
    high = (max(*(point.intensity for point in points), 4 * most / slow) * 2, max(most, *(p.rate for p in points)) * 3)
    roofs = [_flat(dtype, rate, fast, high[0]) for dtype, rate in flops.items()]
    roofs += [_slope("memory", slow, most, low)] + ([_slope("cache", fast, most, low)] if fast > 1.2 * slow else [])
    return Panel(series.name, tuple(roofs), points, low, high)


def _flat(dtype: str, rate: float, fast: float, end: float) -> Roof:
    return Roof(f"{dtype} {units.arithmetic(rate)}", rate / fast, end, rate, rate)


def _slope(name: str, bandwidth: float, most: float, low: tuple[float, float]) -> Roof:
    """From the edge of the chart up to the highest flat roof."""
    start = max(low[0], low[1] / bandwidth)
    return Roof(f"{name} {units.bandwidth(bandwidth)}", start, most / bandwidth, start * bandwidth, most)


def _point(result: Result) -> Point:
    work, peak, rate = result.work, result.peak, figures.step_flops(result)
    assert work is not None
    assert peak is not None
    assert rate is not None
    intensity = (work.flops or 0.0) / (work.bytes or 1.0)
    said = f"{units.arithmetic(rate)} at {units.digits(intensity)} FLOP/byte"
    about = f"{full_name(result.case)}: {units.percent(peak.share)} of peak, bound by {peak.bound}; {said}"
    return Point(intensity, rate, peak.share, peak.bound, about)


def draw_panel(panel: Panel) -> Chart:
    """Both axes in powers of ten: roofs as lines with their names, results as points by what bounds them."""
    import altair as alt

    x_scale = alt.Scale(type="log", domain=[panel.low[0], panel.high[0]], nice=False)
    y_scale = alt.Scale(type="log", domain=[panel.low[1], panel.high[1]], nice=False)
    x_axis = alt.Axis(title="FLOP per byte", format="~g", values=_ticks(x_scale.domain), grid=False)
    y_axis = alt.Axis(title="FLOP/s", format="~s", values=_ticks(y_scale.domain), domain=False, ticks=False)
    x, y = alt.X("x:Q", scale=x_scale, axis=x_axis), alt.Y("y:Q", scale=y_scale, axis=y_axis)
    used = [bound for bound in BOUNDS if any(point.bound == bound for point in panel.points)]
    shades = [color(BOUNDS.index(bound)) for bound in used]
    legend = alt.Legend(orient="bottom", columns=4, title=None, symbolOpacity=1)
    lines = alt.Chart(alt.NamedData("roofs")).mark_line(color=QUIET, strokeWidth=1.5, aria=False)
    # Beside their lines, not on them.
    places: dict[str, tuple[Literal["left", "right"], int]] = {
        "flat": ("right", 0),
        "slope": ("left", 8),
        "steeper": ("right", -6),
    }
    names = [
        alt.Chart(alt.NamedData(name)).mark_text(align=align, dx=away, fontSize=11, color=TEXT, aria=False)
        for name, (align, away) in places.items()
    ]
    dots = alt.Chart(alt.NamedData("points")).mark_point(filled=True, size=60, opacity=0.9)
    marks = alt.layer(
        lines.encode(x=x, y=y, detail=alt.Detail("roof:N")),
        *(name.encode(x=x, y=y, text=alt.Text("roof:N")) for name in names),
        dots.encode(
            x=alt.X("intensity:Q", scale=x_scale, axis=x_axis),
            y=alt.Y("rate:Q", scale=y_scale, axis=y_axis),
            color=alt.Color("bound:N", scale=alt.Scale(domain=used, range=shades), legend=legend),
            description=alt.Description("about:N"),
        ),
    )
    data = {
        "roofs": [*_ends(panel)],
        "flat": [*_flat_names(panel)],
        "slope": [{"roof": roof.name, "x": roof.start, "y": roof.start_rate} for roof in _slopes(panel)[:1]],
        "steeper": [{"roof": roof.name, "x": roof.end, "y": roof.end_rate} for roof in _slopes(panel)[1:]],
        "points": [asdict(point) for point in panel.points],
    }
    return Chart(marks.properties(width=WIDTH - 40, height=_HEIGHT), data)


def _ticks(domain: Sequence[float]) -> list[float]:
    return factor_ticks(domain[0], domain[1])


def _ends(panel: Panel) -> Iterator[dict[str, Any]]:
    for roof in panel.roofs:
        yield {"roof": roof.name, "x": roof.start, "y": roof.start_rate}
        yield {"roof": roof.name, "x": roof.end, "y": roof.end_rate}


def _slopes(panel: Panel) -> list[Roof]:
    return [roof for roof in panel.roofs if roof.start_rate != roof.end_rate]


def _flat_names(panel: Panel) -> Iterator[dict[str, Any]]:
    """The highest stands above its line, the others below theirs, where the one above leaves room for them."""
    line = math.pow(panel.high[1] / panel.low[1], _LINE / _HEIGHT)
    flat = sorted((roof for roof in panel.roofs if roof.start_rate == roof.end_rate), key=lambda roof: -roof.end_rate)
    lowest = math.inf
    for roof in flat:
        place = roof.end_rate * math.sqrt(line) if lowest == math.inf else min(roof.end_rate / line, lowest / line)
        lowest = place
        yield {"roof": roof.name, "x": roof.end, "y": place}
