"""The roofline: the FLOP/s of results below the limits of their device's bandwidth and arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.records import Bound, Result
from torchmark.report import figures, units
from torchmark.report.charts.labels import Box, Plot, along, around
from torchmark.report.charts.scales import factor_ticks
from torchmark.report.charts.series import Series, color, full_name, is_measured
from torchmark.report.draw import QUIET, TEXT, WIDTH, Chart

BOUNDS: tuple[str, ...] = get_args(Bound)
_WIDTH, _HEIGHT = WIDTH - 40, 250
_DOT = 10.0  # the width of a point, in pixels
_LABEL = 30  # letters
_STEP = 3.0  # pixels between the places that a line is seen at


class Point(Struct, frozen=True):
    """A result: FLOPs for each byte that it cannot do without, and FLOP/s."""

    intensity: float
    rate: float
    share: float  # of the roof above it
    bound: str
    name: str
    about: str


class Roof(Struct, frozen=True):
    """A line that nothing is above: what it stands for, and where it begins and ends."""

    name: str
    start: float
    end: float
    start_rate: float
    end_rate: float


class Panel(Struct, frozen=True):
    """One device with its limits and the results below them."""

    title: str
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    low: tuple[float, float]  # the corner of the chart
    high: tuple[float, float]

    @property
    def about(self) -> str:
        close = sum(point.share >= 0.5 for point in self.points)
        limits = ", ".join(roof.name for roof in self.roofs)
        return f"{close} of {len(self.points)} results reach at least half of their limit. Limits: {limits}."

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn, from the upper left corner."""
        right = math.log(x / self.low[0]) / math.log(self.high[0] / self.low[0])
        up = math.log(y / self.low[1]) / math.log(self.high[1] / self.low[1])
        return _WIDTH * right, _HEIGHT * (1 - up)

    def point_at(self, x: float, y: float) -> tuple[float, float]:
        """The values at a pixel."""
        return (
            self.low[0] * math.pow(self.high[0] / self.low[0], x / _WIDTH),
            self.low[1] * math.pow(self.high[1] / self.low[1], 1 - y / _HEIGHT),
        )


def find_panels(series: Sequence[Series]) -> tuple[Panel, ...]:
    """A panel for every device whose ceilings are known."""
    found = [(each, [result for result in each.results if _is_shown(result)]) for each in series]
    return tuple(_panel(each, results) for each, results in found if results)


def _is_shown(result: Result) -> bool:
    peak, work = result.peak, result.work
    known = peak is not None and work is not None and peak.flops_per_s and peak.bytes_per_s
    return bool(known and work and work.flops and work.bytes) and is_measured(result)


def _panel(series: Series, results: Sequence[Result]) -> Panel:
    often = Counter(result.case.workload for result in results)
    points = tuple(_point(result, alone=often[result.case.workload] == 1) for result in results)
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


def _point(result: Result, alone: bool) -> Point:
    work, peak, rate = result.work, result.peak, figures.step_flops(result)
    assert work is not None
    assert peak is not None
    assert rate is not None
    intensity = (work.flops or 0.0) / (work.bytes or 1.0)
    said = f"{units.arithmetic(rate)} at {units.digits(intensity)} FLOP/byte"
    name = full_name(result.case)
    about = f"{name}: {units.percent(peak.share)} of peak, bound by {peak.bound}; {said}"
    return Point(intensity, rate, peak.share, peak.bound, result.case.workload if alone else name, about)


def draw_panel(panel: Panel) -> Chart:
    """Both axes are logarithmic: limits as lines, results as points coloured by what bounds them."""
    import altair as alt

    x_scale = alt.Scale(type="log", domain=[panel.low[0], panel.high[0]], nice=False)
    y_scale = alt.Scale(type="log", domain=[panel.low[1], panel.high[1]], nice=False)
    x_axis = alt.Axis(title="FLOP per byte", format="~g", values=_ticks(x_scale.domain), grid=False)
    y_axis = alt.Axis(title="FLOP/s", format="~s", values=_ticks(y_scale.domain), grid=False)
    x, y = alt.X("x:Q", scale=x_scale, axis=x_axis), alt.Y("y:Q", scale=y_scale, axis=y_axis)
    used = [bound for bound in BOUNDS if any(point.bound == bound for point in panel.points)]
    shades = [color(BOUNDS.index(bound)) for bound in used]
    legend = alt.Legend(orient="bottom", columns=4, title=None, symbolOpacity=1)
    lines = alt.Chart(alt.NamedData("roofs")).mark_line(color=QUIET, strokeWidth=1.5, aria=False)
    names = alt.Chart(alt.NamedData("labels")).mark_text(fontSize=11, aria=False)
    dots = alt.Chart(alt.NamedData("points")).mark_point(filled=True, size=60, opacity=0.9)
    marks = alt.layer(
        lines.encode(x=x, y=y, detail=alt.Detail("roof:N")),
        names.encode(x=x, y=y, text=alt.Text("text:N"), color=alt.Color("shade:N", scale=None)),
        dots.encode(
            x=alt.X("intensity:Q", scale=x_scale, axis=x_axis),
            y=alt.Y("rate:Q", scale=y_scale, axis=y_axis),
            color=alt.Color("bound:N", scale=alt.Scale(domain=used, range=shades), legend=legend),
            description=alt.Description("about:N"),
        ),
    ).resolve_scale(color="independent")
    data = {
        "roofs": [*_ends(panel)],
        "labels": [*_labels(panel)],
        "points": [asdict(point) for point in panel.points],
    }
    return Chart(marks.properties(width=_WIDTH, height=_HEIGHT), data)


def _ticks(domain: Sequence[float]) -> list[float]:
    return factor_ticks(domain[0], domain[1])


def _ends(panel: Panel) -> Iterator[dict[str, Any]]:
    for roof in panel.roofs:
        yield {"roof": roof.name, "x": roof.start, "y": roof.start_rate}
        yield {"roof": roof.name, "x": roof.end, "y": roof.end_rate}


def _labels(panel: Panel) -> Iterator[dict[str, Any]]:
    """Names of the roofs, then of as many points as there is room for, those closest to their limit first."""
    lines = {roof.name: _pixels(panel, roof) for roof in panel.roofs}
    dots = {point.about: Box(*panel.pixel(point.intensity, point.rate), _DOT, _DOT) for point in panel.points}
    marks = {name: [Box(x, y, _STEP, _STEP) for x, y in line] for name, line in lines.items()}
    plot = Plot(_WIDTH, _HEIGHT, marks | {about: [dot] for about, dot in dots.items()})
    for name, line in lines.items():
        yield from _label(panel, name, plot.place(name, lines, along(name, line)), TEXT)
    for point in sorted(panel.points, key=lambda point: -point.share):
        dot = dots[point.about]
        if len(point.name) <= _LABEL:
            box = plot.place(point.about, dots, around(point.name, dot.x, dot.y, _DOT))
            yield from _label(panel, point.name, box, QUIET)


def _label(panel: Panel, text: str, box: Box | None, shade: str) -> Iterator[dict[str, Any]]:
    if box:
        x, y = panel.point_at(box.x, box.y)
        yield {"text": text, "x": x, "y": y, "shade": shade}


def _pixels(panel: Panel, roof: Roof) -> list[tuple[float, float]]:
    """Places along a roof, a few pixels apart."""
    start, end = panel.pixel(roof.start, roof.start_rate), panel.pixel(roof.end, roof.end_rate)
    count = max(1, round(math.dist(start, end) / _STEP))
    parts = [index / count for index in range(count + 1)]
    return [(start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])) for part in parts]
