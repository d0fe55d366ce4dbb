"""The score card: one run as a picture that can be posted, in plain colours that every viewer draws alike."""

from __future__ import annotations

from typing import Any

from torchmark.analyze.comparison import compare_runs
from torchmark.analyze.grades import is_published
from torchmark.analyze.headline import Area, Headline
from torchmark.analyze.wording import counted
from torchmark.records import Result, Run
from torchmark.report import figures, units
from torchmark.report import headline as areas
from torchmark.report.charts.drawing import is_measured
from torchmark.report.document import COLORS, word
from torchmark.report.figures import grade_text
from torchmark.report.html import GENERATOR, fill
from torchmark.report.names import machine_name, moment, plain_model, run_names, variant_name
from torchmark.report.text import clean_record, shorten

# What people ask about first; other workloads follow in the order in which they were measured.
HEADLINES = ("resnet50", "bert-classify", "llm-decode", "stable-diffusion", "vit-train", "mlp", "lstm", "matmul")
TILES = 6
FAILURES = 6  # that a card without a figure names
_INSIDE = 304  # pixels of a tile between its margins
# How broad characters are, relative to the font size, in the broadest of the fonts that a viewer may take.
_NARROW, _BROAD = frozenset(" ilj.,:;'|!·/()[]"), frozenset("MWmw@%—…")


def render_card(run: Run, version: str, baseline: Run | None = None, headline: Headline | None = None) -> str:
    """An SVG of 1200 by 630, the size that posts are shown in. Its tiles are the areas of the headline's first device;
    without a headline they are the run's first results."""
    run, headline = clean_record(run), headline and clean_record(headline)
    baseline = clean_record(baseline) if baseline else None
    name = _machine(run, headline)
    tiles = _tiles(run, baseline, headline)
    return fill(
        "card.svg.jinja",
        name=shorten(name, 44),
        size=54 if len(name) <= 30 else 40,
        facts=shorten(" · ".join(filter(None, _facts(run))), 90),
        tiles=tiles,
        failures=[] if tiles else _failures(run),
        notes="  ".join(f"{mark} {flaw}" for flaw, mark in areas.footnotes(headline).items()) if headline else "",
        baseline=shorten(run_names([baseline])[0], 60) if baseline else "",
        footer=f"torchmark {version} · {shorten(run.header.id, 40)} · {shorten(moment(run.header.created), 30)}",
        interval=figures.interval_note(run) or "",
        generator=f"{GENERATOR} {version}",
    )


def draw_png(card: str) -> bytes:
    """The same picture in pixels."""
    import vl_convert

    return vl_convert.svg_to_png(card, scale=1)


def headline_results(run: Run) -> list[Result]:
    """One result for each workload, its first, those that people ask about most in front."""
    first: dict[str, Result] = {}
    for result in run.results:
        if is_measured(result) and figures.step_rate(result):
            first.setdefault(result.case.workload, result)
    order = {name: place for place, name in enumerate(HEADLINES)}
    return sorted(first.values(), key=lambda result: order.get(result.case.workload, len(order)))


def _machine(run: Run, headline: Headline | None) -> str:
    """The device that the tiles are about."""
    if headline and headline.blocks[0].device == "cpu":
        return plain_model(run.header.machine.cpu) or machine_name(run)
    return machine_name(run)


def _tiles(run: Run, baseline: Run | None, headline: Headline | None) -> list[dict[str, Any]]:
    pairs = compare_runs(baseline, run).pairs if baseline else ()
    factors = {pair.b.case.text: units.factor(1 / pair.ratio) for pair in pairs}
    if headline:
        marks = areas.footnotes(headline)
        return [_area_tile(area, factors.get(area.case, ""), marks) for area in headline.blocks[0].areas]
    return [_result_tile(result, factors.get(result.case.text, "")) for result in headline_results(run)[:TILES]]


def _area_tile(area: Area, ratio: str, marks: dict[str, str]) -> dict[str, Any]:
    number, _, unit = areas.figure(area).partition(" ")
    both = (("faster", area.faster), ("slower", area.slower))
    lines = [f"{side}: {areas.neighbour(other, marks)}" for side, other in both if other]
    return _fitted(area.name, number, unit, areas.margin(area), area.grade.text, ratio, lines)


def _result_tile(result: Result, ratio: str) -> dict[str, Any]:
    assert result.estimate is not None
    rate = units.rate(figures.step_rate(result), result.work.unit if result.work else "step")
    number, _, unit = rate.partition(" ")
    margin = "" if is_published(result) else figures.margin(result.estimate)
    file, _, name = result.case.workload.rpartition(":")  # of an own model
    lines = [variant_name(result.case), *([file] if file else [])]
    return _fitted(name, number, unit, margin, grade_text(result), ratio, lines)


def _fitted(name: str, number: str, unit: str, margin: str, grade: str, ratio: str, lines: list[str]) -> dict[str, Any]:
    """What the template shows of a tile, every text as long as its place; `ratio` is to the baseline."""
    unit = _fit(unit, 20, _INSIDE - 34 * _breadth(number + " "))
    tile = {"name": _fit(name, 20), "number": number, "unit": unit, "margin": margin, "ratio": ratio}
    return tile | {"grade": grade, "color": COLORS[word(grade).look], "lines": [_fit(line, 15) for line in lines]}


def _fit(text: str, size: float, room: float = _INSIDE) -> str:
    """As much of a text as there is room for, in pixels."""
    fitted = text
    while len(fitted) > 1 and _breadth(fitted) * size > room:
        fitted = shorten(text, len(fitted) - 1)
    return fitted


def _breadth(text: str) -> float:
    return sum(0.42 if each in _NARROW else 1.0 if each in _BROAD or ord(each) > 0x2FF else 0.7 for each in text)


def _failures(run: Run) -> list[str]:
    """What a card says that has no figure to show."""
    failed = [result for result in run.results if result.status != "ok"]
    found = [f"{each.case.task}: {each.status}, {each.reason or 'no reason was given'}" for each in failed]
    more = [f"and {len(found) - FAILURES} more"] if len(found) > FAILURES else []
    return ["Nothing was measured", *(shorten(text, 100) for text in found[:FAILURES]), *more]


def _facts(run: Run) -> list[str | None]:
    machine = run.header.machine
    cores = counted(machine.physical_cores, "core") if machine.physical_cores else ""
    memory = f"{machine.memory_gib} GiB" if machine.memory_gib else ""
    return [cores, memory, machine.os, f"torch {machine.torch}" if machine.torch else "", run.header.label]
