"""The score card: one run as a picture that can be posted, in plain colours that every viewer draws alike."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from torchmark.analyze.comparison import compare_runs
from torchmark.records import Result, Run
from torchmark.report import figures, units
from torchmark.report.charts.series import is_measured, machine_name, run_names, variant_name
from torchmark.report.headings import moment
from torchmark.report.page import GENERATOR, fill
from torchmark.report.text import clean_run, shorten

# What people ask about first; other workloads follow in the order in which they were measured.
HEADLINES = ("resnet50", "bert-classify", "llm-decode", "stable-diffusion", "vit-train", "mlp", "lstm", "matmul")
TILES = 8
_COLORS = {"stable": "#1a6f3c", "contended": "#b3261e", "throttled": "#b3261e", "as-published": "#5a616b"}
_MIXED = "#8a5a00"


class Tile(Struct, frozen=True):
    """One headline figure, with how sure it is."""

    name: str
    variant: str
    number: str
    unit: str
    margin: str
    verdict: str
    color: str
    ratio: str  # against the baseline, where there is one and it could be compared


def render_card(run: Run, version: str, baseline: Run | None = None) -> str:
    """An SVG of 1200 by 630, the size that posts are shown in."""
    run = clean_run(run)
    baseline = clean_run(baseline) if baseline else None
    name = machine_name(run)
    return fill(
        "card.svg.jinja",
        name=shorten(name, 44),
        size=54 if len(name) <= 30 else 40,
        facts=shorten(" · ".join(_facts(run)), 90),
        tiles=_tiles(run, baseline),
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


def _tiles(run: Run, baseline: Run | None) -> list[Tile]:
    pairs = compare_runs(baseline, run).pairs if baseline else ()
    factors = {pair.b.case.text: units.factor(1 / pair.ratio) for pair in pairs}
    return [_tile(result, factors.get(result.case.text, "")) for result in headline_results(run)[:TILES]]


def _tile(result: Result, ratio: str) -> Tile:
    found = result.estimate
    assert found is not None
    rate = units.rate(figures.step_rate(result), result.work.unit if result.work else "step")
    number, _, unit = rate.partition(" ")
    return Tile(
        name=shorten(result.case.workload, 26),
        variant=shorten(variant_name(result.case), 34),
        number=number,
        unit=shorten(unit, 18),
        margin="" if figures.is_published(result) else figures.margin(found),
        verdict=found.verdict,
        color=_COLORS.get(found.verdict, _MIXED),
        ratio=ratio,
    )


def _facts(run: Run) -> Iterator[str]:
    machine = run.header.machine
    if machine.physical_cores:
        yield f"{machine.physical_cores} core{'s' if machine.physical_cores != 1 else ''}"
    if machine.memory_gib:
        yield f"{machine.memory_gib} GiB"
    yield from (
        part for part in (machine.os, f"torch {machine.torch}" if machine.torch else "", run.header.label) if part
    )
