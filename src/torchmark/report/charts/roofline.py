"""The roofline: FLOP/s of results below the limits of their device."""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, get_args

from torchmark.records import Bound, Result
from torchmark.report import charts, figures, units
from torchmark.report.charts import Panel, Rows, Series, Spec, chart, field, given, is_measured, label, layer
from torchmark.report.names import full_name

BOUNDS: tuple[str, ...] = get_args(Bound)
_WIDTH, _HEIGHT = charts.WIDTH - 40, 250
_LABEL = 30  # letters
# In pixels: a point's width, places along a line, a label's distance to its owner and to others.
_DOT, _STEP, _GAP, _APART = 10.0, 3.0, 3.0, 6.0
_LINE, _LETTER = 13.0, 6.4  # of a line of text, and of a letter in most fonts

Place = tuple[float, float]


def find_rooflines(series: Sequence[Series]) -> list[Panel]:
    panels = []
    for each in series:
        points = [point for result in each.results if (point := _point(result))]
        if points:  # named by its workload alone if that has no other
            often = Counter(point["workload"] for point in points)
            for point in points:
                point["name"] = point["workload"] if often[point["workload"]] == 1 else point["name"]
            title = f"Roofline of {each.name}" if len(series) > 1 else "Roofline"
            made, roofs = _draw(points)
            close = sum(point["share"] >= 0.5 for point in points)
            reached = f"{close} of {len(points)} results reach at least half of their limit"
            panels.append(Panel(title, made, title, f"{reached}. Limits: {', '.join(roofs)}.", rows=points))
    return panels


def _point(result: Result) -> dict[str, Any] | None:
    """FLOP per byte that a result cannot do without, FLOP/s, and its share of the roof."""
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


def _draw(points: Rows) -> tuple[Spec, list[str]]:
    """Points coloured by bound below the device's limits as lines; and the lines' names."""
    intensities, rates, paths = ([point[name] for point in points] for name in ("intensity", "rate", "bytes"))
    flops = {point["dtype"]: point["flops"] for point in points}
    slow, fast, most = min(paths), max(paths), max(flops.values())
    left, right = min(intensities) / 2, max(*intensities, 4 * most / slow) * 2
    bottom, top = min(rates) / 3, max(most, *rates) * 3
    # The ends of lines; slopes end at the highest flat roof.
    roofs = {f"{name} {units.arithmetic(rate)}": ((rate / fast, rate), (right, rate)) for name, rate in flops.items()}
    for name, bandwidth in ({"memory": slow} | ({"cache": fast} if fast > 1.2 * slow else {})).items():
        start = max(left, bottom / bandwidth)
        roofs[f"{name} {units.bandwidth(bandwidth)}"] = ((start, start * bandwidth), (most / bandwidth, most))

    def pixel(x: float, y: float) -> Place:
        across, up = math.log(x / left) / math.log(right / left), math.log(y / bottom) / math.log(top / bottom)
        return _WIDTH * across, _HEIGHT * (1 - up)

    x_place, y_place = (
        {
            "scale": {"type": "log", "domain": [low, high], "nice": False},
            "axis": {"title": title, "format": style, "values": charts.factor_ticks(low, high), "grid": False},
        }
        for low, high, title, style in ((left, right, "FLOP per byte", "~g"), (bottom, top, "FLOP/s", "~s"))
    )
    used = [bound for bound in BOUNDS if any(point["bound"] == bound for point in points)]
    shades = {"domain": used, "range": [charts.color(BOUNDS.index(bound)) for bound in used]}
    legend = {"orient": "bottom", "columns": 4, "title": None, "symbolOpacity": 1}
    line = {"x": field("x", **x_place), "y": field("y", **y_place), "detail": label("roof")}
    text = {"x": field("x", scale=None), "y": field("y", scale=None), "text": label("text"), "color": given("shade")}
    dots = {"x": field("intensity", **x_place), "y": field("rate", **y_place), "description": label("about")}
    dots["color"] = label("bound", scale=shades, legend=legend)
    layers = [
        layer("line", line, "roofs", color=charts.QUIET, strokeWidth=1.5),
        layer("text", text, "labels", fontSize=11),
        layer("point", dots, "points", filled=True, size=60, opacity=0.9),
    ]
    ends = [{"roof": roof, "x": x, "y": y} for roof, corners in roofs.items() for x, y in corners]
    made = chart(layers, _HEIGHT, _WIDTH, roofs=ends, labels=[*_labels(points, roofs, pixel)], points=points)
    return made | {"resolve": {"scale": {"color": "independent"}}}, list(roofs)


