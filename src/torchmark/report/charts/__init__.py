"""What charts share: series and their colours, parts of a specification, and drawing it."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from msgspec import Struct

from torchmark.records import Result, Run
from torchmark.report.document import Cell
from torchmark.report.names import devices_of, run_names
from torchmark.report.text import shorten

TEXT, QUIET, LINE, SURFACE = "var(--text)", "var(--quiet)", "var(--line)", "var(--surface)"
TITLE = 80  # letters of a title
WIDTH = 320  # of a panel: the width of a phone

_ROW, _ABOVE, _BELOW = 42, -9, 8  # the height of a row; from its middle to the texts and to the drawing
_COLORS, _PATTERNS = 8, 2  # later series repeat the colours in stripes, then in dots
_LETTER = 8.2  # the width of a letter in wide fonts
_NARROWEST = 60
_MOST_TICKS = 6
_ELEMENTS = {"svg", "g", "path", "line", "rect", "circle", "text"}
_ATTRIBUTES = {
    "class", "viewBox", "transform", "d", "x", "y", "x2", "y2", "width", "height", "fill", "fill-opacity", "stroke",
    "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity", "text-anchor", "font-size", "aria-label",
}  # fmt: skip
_COORDINATES = {"d", "transform", "x", "y", "x2", "y2", "width", "height"}
_AXIS = {"domainColor": LINE, "gridColor": LINE, "tickColor": LINE, "labelColor": QUIET, "titleColor": QUIET}
_FRAME = {
    "config": {
        "view": {"stroke": None},
        "font": "Helvetica, Arial, sans-serif",
        "axis": _AXIS | {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
        "legend": {"labelColor": TEXT, "labelFontSize": 12, "symbolSize": 60, "rowPadding": 4},
    },
    "background": "transparent",
    "padding": {"left": 1, "right": 1, "top": 2, "bottom": 2},
}

Spec = dict[str, Any]
Rows = list[dict[str, Any]]


class Series(Struct, frozen=True):  # one device of one run, with one name and colour in all charts of a page
    name: str
    color: str
    run: Run
    device: str

    @property
    def results(self) -> Iterator[Result]:
        return (result for result in self.run.results if result.case.device == self.device)


def find_series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """In the order of the runs; names are just long enough to be distinct."""
    found: list[Series] = []
    for run, name in zip(runs, run_names(runs), strict=True):
        devices = devices_of(run)
        for device in devices:
            parts = [name] * (len(runs) > 1 or len(devices) == 1) + [shorten(device, 24)] * (len(devices) > 1)
            found.append(Series(" · ".join(parts), color(len(found)), run, device))
    return tuple(found)


def is_measured(result: Result) -> bool:
    found = result.estimate
    return result.status == "ok" and found is not None and found.center_s > 0 and math.isfinite(1 / found.center_s)


def color(index: int) -> str:
    """A variable of the style sheet, which knows light and dark, or a pattern in one."""
    pattern, shade = divmod(index % (_COLORS * (_PATTERNS + 1)), _COLORS)
    return f"url(#series-{shade + 1}-{pattern})" if pattern else f"var(--series-{shade + 1})"


def factor_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic scale, as fine as round numbers allow."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [float(f"{lead}e{power}") for power in powers for lead in leads]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks[:: max(1, math.ceil(len(ticks) / _MOST_TICKS))]


def field(name: str, **more: Any) -> Spec:
    return {"field": name, "type": "quantitative", **more}


label = partial(field, type="nominal")  # a channel that shows a name of the data
given = partial(label, scale=None)  # a field that holds what to draw, such as a colour


def layer(mark: str, encoding: Spec, data: str = "rows", **style: Any) -> Spec:
    """One kind of mark; without a description, hidden from screen readers."""
    hidden = {} if "description" in encoding else {"aria": False}
    return {"data": {"name": data}, "mark": {"type": mark, **hidden, **style}, "encoding": encoding}


class Panel(Struct, frozen=True):  # a card: a chart, drawn if there is room, or a figure
    title: str
    chart: Spec | None
    about: str  # what the chart shows, for screen readers
    note: str = ""
    grade: Cell | None = None
    rows: Rows = []


def chart(layers: Sequence[Spec], height: float, width: float = WIDTH, **data: Rows) -> Spec:
    """Vega-Lite: layers with the data that they name."""
    return {"layer": list(layers), "width": width, "height": height, "datasets": data}


def row_chart(rows: Rows, *marks: tuple[str, Spec, Spec]) -> Spec:
    """Rows with `label` and `figure` above their marks, each a type, encoding and style."""
    y: Spec = {"field": "row", "type": "ordinal", "axis": None}
    # A name is cut short before it meets a figure.
    room = max(WIDTH - _LETTER * max(len(row["figure"]) for row in rows) - 8, _NARROWEST)
    layers = [layer(mark, {"y": y, **encoding}, yOffset=_BELOW, **style) for mark, encoding, style in marks]
    left, right = ("label", "left", 0, room, TEXT), ("figure", "right", WIDTH, WIDTH - _NARROWEST - 8, QUIET)
    for name, align, x, limit, shade in (left, right):
        text = {"y": y, "x": {"value": x}, "text": label(name)}
        layers.append(layer("text", text, align=align, limit=limit, color=shade, dy=_ABOVE, fontSize=12))
    return chart(layers, _ROW * len(rows), rows=[row | {"row": number} for number, row in enumerate(rows)])


def draw(made: Spec, about: str) -> Markup:
    """`about` describes it for screen readers."""
    import vl_convert

    vl_version = "_".join(vl_convert.get_vegalite_versions()[-1].split(".")[:2])
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(made | _FRAME, vl_version=vl_version))
    _tidy(root)
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "group", "aria-label": about}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _tidy(element: ElementTree.Element) -> None:
    """Keep what is drawn, to a tenth of a pixel, without Vega's invisible frames around groups."""
    element.tag = element.tag.removeprefix("{http://www.w3.org/2000/svg}")
    for child in list(element):
        _tidy(child)
        framed = child.get("class") in ("background", "foreground") and not {"fill", "stroke"} & child.attrib.keys()
        if child.tag not in _ELEMENTS or framed or (child.tag == "g" and not len(child)):
            element.remove(child)
    kept = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
    for name in kept.keys() & _COORDINATES:
        kept[name] = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda text: f"{float(text[0]):.1f}".removesuffix(".0"), kept[name])
    kept |= {"role": "img"} if "aria-label" in kept else {}
    element.attrib = kept | ({"aria-hidden": "true"} if element.get("aria-hidden") == "true" else {})
