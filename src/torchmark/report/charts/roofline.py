"""The roofline: the FLOP/s of results below the limits of their device's bandwidth and arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, get_args

from msgspec import Struct

from torchmark.records import Bound, Result
from torchmark.report import charts, figures, units
from torchmark.report.charts import Chart, Panel, Rows, Series, chart, field, given, is_measured, label, layer
from torchmark.report.names import full_name

BOUNDS: tuple[str, ...] = get_args(Bound)
_WIDTH, _HEIGHT = charts.WIDTH - 40, 250
_DOT = 10.0  # the width of a point, in pixels
_LABEL = 30  # letters
_STEP = 3.0  # pixels between the places that a line is seen at
_AXES = (("FLOP per byte", "~g"), ("FLOP/s", "~s"))
_LINE = 13.0  # the height of a line of text, in pixels
_LETTER = 6.4  # its width at 11 pixels, generously: the reader's font is not known
_GAP = 3.0  # between a label and what it belongs to
_APART = 6.0  # between a label and marks that it could be taken to belong to


class Roofline(Struct, frozen=True):
    """One device with its limits and the results below them."""

    title: str
    roofs: Rows  # lines that nothing is above: `name`, and the corners that they begin and end at
    points: Rows  # FLOPs for each byte that a result cannot do without, FLOP/s, and its share of the roof above it
    low: tuple[float, float]  # the corner of the chart
    high: tuple[float, float]

    @property
    def about(self) -> str:
        close = sum(point["share"] >= 0.5 for point in self.points)
        limits = ", ".join(roof["name"] for roof in self.roofs)
        return f"{close} of {len(self.points)} results reach at least half of their limit. Limits: {limits}."

    def panel(self, several: bool) -> Panel:
        """The chart; `several`: of several devices."""
        title = f"Roofline of {self.title}" if several else "Roofline"
        return Panel(title, partial(draw_roofline, self), title, self.about)

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn, from the upper left corner."""
        sides = zip((x, y), self.low, self.high, strict=True)
        right, up = (math.log(value / low) / math.log(high / low) for value, low, high in sides)
        return _WIDTH * right, _HEIGHT * (1 - up)

    def point_at(self, x: float, y: float) -> tuple[float, float]:
        """The values at a pixel."""
        (left, bottom), (right, top) = self.low, self.high
        return left * math.pow(right / left, x / _WIDTH), bottom * math.pow(top / bottom, 1 - y / _HEIGHT)


def find_rooflines(series: Sequence[Series]) -> list[Roofline]:
    """A panel for every device whose ceilings are known."""
    found = [(each.name, [point for result in each.results if (point := _point(result))]) for each in series]
    return [_roofline(name, points) for name, points in found if points]


def _point(result: Result) -> dict[str, Any] | None:
    work, peak, rate = result.work, result.peak, figures.step_rate(result, "flops")
    if not (work and work.flops and work.bytes and peak and peak.flops_per_s and peak.bytes_per_s):
        return None
    if not (rate and is_measured(result)):
        return None
    case, intensity = result.case, work.flops / work.bytes
    said = f"{units.arithmetic(rate)} at {units.digits(intensity)} FLOP/byte"
    about = f"{full_name(case)}: {units.percent(peak.share)} of peak, bound by {peak.bound}; {said}"
    point = {"intensity": intensity, "rate": rate, "share": peak.share, "bound": peak.bound, "about": about}
    ceilings = {"dtype": case.dtype, "flops": peak.flops_per_s, "bytes": peak.bytes_per_s}
    return point | ceilings | {"name": full_name(case), "workload": case.workload}


def _roofline(title: str, points: Rows) -> Roofline:
    """A point whose workload has no other goes by that alone."""
    often = Counter(point["workload"] for point in points)
    points = [point | ({"name": point["workload"]} if often[point["workload"]] == 1 else {}) for point in points]
    intensities, rates, paths = ([point[name] for point in points] for name in ("intensity", "rate", "bytes"))
    flops = {point["dtype"]: point["flops"] for point in points}
    slow, fast, most = min(paths), max(paths), max(flops.values())
    low, high = (min(intensities) / 2, min(rates) / 3), (max(*intensities, 4 * most / slow) * 2, max(most, *rates) * 3)
    roofs = [
        {"name": f"{name} {units.arithmetic(rate)}", "start": (rate / fast, rate), "end": (high[0], rate)}
        for name, rate in flops.items()
    ]
    # Slopes lead from the edge of the chart up to the highest flat roof.
    slopes = {"memory": slow} | ({"cache": fast} if fast > 1.2 * slow else {})
    for name, bandwidth in slopes.items():
        start, about = max(low[0], low[1] / bandwidth), f"{name} {units.bandwidth(bandwidth)}"
        roofs.append({"name": about, "start": (start, start * bandwidth), "end": (most / bandwidth, most)})
    return Roofline(title, roofs, points, low, high)


