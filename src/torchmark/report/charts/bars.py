"""Rows of a chart: speeds as bars, and speeds relative to a baseline as points, both with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.analyze.comparison import Family, Pair, compare_all, overall
from torchmark.analyze.grades import is_published
from torchmark.records import Case, Result, Run, Work
from torchmark.report import figures, units
from torchmark.report.charts.drawing import (
    BELOW,
    QUIET,
    ROW,
    SURFACE,
    TEXT,
    Chart,
    Series,
    Spec,
    chart,
    factor_ticks,
    field,
    given,
    is_measured,
    layer,
    row_texts,
)
from torchmark.report.document import word
from torchmark.report.names import devices_of, full_name, run_names, same_work, variant_name, variant_parts
from torchmark.report.text import shorten

_STEPS = Work(items=1, unit="step")
_WIDEST = 1.6  # an interval that reaches further than this beyond the longest bar is cut
_NARROWEST = 1.25  # the scale of ratios reaches at least from 1/1.25 to 1.25

Member = tuple[Series, Result]
Naming = Callable[[Case], str]


class Bar(Struct, frozen=True):
    """A speed in items per second, or relative to another: without an interval both ends are the value."""

    label: str
    value: float
    low: float
    high: float
    figure: str
    about: str
    color: str
    margin: str = ""  # none where none is known
    unit: str = ""
    grade: str = ""
    sure: bool = True


class Panel(Struct, frozen=True):
    """Bars that can be compared with each other. `note` is what they have in common: who did them, or their mean."""

    title: str
    bars: tuple[Bar, ...]
    note: str = ""


def find_speeds(series: Sequence[Series]) -> tuple[Panel, ...]:
    """Work that several series did, each against the others; then what only one did, by workload."""
    works: dict[tuple[str, int, bool], list[Member]] = {}
    for each in series:
        for result in filter(is_measured, each.results):
            # Some published work has the shape of ours, but is not the same.
            stands_alone = any(caution.kind == "not-comparable" for caution in result.cautions)
            works.setdefault((same_work(result.case), result.version, stands_alone), []).append((each, result))
    panels = [_shared(members) for members in works.values() if len(members) > 1]
    single: dict[tuple[str, str, int], list[Member]] = {}
    for [(each, result)] in (members for members in works.values() if len(members) == 1):
        single.setdefault((each.name, result.case.workload, result.version), []).append((each, result))
    panels += [_single(members, len(series) > 1) for members in single.values()]
    return tuple(panel for panel in panels if panel.bars)


def _shared(members: Sequence[Member]) -> Panel:
    """The same work, the fastest first. Results without items borrow those of the others."""
    work = next((result.work for _, result in members if result.work), _STEPS)
    bars = _bars([(each.name, each, result, result.work or work) for each, result in members])
    return Panel(full_name(members[0][1].case), tuple(sorted(bars, key=lambda bar: -bar.value)))


def _single(members: Sequence[Member], several: bool) -> Panel:
    """The variants of one workload; what they have in common is said once, above them."""
    series, first = members[0]
    parts = [variant_parts(result.case) for _, result in members]
    common = [part for part in parts[0] if all(part in each for each in parts)] if len(parts) > 1 else []
    labels = [" · ".join(part for part in each if part not in common) for each in parts]
    rows = zip(labels, members, strict=True)
    bars = _bars([(label or result.case.dtype, series, result, result.work or _STEPS) for label, (_, result) in rows])
    return Panel(" · ".join([first.case.workload, *common]), tuple(bars), series.name if several else "")


def _bars(rows: Sequence[tuple[str, Series, Result, Work]]) -> list[Bar]:
    """Those that have the first one's unit: other lengths cannot be compared with it."""
    bars = [_bar(label, series.color, result, work) for label, series, result, work in rows if work.items > 0]
    alike = [bar for bar in bars if bar.unit == bars[0].unit]
    return [bar for bar in alike if bar.value > 0 and math.isfinite(bar.high)]


def speed_range(result: Result, items: float, widest: float) -> tuple[float, float, float]:
    """Items per second, and the interval around it: at most `widest` times the rate."""
    assert result.estimate
    found, value = result.estimate, items / result.estimate.center_s
    low = min(items / found.high_s, value) if found.high_s > 0 else 0.0
    return value, low, min(max(items / found.low_s, value), value * widest) if found.low_s > 0 else value * widest


def _bar(label: str, color: str, result: Result, work: Work) -> Bar:
    assert result.estimate
    value, low, high = speed_range(result, work.items, _WIDEST)
    figure, grade = units.rate(value, shorten(work.unit, 24)), figures.grade_text(result)
    margin = "" if is_published(result) else figures.margin(result.estimate)
    step = f"{figures.step_time(result.estimate)} a step"
    about = ", ".join(filter(None, (f"{label}: {figure} {margin}".rstrip(), step, grade)))
    return Bar(label, value, low, high, figure, about, color, margin, work.unit, grade)


