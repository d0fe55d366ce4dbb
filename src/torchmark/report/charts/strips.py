"""Step times in the order in which they were seen: warm-up, drift and throttling show at a glance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from torchmark.analyze.jobs import end_counts
from torchmark.records import Estimate, Result
from torchmark.report import charts, figures, units
from torchmark.report.charts import Panel, Rows, Series, Spec, chart, field, label, layer
from torchmark.report.names import full_name

COLUMNS = 240  # more cannot be distinguished on the screen
FEWEST = 5  # samples below which there is no course to see
LEAST_SPAN = 0.1  # of the step time: less would make a mountain of every molehill
TALLEST = 3.0  # times the median: what sticks out further is cut by the edge, unless a tenth of all does
FURTHEST = 1e6  # times the step time: samples that lie so far apart were not timed but made up
_HEIGHT = 84


def has_samples(result: Result) -> bool:
    return any(each.samples_s for each in (result.estimate, *result.processes) if each)


def find_panel(series: Series, result: Result, several: bool) -> Panel | None:
    """The chart of a result whose samples were kept and loaded, in the unit in which its step time is best read;
    `several`: of several devices."""
    known = result.processes if any(each.samples_s for each in result.processes) else (result.estimate,)
    processes = [each for each in known if each is not None and each.samples_s]
    count = sum(len(each.samples_s) for each in processes)
    estimate, sustained = result.estimate, result.sustained
    if count < FEWEST or estimate is None or not estimate.center_s > 0:
        return None
    scale, unit = units.duration_unit(estimate.center_s)
    two_ends = (sustained.first_s, sustained.last_s) if sustained else ()
    # The step times to show: all that count but the longest few, which would flatten the rest; both ends always.
    kept = np.concatenate([np.array(each.samples_s[_cut(each) :] or each.samples_s) for each in processes])
    least, middle, most, nearly_all = (float(value) for value in np.quantile(kept, (0.0, 0.5, 0.9, 0.995)))
    low, high = min((least, *two_ends)), max(min(nearly_all, TALLEST * middle), most, *two_ends)
    missing = max(0.0, LEAST_SPAN * estimate.center_s - (high - low))
    margin = 0.08 * (high - low + missing)
    window = low, high = low - missing / 2 - margin, high + missing / 2 + margin
    if not high - low < FURTHEST * estimate.center_s:
        return None
    ends: Rows = []  # the first seconds and the last, each with its own step time
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
    about = ". ".join(filter(None, (_about(estimate, processes), figures.sustained(result))))
    axis = {"tickCount": 3, "title": unit, "domain": False, "ticks": False}
    place: Spec = {"scale": {"domain": [low / scale, high / scale], "nice": False}, "axis": axis}
    layers = _layers(
        field("sample", scale={"domain": [0, count], "nice": False}, axis=None), place, series.color, about
    )
    made = chart(layers, _HEIGHT, charts.WIDTH - 48, rows=rows, cuts=cuts, seams=seams, ends=ends)
    title, note = full_name(result.case), f"{series.name}. {about}" if several else about
    return Panel(title, made, f"Step times of {title}", note, figures.grade_cell(result), rows)


def _layers(x: Spec, place: Spec, shade: str, about: str) -> list[Spec]:
    """The range of each column with its middle in it; what was cut as warm-up is shaded."""
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


def _about(estimate: Estimate, processes: list[Estimate]) -> str:
    longest, shortest = (pick(pick(each.samples_s) for each in processes) for pick in (max, min))
    blocks = f" of {estimate.block_size} steps" if estimate.block_size > 1 else ""
    several = f" in {len(processes)} processes" if len(processes) > 1 else ""
    return (
        f"{sum(len(each.samples_s) for each in processes)} samples{blocks}{several}, "
        f"{sum(map(_cut, processes))} cut as warm-up; from {units.duration(max(shortest, 0.0))} to "
        f"{units.duration(longest)}, typically {figures.step_time(estimate)}; "
        f"first step {units.duration(estimate.first_step_s)}"
    )


def _cut(process: Estimate) -> int:
    return min(max(process.warmup_cut, 0), len(process.samples_s))