def draw_roofline(panel: Roofline) -> Chart:
    """Both axes are logarithmic: limits as lines, results as points coloured by what bounds them."""
    x_place, y_place = (
        {
            "scale": {"type": "log", "domain": [low, high], "nice": False},
            "axis": {"title": title, "format": style, "values": charts.factor_ticks(low, high), "grid": False},
        }
        for low, high, (title, style) in zip(panel.low, panel.high, _AXES, strict=True)
    )
    base = {"x": field("x", **x_place), "y": field("y", **y_place)}
    used = [bound for bound in BOUNDS if any(point["bound"] == bound for point in panel.points)]
    shades = {"domain": used, "range": [charts.color(BOUNDS.index(bound)) for bound in used]}
    legend = {"orient": "bottom", "columns": 4, "title": None, "symbolOpacity": 1}
    points = {"x": field("intensity", **x_place), "y": field("rate", **y_place), "description": label("about")}
    points["color"] = label("bound", scale=shades, legend=legend)
    layers = [
        layer("line", base | {"detail": label("roof")}, "roofs", color=charts.QUIET, strokeWidth=1.5),
        layer("text", base | {"text": label("text"), "color": given("shade")}, "labels", fontSize=11),
        layer("point", points, "points", filled=True, size=60, opacity=0.9),
    ]
    corners = [(roof["name"], *roof[corner]) for roof in panel.roofs for corner in ("start", "end")]
    ends = [{"roof": name, "x": x, "y": y} for name, x, y in corners]
    made = chart(layers, _HEIGHT, _WIDTH, roofs=ends, labels=[*_labels(panel)], points=panel.points)
    return made._replace(spec=made.spec | {"resolve": {"scale": {"color": "independent"}}})


def _labels(panel: Roofline) -> Iterator[dict[str, Any]]:
    """Names of the roofs, then of as many points as there is room for, those closest to their limit first."""
    lines: dict[str, list[tuple[float, float]]] = {}  # places along each roof, a few pixels apart
    for roof in panel.roofs:
        (left, low), (right, high) = panel.pixel(*roof["start"]), panel.pixel(*roof["end"])
        count = max(1, round(math.hypot(right - left, high - low) / _STEP))
        parts = [index / count for index in range(count + 1)]
        lines[roof["name"]] = [(left + part * (right - left), low + part * (high - low)) for part in parts]
    pixels = {point["about"]: panel.pixel(point["intensity"], point["rate"]) for point in panel.points}
    dots = {about: Box(*pixel, _DOT, _DOT) for about, pixel in pixels.items()}
    boxes = {name: [Box(x, y, _STEP, _STEP) for x, y in line] for name, line in lines.items()}
    taken = [(owner, box) for owner in boxes for box in boxes[owner]] + [*dots.items()]

    def place(owner: str, rivals: Container[str], candidates: Iterable[Box]) -> Box | None:
        """Take the first candidate that is free and away from the owner's rivals; None where there is no room."""
        for box in candidates:
            clear = ((other, _APART if name != owner and name in rivals else 0) for name, other in taken)
            if box.is_inside and not any(box.overlaps(other, clearance) for other, clearance in clear):
                taken.append((owner, box))
                return box
        return None

    placed = [(name, place(name, lines, along(name, line)), charts.TEXT) for name, line in lines.items()]
    for point in sorted(panel.points, key=lambda point: -point["share"]):
        name, dot = point["name"], dots[point["about"]]
        if len(name) <= _LABEL:
            placed.append((name, place(point["about"], dots, around(name, dot.x, dot.y, _DOT)), charts.QUIET))
    for text, box, shade in placed:
        if box:
            x, y = panel.point_at(box.x, box.y)
            yield {"text": text, "x": x, "y": y, "shade": shade}


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

    @property
    def is_inside(self) -> bool:
        across, down = min(self.x, _WIDTH - self.x), min(self.y, _HEIGHT - self.y)
        return across >= self.width / 2 and down >= self.height / 2


def around(text: str, x: float, y: float, size: float) -> Iterator[Box]:
    """Next to a point that is `size` pixels wide: right, left, above and below."""
    half, down = _LETTER * len(text) / 2, (size + _LINE) / 2
    side = half + size / 2 + _GAP
    yield from (Box(x + dx, y, 2 * half, _LINE) for dx in (side, -side))
    shifts = (0.0, half / 2, -half / 2, half - size / 2, size / 2 - half)
    yield from (Box(x + dx, y + dy, 2 * half, _LINE) for dy in (-down, down) for dx in shifts)


def along(text: str, line: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """Next to a line from its right end to its left: above it, below it, on either side of it."""
    half, away = _LETTER * len(text) / 2, _LINE / 2 + _GAP
    for side in (-1, 1, 0):
        for x, y in reversed(line):
            for dx in (-half, 0.0, half) if side else (-half - _LINE, half + _LINE):
                yield Box(x + dx, y + side * away, 2 * half, _LINE)
