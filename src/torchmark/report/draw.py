"""Charts to drawings: Vega-Lite to SVG that a page with a strict policy can hold, sized by the page's own style."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

if TYPE_CHECKING:
    import altair
    from markupsafe import Markup

TEXT, QUIET, LINE, SURFACE = "var(--text)", "var(--quiet)", "var(--line)", "var(--surface)"
WIDTH = 320  # of a panel: the width of a phone

_SPACE = "{http://www.w3.org/2000/svg}"
_ELEMENTS = {"svg", "g", "path", "line", "rect", "circle", "text"}
_ATTRIBUTES = {
    "class", "viewBox", "transform", "d", "x", "y", "x2", "y2", "width", "height", "fill", "fill-opacity", "stroke",
    "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity", "text-anchor", "font-size", "aria-label",
}  # fmt: skip


class Chart(NamedTuple):
    """Marks and the data that they name; kept apart, as altair would copy every row at every turn."""

    marks: altair.TopLevelMixin
    data: dict[str, list[dict[str, Any]]]


def draw(chart: Chart, about: str) -> Markup:
    """The chart as markup; `about` is what it shows, for those who do not see it."""
    import vl_convert
    from markupsafe import Markup

    vl_version = "_".join(vl_convert.get_vegalite_versions()[-1].split(".")[:2])
    drawing = vl_convert.vegalite_to_svg(_themed(chart), vl_version=vl_version)
    root = ElementTree.fromstring(drawing)
    _tidy(root)
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "group", "aria-label": about}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _themed(chart: Chart) -> dict[str, object]:
    spec: dict[str, object] = chart.marks.to_dict(validate=False)  # the tests do: it takes longer than drawing
    axis = {
        "domainColor": LINE,
        "gridColor": LINE,
        "tickColor": LINE,
        "labelColor": QUIET,
        "titleColor": QUIET,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
    }
    legend = {"labelColor": TEXT, "labelFontSize": 12, "symbolSize": 60, "rowPadding": 4}
    view = {"stroke": None}
    spec["config"] = {"view": view, "font": "Helvetica, Arial, sans-serif", "axis": axis, "legend": legend}
    spec["datasets"] = chart.data
    return spec | {"background": "transparent", "padding": {"left": 1, "right": 1, "top": 2, "bottom": 2}}


def _tidy(element: ElementTree.Element) -> None:
    """Keep what is drawn, under its plain name, with coordinates of a tenth of a pixel; drop all else."""
    element.tag = element.tag.removeprefix(_SPACE)
    for child in list(element):
        _tidy(child)
        if child.tag not in _ELEMENTS or _is_empty(child):
            element.remove(child)
    kept = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
    for name in kept.keys() & {"d", "transform", "x", "y", "x2", "y2", "width", "height"}:
        kept[name] = re.sub(r"-?\d+\.\d+(e-?\d+)?", _rounded, kept[name])
    if "aria-label" in kept:
        kept["role"] = "img"
    if element.attrib.get("aria-hidden") == "true":
        kept["aria-hidden"] = "true"
    element.attrib = kept


def _is_empty(element: ElementTree.Element) -> bool:
    """Vega leaves a frame before and behind each group, drawn or not."""
    shape = element.attrib
    framed = shape.get("class") in ("background", "foreground") and not {"fill", "stroke"} & shape.keys()
    return framed or (element.tag == "g" and not len(element))


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")