def _labels(points: Rows, roofs: dict[str, tuple[Place, Place]], pixel: Callable[..., Place]) -> Iterator[Spec]:
    """Names of roofs, then of points with room for one, those closest to their limit first."""
    lines: dict[str, list[Place]] = {}  # places along each roof, a few pixels apart
    for name, (start, end) in roofs.items():
        (left, low), (right, high) = pixel(*start), pixel(*end)
        count = max(1, round(math.hypot(right - left, high - low) / _STEP))
        parts = [index / count for index in range(count + 1)]
        lines[name] = [(left + part * (right - left), low + part * (high - low)) for part in parts]
    dots = {point["about"]: Box(*pixel(point["intensity"], point["rate"]), _DOT, _DOT) for point in points}
    taken = [(name, Box(x, y, _STEP, _STEP)) for name, line in lines.items() for x, y in line] + [*dots.items()]

    def place(owner: str, text: str, shade: str, rivals: Container[str], candidates: Iterable[Box]) -> Rows:
        """The first candidate that is free and away from the owner's rivals, if any."""
        for box in candidates:
            clear = ((other, _APART if name != owner and name in rivals else 0) for name, other in taken)
            room = min(box.x, _WIDTH - box.x) - box.width / 2, min(box.y, _HEIGHT - box.y) - box.height / 2
            if min(room) >= 0 and not any(box.overlaps(other, clearance) for other, clearance in clear):
                taken.append((owner, box))
                return [{"text": text, "x": box.x, "y": box.y, "shade": shade}]
        return []

    for name, line in lines.items():
        yield from place(name, name, charts.TEXT, lines, _along(name, line))
    for point in sorted(points, key=lambda point: -point["share"]):
        name, dot = point["name"], dots[point["about"]]
        if len(name) <= _LABEL:
            yield from place(point["about"], name, charts.QUIET, dots, _around(name, dot))


class Box(NamedTuple):  # in pixels from the upper left corner of the plot
    x: float  # its center
    y: float
    width: float
    height: float

    def overlaps(self, other: Self, clearance: float) -> bool:
        across = abs(self.x - other.x) - (self.width + other.width) / 2
        down = abs(self.y - other.y) - (self.height + other.height) / 2
        return max(across, down) < clearance


def _around(text: str, dot: Box) -> Iterator[Box]:
    """Right, left, above and below."""
    half, down = _LETTER * len(text) / 2, (dot.height + _LINE) / 2
    side = half + dot.width / 2 + _GAP
    shifts = (0.0, half / 2, -half / 2, half - dot.width / 2, dot.width / 2 - half)
    places = [(side, 0.0), (-side, 0.0), *((dx, dy) for dy in (-down, down) for dx in shifts)]
    return (Box(dot.x + dx, dot.y + dy, 2 * half, _LINE) for dx, dy in places)


def _along(text: str, line: Sequence[Place]) -> Iterator[Box]:
    """From the right end to the left: above, below, on either side."""
    half, away = _LETTER * len(text) / 2, _LINE / 2 + _GAP
    for side in (-1, 1, 0):
        for x, y in reversed(line):
            for dx in (-half, 0.0, half) if side else (-half - _LINE, half + _LINE):
                yield Box(x + dx, y + side * away, 2 * half, _LINE)
