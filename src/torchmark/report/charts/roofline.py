"""The roofline: the FLOP/s of results below the limits of their device's bandwidth and arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.records import Bound, Result
from torchmark.report import figures, units
from torchmark.report.charts.drawing import (
    QUIET,
    TEXT,
    WIDTH,
    Chart,
    Series,
    Spec,
    chart,
    color,
    factor_ticks,
    field,
    given,
    is_measured,
    layer,
)
from torchmark.report.names import full_name

BOUNDS: tuple[str, ...] = get_args(Bound)
_WIDTH, _HEIGHT = WIDTH - 40, 250
_DOT = 10.0  # the width of a point, in pixels
_LABEL = 30  # letters
_STEP = 3.0  # pixels between the places that a line is seen at
_AXES = (("FLOP per byte", "~g"), ("FLOP/s", "~s"))
_LINE = 13.0  # the height of a line of text, in pixels
_LETTER = 6.4  # its width at 11 pixels, generously: the reader's font is not known
_GAP = 3.0  # between a label and what it belongs to
_APART = 6.0  # between a label and marks that it could be taken to belong to


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


def find_rooflines(series: Sequence[Series]) -> tuple[Panel, ...]:
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
    roofs = [
        Roof(f"{dtype} {units.arithmetic(rate)}", rate / fast, high[0], rate, rate) for dtype, rate in flops.items()
    ]
    roofs += [_slope("memory", slow, most, low)] + ([_slope("cache", fast, most, low)] if fast > 1.2 * slow else [])
    return Panel(series.name, tuple(roofs), points, low, high)


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


def draw_roofline(panel: Panel) -> Chart:
    """Both axes are logarithmic: limits as lines, results as points coloured by what bounds them."""
    x_place, y_place = (
        _log_place(low, high, title, style)
        for low, high, (title, style) in zip(panel.low, panel.high, _AXES, strict=True)
    )
    base = {"x": field("x", **x_place), "y": field("y", **y_place)}
    used = [bound for bound in BOUNDS if any(point.bound == bound for point in panel.points)]
    shades = {"domain": used, "range": [color(BOUNDS.index(bound)) for bound in used]}
    legend = {"orient": "bottom", "columns": 4, "title": None, "symbolOpacity": 1}
    points = {
        "x": field("intensity", **x_place),
        "y": field("rate", **y_place),
        "color": field("bound", "nominal", scale=shades, legend=legend),
        "description": field("about", "nominal"),
    }
    layers = [
        layer("line", base | {"detail": field("roof", "nominal")}, "roofs", color=QUIET, strokeWidth=1.5),
        layer("text", base | {"text": field("text", "nominal"), "color": given("shade")}, "labels", fontSize=11),
        layer("point", points, "points", filled=True, size=60, opacity=0.9),
    ]
    ends = [
        {"roof": roof.name, "x": x, "y": y}
        for roof in panel.roofs
        for x, y in ((roof.start, roof.start_rate), (roof.end, roof.end_rate))
    ]
    rows = [asdict(point) for point in panel.points]
    made = chart(layers, _HEIGHT, _WIDTH, roofs=ends, labels=[*_labels(panel)], points=rows)
    return made._replace(spec=made.spec | {"resolve": {"scale": {"color": "independent"}}})


def _log_place(low: float, high: float, title: str, style: str) -> Spec:
    axis = {"title": title, "format": style, "values": factor_ticks(low, high), "grid": False}
    return {"scale": {"type": "log", "domain": [low, high], "nice": False}, "axis": axis}


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


class Box(Struct, frozen=True):
    """A rectangle in pixels from the upper left corner of the plot."""

    x: float  # its center
    y: float
    width: float
    height: float

    def overlaps(self, other: Box, clearance: float) -> bool:
        across = abs(self.x - other.x) - (self.width + other.width) / 2
        down = abs(self.y - other.y) - (self.height + other.height) / 2
        return max(across, down) < clearance

    def inside(self, width: float, height: float) -> bool:
        across, down = min(self.x, width - self.x), min(self.y, height - self.y)
        return across >= self.width / 2 and down >= self.height / 2


class Plot:
    """A plot whose places are taken by marks, and by labels one after another."""

    def __init__(self, width: float, height: float, marks: Mapping[str, Sequence[Box]]) -> None:
        self.width, self.height = width, height
        self._taken = [(owner, box) for owner, boxes in marks.items() for box in boxes]

    def place(self, owner: str, rivals: Container[str], candidates: Iterable[Box]) -> Box | None:
        """Take the first candidate that is free and away from the owner's rivals; None where there is no room."""
        for box in candidates:
            if box.inside(self.width, self.height) and not any(
                box.overlaps(other, _APART if name != owner and name in rivals else 0) for name, other in self._taken
            ):
                self._taken.append((owner, box))
                return box
        return None


def text_box(text: str, x: float, y: float) -> Box:
    return Box(x, y, _LETTER * len(text), _LINE)


def around(text: str, x: float, y: float, size: float) -> Iterator[Box]:
    """Next to a point that is `size` pixels wide: right, left, above and below."""
    half, down = _LETTER * len(text) / 2, (size + _LINE) / 2
    side = half + size / 2 + _GAP
    for dx in (side, -side):
        yield text_box(text, x + dx, y)
    for dy in (-down, down):
        for dx in (0.0, half / 2, -half / 2, half - size / 2, size / 2 - half):
            yield text_box(text, x + dx, y + dy)


def along(text: str, line: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """Next to a line from its right end to its left: above it, below it, on either side of it."""
    half, away = _LETTER * len(text) / 2, _LINE / 2 + _GAP
    for side in (-1, 1, 0):
        for x, y in reversed(line):
            for dx in (-half, 0.0, half) if side else (-half - _LINE, half + _LINE):
                yield text_box(text, x + dx, y + side * away)
