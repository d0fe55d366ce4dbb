"""Comparisons of runs as text: a table, Markdown, CSV or JSON. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchmark.analyze.comparison import Comparison, Pair
from torchmark.analyze.pairing import Unpaired
from torchmark.errors import UnknownName
from torchmark.records import Result, Run, RunHeader
from torchmark.report import FORMATS, csv, json, ratios, units
from torchmark.report.headings import machine_line, title
from torchmark.report.markdown import code, escape, table
from torchmark.report.text import clean_run, clean_values

CSV_COLUMNS = (
    "a", "a_label", "b", "b_label", "case", "partner", "verdict", "speed", "speed_low", "speed_high", "ratio", "low",
    "high", "p_value", "a_step_s", "b_step_s", "basis", "differences", "not_compared", "reason", "visible", "assumed",
    "flaws",
)  # fmt: skip


def render_comparisons(
    comparisons: Sequence[Comparison],
    runs: Sequence[Run],
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
) -> str:
    """In one of FORMATS. There is one comparison inside each run, or one of each later run with the first."""
    from torchmark.report.comparison_table import render_comparison_table

    comparisons = msgspec.convert(clean_values(msgspec.to_builtins(tuple(comparisons))), tuple[Comparison, ...])
    runs = [clean_run(run) for run in runs]
    match format:
        case "table":
            return render_comparison_table(comparisons, runs, width, color)
        case "md":
            return _markdown(comparisons, runs)
        case "csv":
            return csv.table(CSV_COLUMNS, _csv_rows(comparisons, runs))
        case "json":
            return json.pretty({"runs": [run.header for run in runs], "comparisons": comparisons})
        case "jsonl":
            rows = [row for comparison in comparisons for row in (*comparison.pairs, *comparison.unpaired)]
            return json.lines(rows)
    raise UnknownName("format", format, FORMATS)


def _sides(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> list[tuple[RunHeader, RunHeader]]:
    """The runs of each comparison: twice the same one where it is inside a run."""
    headers = [run.header for run in runs]
    if len(comparisons) == len(headers):
        return [(header, header) for header in headers]
    return [(headers[0], other) for other in headers[1:]]


def _csv_rows(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> list[list[csv.Cell]]:
    rows = []
    for comparison, (a, b) in zip(comparisons, _sides(comparisons, runs), strict=True):
        common: dict[str, csv.Cell] = {"a": a.id, "a_label": a.label, "b": b.id, "b_label": b.label}
        rows += [common | _pair_cells(pair) for pair in comparison.pairs]
        rows += [common | _unpaired_cells(each) for each in comparison.unpaired]
    return [[cells.get(column) for column in CSV_COLUMNS] for cells in rows]


def _pair_cells(pair: Pair) -> dict[str, csv.Cell]:
    return {
        "case": pair.case,
        "partner": pair.b.case.text,
        "verdict": pair.verdict,
        "speed": 1 / pair.ratio,
        "speed_low": 1 / pair.high if pair.high else None,
        "speed_high": 1 / pair.low if pair.low else None,
        "ratio": pair.ratio,
        "low": pair.low,
        "high": pair.high,
        "p_value": pair.p_value,
        "a_step_s": _step_s(pair.a),
        "b_step_s": _step_s(pair.b),
        "basis": pair.basis,
        "differences": "; ".join(each.text for each in pair.differences),
        "visible": pair.visible,
        "assumed": pair.assumed,
        "flaws": "; ".join(each.cause for each in pair.flaws),
    }


def _unpaired_cells(each: Unpaired) -> dict[str, csv.Cell]:
    return {
        "case": each.case,
        "partner": each.b.case.text if each.a and each.b else None,
        "a_step_s": _step_s(each.a),
        "b_step_s": _step_s(each.b),
        "not_compared": each.kind,
        "reason": each.reason,
    }


def _step_s(result: Result | None) -> float | None:
    return result.estimate.center_s if result and result.estimate else None


def _markdown(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> str:
    inside = len(comparisons) == len(runs)
    parts = [] if inside else ["  \n".join(_run_line(ratios.letter(n), run) for n, run in enumerate(runs))]
    for sheet, run in zip(ratios.sheets(comparisons, runs), runs if inside else runs[1:], strict=True):
        if inside:
            parts.append(_run_line("", run))
        elif len(comparisons) > 1:
            parts.append(f"**{sheet.b.title} against A**")
        if sheet.shared:
            parts.append(escape(" · ".join(("Every pair", *sheet.shared))))
        if sheet.comparison.pairs:
            parts.append(_markdown_table(sheet))
        parts += ["\n".join(notes) for notes in (_mean_lines(sheet), _left_out_lines(sheet)) if notes]
    letters = ratios.flaw_letters(comparisons)
    parts.append("\n".join(escape(f"- [{letter}] {cause}") for cause, letter in letters.items()))
    parts.append(ratios.resolution(comparisons))
    return "\n\n".join(part for part in parts if part) + "\n"


def _run_line(name: str, run: Run) -> str:
    about = " · ".join((*title(run), machine_line(run.header.machine)))
    return f"**{name}** {escape(about)}" if name else f"**{escape(about)}**"


def _markdown_table(sheet: ratios.Sheet) -> str:
    columns = ("case", sheet.a.title, sheet.b.title, "speed", ratios.interval_title(sheet), "verdict", "differs in")
    rows = []
    for pair in sheet.comparison.pairs:
        own = ratios.own_remarks(pair, sheet)
        if sheet.shown_axis:
            own.insert(0, f"{sheet.shown_axis} {ratios.axis_values(pair, sheet.shown_axis)}")
        speed = ratios.speed(pair) + ratios.flaw_marks(pair, sheet.letters)
        figures = (*ratios.both_figures(pair), speed, ratios.interval(pair))
        words = (pair.verdict, ", ".join(own) or units.NOTHING)
        rows.append([code(ratios.case_name(pair.a, sheet)), *map(escape, (*figures, *words))])
    return table([*map(escape, columns)], rows, right=range(1, 5))


def _mean_lines(sheet: ratios.Sheet) -> list[str]:
    found = ratios.means(sheet.comparison)
    return [
        escape(f"- geometric mean of {name}: {ratios.speed(mean)}")
        + (escape(f" ({ratios.interval(mean)}), {mean.verdict}") if mean.low is not None else "")
        for name, mean in found
    ]


def _left_out_lines(sheet: ratios.Sheet) -> list[str]:
    return [
        f"- not compared, {kind}: {', '.join(map(code, names))}: {escape(reason)}"
        for kind, reason, names in ratios.left_out(sheet.comparison, sheet.names)
    ]