def draw_speeds(panel: Panel) -> Chart:
    """Bars from zero with their intervals; a pale one is poor."""
    said = [f"{bar.figure} {bar.margin}".rstrip() for bar in panel.bars]
    rows = [
        asdict(bar) | {"row": row, "figure": figure, "strength": 0.45 if bar.grade.startswith("poor") else 0.9}
        for row, (bar, figure) in enumerate(zip(panel.bars, said, strict=True))
    ]
    y = field("row", "ordinal", axis=None)
    place: Spec = {"axis": None, "scale": {"domain": [0, max(bar.high for bar in panel.bars)]}}
    shown = {
        "color": given("color"),
        "opacity": field("strength", scale=None),
        "description": field("about", "nominal"),
    }
    layers = [
        layer("bar", {"y": y, "x": field("value", **place), **shown}, size=11, yOffset=BELOW),
        layer(
            "rule", {"y": y, "x": field("low", **place), "x2": {"field": "high"}},
            yOffset=BELOW, color=TEXT, strokeWidth=1.5,
        ),
    ]  # fmt: skip
    return chart([*layers, *row_texts(y, said)], ROW * len(rows), rows=rows)


def find_ratios(runs: Sequence[Run], baseline: int) -> tuple[Panel, ...]:
    """By workload where there is one other run, else by run; none where nothing can be compared."""
    names = run_names(runs)
    others = [index for index in range(len(runs)) if index != baseline]
    comparisons = compare_all([runs[baseline], *(runs[index] for index in others)])
    panels: list[Panel] = []
    for index, found in zip(others, comparisons, strict=True):
        if len(others) > 1:
            panels.append(_ratios(names[index], found.pairs, overall(found.families), _naming(runs[index], full_name)))
            continue
        groups: dict[str, list[Pair]] = {}
        for pair in found.pairs:
            groups.setdefault(pair.a.case.workload, []).append(pair)
        means, naming = {family.name: family for family in found.families}, _naming(runs[index], variant_name)
        panels += [_ratios(workload, pairs, means.get(workload), naming) for workload, pairs in groups.items()]
    return tuple(panel for panel in panels if panel.bars)


def _naming(run: Run, name: Naming) -> Naming:
    """What a row must say because its panel does not."""
    return (lambda case: f"{name(case)} · {case.device}") if len(devices_of(run)) > 1 else name


def _ratios(title: str, pairs: Sequence[Pair], mean: Family | None, name: Naming) -> Panel:
    rows = [_ratio(pair, name(pair.b.case)) for pair in pairs]
    sane = tuple(row for row in rows if 0 < row.low <= row.high < math.inf)
    return Panel(title, sane, f"On average {_factor(mean)}" if mean and len(pairs) > 1 else "")


def _ratio(pair: Pair, name: str) -> Bar:
    value, low, high = _speeds(pair)
    known = pair.low is not None or pair.assumed is not None
    figure = f"{units.factor(value, rough=pair.assumed is not None)} {pair.verdict if known else ''}".strip()
    shade = f"var(--{word(pair.verdict).look})"
    return Bar(name, value, low, high, figure, f"{name}: {_factor(pair)}", shade, sure=pair.verdict != "unsure")


def _factor(row: Pair | Family) -> str:
    """1.43× as fast (1.40× to 1.46×), faster"""
    value, low, high = _speeds(row)
    interval = f" ({units.factor(low)} to {units.factor(high)}), {row.verdict}" if row.low is not None else ""
    return f"{units.factor(value)} as fast{interval}"


def _speeds(row: Pair | Family) -> tuple[float, float, float]:
    """The comparison is about times; a person asks about speed."""
    value = 1 / row.ratio
    return value, 1 / row.high if row.high else value, 1 / row.low if row.low else value


def draw_ratios(bars: Sequence[Bar], domain: Sequence[float]) -> Chart:
    """Points on a scale of factors, with a mark where both are equally fast; what is unsure is hollow."""
    rows = [asdict(bar) | {"row": row, "fill": bar.color if bar.sure else SURFACE} for row, bar in enumerate(bars)]
    axis: Spec = {"title": None, "values": factor_ticks(*domain), "labelExpr": "datum.value + '×'"}
    axis |= dict.fromkeys(("domain", "ticks", "grid"), False)
    place: Spec = {"axis": axis, "scale": {"type": "log", "domain": list(domain), "nice": False, "clamp": True}}
    y, equal = field("row", "ordinal", axis=None), {"datum": 1, "type": "quantitative", **place}
    interval = {"y": y, "x": field("low", **place), "x2": {"field": "high"}, "color": given("color")}
    point = {"y": y, "x": field("value", **place), "stroke": given("color"), "fill": given("fill")}
    point |= {"description": field("about", "nominal")}
    layers = [
        layer("tick", {"y": y, "x": equal}, yOffset=BELOW, size=18, thickness=1.5, color=QUIET, opacity=0.6),
        layer("rule", interval, yOffset=BELOW, strokeWidth=2),
        layer(
            "circle",
            point | {"description": field("about", "nominal")},
            yOffset=BELOW,
            size=64,
            strokeWidth=2,
            opacity=1,
        ),
    ]
    return chart([*layers, *row_texts(y, [bar.figure for bar in bars])], ROW * len(rows), rows=rows)


def shared_domain(bars: Sequence[Bar]) -> list[float]:
    """As far to either side as the values reach; an interval that reaches much further is cut by the edge."""
    low, high = min(bar.value for bar in bars), max(bar.value for bar in bars)
    low_end = max(min(bar.low for bar in bars), low / 2)
    high_end = min(max(bar.high for bar in bars), high * 2)
    return [min(low_end / 1.1, 1 / _NARROWEST), max(high_end * 1.1, _NARROWEST)]
