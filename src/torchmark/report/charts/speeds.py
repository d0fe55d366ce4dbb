"""Speeds as bars, against a baseline and over what was varied; step times in their order."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.comparison import Family, Pair, compare_all, overall
from torchmark.analyze.efficiency import Scaling, find_scaling
from torchmark.analyze.grades import is_published
from torchmark.analyze.jobs import end_counts
from torchmark.analyze.pairing import grouped
from torchmark.analyze.wording import counted
from torchmark.records import Estimate, Result, Run, Value, Work
from torchmark.report import charts, figures, units
from torchmark.report.charts import Panel, Rows, Series, Spec, chart, field, given, is_measured, label, layer
from torchmark.report.document import word
from torchmark.report.names import devices_of, full_name, run_names, variant_name, variant_parts
from torchmark.report.run import scaling_note
from torchmark.report.text import shorten

_FEWEST_VALUES = 3  # of a curve
_STEPS = Work(items=1, unit="step")
_NARROWEST = 1.25  # times: the least reach of a scale to either side
_WIDTH, _HEIGHT = charts.WIDTH - 40, 170  # of curves
_NO_LINES = {"domain": False, "ticks": False}
COLUMNS = 240  # more cannot be distinguished on the screen
_FEWEST_SAMPLES = 5  # below this there is no trend to see
_LEAST_SPAN = 0.1  # of the step time: less would exaggerate noise
_TALLEST = 3.0  # times the median: longer samples are cut, unless they are a tenth
_FURTHEST = 1e6  # times the step time: samples so far apart were made up

Line = tuple[Series, dict[str, Value], list[tuple[Result, float]]]  # what is fixed, and results with what is varied


def find_speeds(series: Sequence[Series]) -> list[Panel]:
    """Work of several series, the fastest first; then what only one did, by workload."""

    def work_of(done: tuple[Series, Result]) -> tuple[object, ...]:
        case, version = done[1].case, done[1].version
        # Published work of the same shape may still be different.
        alone = any(caution.kind == "not-comparable" for caution in done[1].cautions)
        return replace(case, device="cpu", protocol="steady").text, version, alone

    works = grouped(((each, result) for each in series for result in each.results if is_measured(result)), work_of)
    panels = []
    for members in (members for members in works.values() if len(members) > 1):
        work = next((result.work for _, result in members if result.work), _STEPS)  # for results without items
        bars = _bars([(each.name, each, result, result.work or work) for each, result in members])
        bars.sort(key=lambda bar: -bar["value"])
        panels.append(_speeds_panel(full_name(members[0][1].case), bars))
    single = (members[0] for members in works.values() if len(members) == 1)
    alike = grouped(single, lambda done: (done[0].name, done[1].case.workload, done[1].version))
    for members in alike.values():  # the title says what variants have in common
        parts = [variant_parts(result.case) for _, result in members]
        common = [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []
        rows = []
        for own, (each, result) in zip(parts, members, strict=True):
            name = " · ".join(part for part in own if part not in common) or result.case.dtype
            rows.append((name, each, result, result.work or _STEPS))
        owner, first = members[0]
        title = " · ".join([first.case.workload, *common])
        panels.append(_speeds_panel(title, _bars(rows), owner.name if len(series) > 1 else ""))
    return [panel for panel in panels if panel.rows]


def _bars(rows: Sequence[tuple[str, Series, Result, Work]]) -> Rows:
    """The bars with the unit of the first: other lengths cannot be compared."""
    bars: Rows = []
    for name, series, result, work in rows:
        if work.items > 0:
            value, low, high = _speed_range(result, work.items, 1.6)
            figure, grade = units.rate(value, shorten(work.unit, 24)), figures.grade_text(result)
            margin = "" if is_published(result) else figures.margin(result.estimate)
            step = f"{figures.step_time(result.estimate)} a step"
            about = ", ".join(filter(None, (f"{name}: {figure} {margin}".rstrip(), step, grade)))
            bar = {"label": name, "value": value, "low": low, "high": high, "figure": figure, "about": about}
            bar |= {"color": series.color, "strength": 0.45 if grade.startswith("poor") else 0.9}
            bars.append(bar | {"margin": margin, "unit": work.unit, "grade": grade})
    return [bar for bar in bars if bar["unit"] == bars[0]["unit"] and bar["value"] > 0 and math.isfinite(bar["high"])]


def _speed_range(result: Result, items: float, widest: float) -> tuple[float, float, float]:
    """Items per second with an interval, at most `widest` times as high."""
    assert result.estimate
    found, value = result.estimate, items / result.estimate.center_s
    low = min(items / found.high_s, value) if found.high_s > 0 else 0.0
    return value, low, min(max(items / found.low_s, value), value * widest) if found.low_s > 0 else value * widest


def _speeds_panel(title: str, bars: Rows, note: str = "") -> Panel:
    """Bars from zero with intervals, pale if graded poor; no chart of a single figure."""
    title, made = shorten(title, charts.TITLE), None
    if len(bars) > 1:
        rows = [bar | {"figure": f"{bar['figure']} {bar['margin']}".rstrip()} for bar in bars]
        place: Spec = {"axis": None, "scale": {"domain": [0, max(bar["high"] for bar in bars)]}}
        bar = {"x": field("value", **place), "color": given("color"), "opacity": field("strength", scale=None)}
        interval = {"x": field("low", **place), "x2": {"field": "high"}}
        rule = ("rule", interval, {"color": charts.TEXT, "strokeWidth": 1.5})
        made = charts.row_chart(rows, ("bar", bar | {"description": label("about")}, {"size": 11}), rule)
    return Panel(title, made, f"Speed of {title}", note, rows=bars)


def find_ratios(runs: Sequence[Run], baseline: int) -> list[Panel]:
    """By workload if there is one other run, else by run."""
    names = run_names(runs)
    others = [index for index in range(len(runs)) if index != baseline]
    comparisons = compare_all([runs[baseline], *(runs[index] for index in others)])
    found: list[tuple[str, Rows, str]] = []
    for index, comparison in zip(others, comparisons, strict=True):
        groups = grouped(comparison.pairs, lambda pair: "" if len(others) > 1 else pair.a.case.workload)
        means = {family.name: family for family in comparison.families}
        several = len(devices_of(runs[index])) > 1
        for workload, pairs in groups.items():
            title = workload or names[index]
            mean = means.get(workload) if workload else overall(comparison.families)
            bars = []
            for pair in pairs:
                name = (full_name if len(others) > 1 else variant_name)(pair.b.case)
                called, shade = name + f" · {pair.b.case.device}" * several, f"var(--{word(pair.verdict).look})"
                value, low, high = _speeds(pair)
                answer = pair.verdict if pair.low is not None or pair.assumed is not None else ""
                figure = f"{units.factor(value, rough=pair.assumed is not None)} {answer}".strip()
                bar = {"label": called, "value": value, "low": low, "high": high, "figure": figure, "color": shade}
                bar |= {"about": f"{called}: {_factor(pair)}"}
                bar |= {"fill": charts.SURFACE if pair.verdict == "unsure" else shade}  # hollow
                bars += [bar] if 0 < low <= high < math.inf else []
            average = f"On average {_factor(mean)}" if mean and len(pairs) > 1 else ""
            found += [(shorten(title, charts.TITLE), bars, average)] if bars else []
    shown = [bar for _, bars, _ in found for bar in bars]
    if not shown:
        return []
    # As far as the values; much longer intervals are cut by the edge.
    low, high = min(bar["value"] for bar in shown), max(bar["value"] for bar in shown)
    low_end, high_end = max(min(bar["low"] for bar in shown), low / 2), min(max(bar["high"] for bar in shown), high * 2)
    domain = [min(low_end / 1.1, 1 / _NARROWEST), max(high_end * 1.1, _NARROWEST)]
    charted = ((title, _ratios_chart(bars[:60], domain), note, bars) for title, bars, note in found)
    return [Panel(title, made, f"Relative speed: {title}", note, rows=bars) for title, made, note, bars in charted]


def _factor(row: Pair | Family) -> str:
    """1.43× as fast (1.40× to 1.46×), faster"""
    value, low, high = _speeds(row)
    interval = f" ({units.factor(low)} to {units.factor(high)}), {row.verdict}" if row.low is not None else ""
    return f"{units.factor(value)} as fast{interval}"


def _speeds(row: Pair | Family) -> tuple[float, float, float]:
    value = 1 / row.ratio  # of speed: the comparison is about times
    return value, 1 / row.high if row.high else value, 1 / row.low if row.low else value


def _ratios_chart(bars: Rows, domain: Sequence[float]) -> Spec:
    """Points on a scale of factors, with a mark at equal speed."""
    axis: Spec = {"title": None, "values": charts.factor_ticks(*domain), "labelExpr": "datum.value + '×'"}
    scale = {"type": "log", "domain": list(domain), "nice": False, "clamp": True}
    place: Spec = {"axis": axis | _NO_LINES | {"grid": False}, "scale": scale}
    equal = {"x": {"datum": 1, "type": "quantitative", **place}}
    interval = {"x": field("low", **place), "x2": {"field": "high"}, "color": given("color")}
    point = {"x": field("value", **place), "stroke": given("color"), "fill": given("fill")}
    return charts.row_chart(
        bars,
        ("tick", equal, {"size": 18, "thickness": 1.5, "color": charts.QUIET, "opacity": 0.6}),
        ("rule", interval, {"strokeWidth": 2}),
        ("circle", point | {"description": label("about")}, {"size": 64, "strokeWidth": 2, "opacity": 1}),
    )


def find_curves(series: Sequence[Series]) -> list[Panel]:
    """A panel per parameter with three values or more; a line is a series with all others fixed."""
    # Parameters that always are the items of a step: published cases leave out a usual batch.
    found = [(each, result) for each in series for result in each.results]
    seen: dict[tuple[str, str], set[tuple[Value, float]]] = {}
    for _, result in found:
        for name, value in (result.case.params | result.params).items() if result.work else ():
            seen.setdefault((result.case.workload, name), set()).add((value, result.work.items if result.work else 0))
    implied = [key for key, both in seen.items() if len(both) > 1 and all(value == items for value, items in both)]
    groups: dict[tuple[str, str, int, str], dict[tuple[str, str], Line]] = {}
    for each, result in found:
        case, work = result.case, result.work
        items = {name: work.items for workload, name in implied if workload == case.workload} if work else {}
        axes = {name: getattr(case, name) for name in ("dtype", "compile", "transfer", "workers", "protocol")}
        axes |= {"threads": case.threads} if case.threads is not None else {}
        settings: dict[str, Value] = {**items, **case.params, **result.params, **axes, **case.options}
        for name, value in settings.items():
            if name != "workers" and not isinstance(value, bool | str) and value > 0:
                fixed = {key: own for key, own in settings.items() if key != name}
                panel = (f"{case.workload}/{case.mode}", name, result.version, work.unit if work else "step")
                curve = (each.name, repr(sorted(fixed.items())))
                groups.setdefault(panel, {}).setdefault(curve, (each, fixed, []))[2].append((result, float(value)))
    panels = []
    for (workload, name, _, unit), lines in groups.items():
        rows, lost = _points(lines.values())
        title, by = shorten(workload, charts.TITLE), shorten(f"{unit}/s by {name}", charts.TITLE)
        panels += [Panel(title, _curves_chart(name, rows, lost), f"{title}: {by}", by, rows=rows)] if rows else []
    return panels


def _points(lines: Iterable[Line]) -> tuple[Rows, Rows]:
    """The points of lines named by their differences; and the values without a figure."""
    lines = [each for each in lines if len({x for result, x in each[2] if is_measured(result)}) >= _FEWEST_VALUES]
    fixed = [each for _, each, _ in lines]
    keys = dict.fromkeys(key for each in fixed for key in each)
    differing = [key for key in keys if len({repr(each.get(key)) for each in fixed}) > 1]
    owners = {series.name for series, _, _ in lines}
    rows: Rows = []
    missing: Rows = []
    for index, (series, own, members) in enumerate(lines):
        parts = [series.name] * (len(owners) > 1) + [f"{key}={own[key]}" for key in differing if key in own]
        name = shorten(" · ".join(parts), 48)
        shade = series.color if len(owners) == len(lines) else charts.color(index)
        known = {}
        for result, x in members:
            if is_measured(result):
                items, unit = (result.work.items, shorten(result.work.unit, 24)) if result.work else (1.0, "step")
                rate, low, high = _speed_range(result, items, 2.0)
                margin = "as published" if is_published(result) else figures.margin(result.estimate)
                about = ", ".join(filter(None, (name, f"{units.digits(x)}: {units.rate(rate, unit)} {margin}")))
                if 0 < rate < math.inf:
                    known[x] = {"rate": rate, "low": low, "high": high, "about": about}
        lost = {x: each.status for each, x in members if each.status not in ("ok", "skipped") and x not in known}
        if len(known) >= _FEWEST_VALUES:
            rows += [{"curve": name, "color": shade, "x": x, **known[x]} for x in sorted(known)]
            missing += [{"x": x, "status": lost[x], "curve": name} for x in sorted(lost)]
    return rows, missing


def _curves_chart(parameter: str, rows: Rows, lost: Rows) -> Spec:
    """Joined points with intervals; a value without a figure has its status at the bottom."""
    # Ticks at the values; a logarithmic axis where they grow like powers.
    values = sorted({each["x"] for each in (*rows, *lost)})
    style = "~s" if values[-1] >= 1e5 else "~f"
    x_axis = {"values": values, "title": parameter, "format": style, "grid": False, "labelOverlap": True}
    growth = {"type": "log", "base": 2} if values[-1] / values[0] >= 4 else {"zero": False}
    # From zero; logarithmic where the lowest curve would look flat.
    shades = {row["curve"]: row["color"] for row in rows}
    highest = [max(row["rate"] for row in rows if row["curve"] == curve) for curve in shades]
    axis: Spec = {"title": None, "format": "~s", **_NO_LINES}
    scale: Spec = {"zero": True}
    if max(highest) > 8 * min(highest):
        domain = [min(row["rate"] for row in rows) / 2, max(highest) * 2]
        scale = {"type": "log", "domain": domain, "nice": False, "clamp": True}
        axis |= {"values": charts.factor_ticks(*domain)}
    y, low = (field(name, axis=axis, scale=scale) for name in ("rate", "low"))
    legend = {"orient": "bottom", "columns": 1, "title": None, "labelLimit": charts.WIDTH - 100}
    shade = {"domain": [*shades], "range": [*shades.values()]}
    base = {"x": field("x", axis=x_axis, scale={"nice": False, "padding": 10, **growth})}
    base["color"] = label("curve", scale=shade, legend=legend if len(shades) > 1 else None)
    layers = [
        layer("line", base | {"y": y}, strokeWidth=2),
        layer("rule", base | {"y": low, "y2": {"field": "high"}}, strokeWidth=1.5),
        layer("point", base | {"y": y, "description": label("about")}, filled=True, size=48, opacity=1),
        layer("text", base | {"y": {"value": _HEIGHT}, "text": label("status")}, "lost", dy=-6, fontSize=11),
    ]
    return chart(layers, _HEIGHT, _WIDTH, rows=rows, lost=lost)


def find_scalings(series: Sequence[Series]) -> Iterator[Panel]:
    for each in series:
        for found in find_scaling(tuple(each.results)):
            title = shorten(found.case, charts.TITLE)
            owner = f"{each.name}: " if len(series) > 1 else ""
            note = f"{owner}{shorten(found.unit, 24)}/s by workers. {scaling_note(found)}"
            yield Panel(title, _scaling_chart(found, each.color), f"Scaling of {title}", note)


def _scaling_chart(scaling: Scaling, shade: str) -> Spec:
    """The rate of all workers; the ideal is dashed if a single one was measured."""
    single = next((row.rate for row in scaling.rows if row.workers == 1), None)
    rows = []
    for row in scaling.rows:
        share = "" if row.efficiency is None else units.percent(row.efficiency)
        about = f"{counted(row.workers, 'worker')}: {units.rate(row.rate, scaling.unit)}"
        about += f", efficiency {share}" if share else ""
        shown = {"workers": row.workers, "rate": row.rate, "about": about, "said": share if row.workers > 1 else ""}
        rows.append(shown | ({"ideal": row.workers * single} if single else {}))
    x_axis = {"values": [row.workers for row in scaling.rows], "grid": False, "format": "d"}
    x = field("workers", axis=x_axis, scale={"padding": 14})
    y_axis = {"title": None, "format": "~s", "tickCount": 4, **_NO_LINES}
    base = {"x": x, "y": field("rate", axis=y_axis, scale={"zero": True})}
    ideal: Spec = {"x": x, "y": field("ideal", axis=y_axis)}
    layers = [layer("line", ideal, color=charts.QUIET, strokeDash=[3, 3], strokeWidth=1.2)] if single else []
    layers += [
        layer("line", base, color=shade, strokeWidth=2),
        layer("point", base | {"description": label("about")}, color=shade, filled=True, size=56, opacity=1),
        layer("text", base | {"text": label("said")}, dy=16, color=charts.QUIET, fontSize=11),
    ]
    return chart(layers, _HEIGHT, _WIDTH, rows=rows)


def has_samples(result: Result) -> bool:
    return any(each.samples_s for each in (result.estimate, *result.processes) if each)


def find_steps(series: Series, result: Result, several: bool) -> Panel | None:
    """The chart of loaded samples; `several`: the page is about several devices."""
    known = result.processes if any(each.samples_s for each in result.processes) else (result.estimate,)
    processes = [each for each in known if each is not None and each.samples_s]
    count = sum(len(each.samples_s) for each in processes)
    estimate, sustained = result.estimate, result.sustained
    if count < _FEWEST_SAMPLES or estimate is None or not estimate.center_s > 0:
        return None
    scale, unit = units.duration_unit(estimate.center_s)
    two_ends = (sustained.first_s, sustained.last_s) if sustained else ()
    # Without the longest few, which would flatten the rest; always with both sustained ends.
    kept = np.concatenate([np.array(each.samples_s[_cut(each) :] or each.samples_s) for each in processes])
    least, middle, most, nearly_all = (float(value) for value in np.quantile(kept, (0.0, 0.5, 0.9, 0.995)))
    low, high = min((least, *two_ends)), max(min(nearly_all, _TALLEST * middle), most, *two_ends)
    missing = max(0.0, _LEAST_SPAN * estimate.center_s - (high - low))
    margin = 0.08 * (high - low + missing)
    window = low, high = low - missing / 2 - margin, high + missing / 2 + margin
    if not high - low < _FURTHEST * estimate.center_s:
        return None
    ends: Rows = []  # of the first and last seconds
    if sustained and sum(samples := processes[0].samples_s) > 0:
        early, late = end_counts(np.array(samples), processes[0].duration_s, sustained.window_s)
        first, last = (float(np.clip(step_s, *window)) / scale for step_s in two_ends)
        ends = [
            {"sample": 0, "end": min(early, len(samples)), "middle": first},
            {"sample": max(len(samples) - late, 0), "end": len(samples), "middle": last},
        ]
    starts = np.cumsum([0, *(len(each.samples_s) for each in processes)]).tolist()
    rows: Rows = []
    for number, (start, process) in enumerate(zip(starts, processes, strict=False)):
        clipped = np.clip(np.array(process.samples_s), *window) / scale
        width = min(len(clipped), max(1, round(COLUMNS * len(clipped) / count)))
        for left, right in pairwise(np.linspace(0, len(clipped), width + 1).round().astype(int).tolist()):
            bottom, center, top = np.quantile(clipped[left:right], (0.0, 0.5, 1.0)).tolist()
            rows.append({"sample": start + left, "process": number, "low": bottom, "middle": center, "high": top})
    cuts = [{"sample": at, "end": at + cut} for at, cut in zip(starts, map(_cut, processes), strict=False) if cut]
    seams = [{"sample": start} for start in starts[1:-1]]  # where the next process begins
    about = ". ".join(filter(None, (_steps_about(estimate, processes), figures.sustained(result))))
    axis = {"tickCount": 3, "title": unit, **_NO_LINES}
    place: Spec = {"scale": {"domain": [low / scale, high / scale], "nice": False}, "axis": axis}
    x = field("sample", scale={"domain": [0, count], "nice": False}, axis=None)
    layers = _steps_layers(x, place, series.color, about)
    made = chart(layers, 84, charts.WIDTH - 48, rows=rows, cuts=cuts, seams=seams, ends=ends)
    title, note = full_name(result.case), f"{series.name}. {about}" if several else about
    return Panel(title, made, f"Step times of {title}", note, figures.grade_cell(result), rows)


def _steps_layers(x: Spec, place: Spec, shade: str, about: str) -> list[Spec]:
    """Each column's range and middle; the warm-up that was cut is shaded."""
    span, middle = {"x": x, "x2": {"field": "end"}}, field("middle", **place)
    base = {"x": x, "detail": label("process")}
    area = base | {"y": field("low", **place), "y2": {"field": "high"}, "description": {"value": about}}
    return [
        layer("rect", span, "cuts", color=charts.LINE, opacity=0.8),
        layer("rule", {"x": x}, "seams", color=charts.QUIET, strokeDash=[2, 2]),
        layer("area", area, color=shade, opacity=0.35),
        layer("line", base | {"y": middle}, color=shade, strokeWidth=1.2),
        layer("rule", span | {"y": middle}, "ends", color=charts.TEXT, strokeWidth=2),
    ]


def _steps_about(estimate: Estimate, processes: list[Estimate]) -> str:
    longest, shortest = (pick(pick(each.samples_s) for each in processes) for pick in (max, min))
    blocks = f" of {estimate.block_size} steps" if estimate.block_size > 1 else ""
    several = f" in {len(processes)} processes" if len(processes) > 1 else ""
    count, cut = sum(len(each.samples_s) for each in processes), sum(map(_cut, processes))
    low, high, first = map(units.duration, (max(shortest, 0.0), longest, estimate.first_step_s))
    taken = f"{count} samples{blocks}{several}, {cut} cut as warm-up"
    return f"{taken}; from {low} to {high}, typically {figures.step_time(estimate)}; first step {first}"


def _cut(process: Estimate) -> int:
    return min(max(process.warmup_cut, 0), len(process.samples_s))
