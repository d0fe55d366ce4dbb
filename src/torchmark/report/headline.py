"""The headline of a run: its speed in each area between published machines, as text and as a picture."""

from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Any

from torchmark.analyze.comparison import compare_runs
from torchmark.analyze.grades import is_published
from torchmark.analyze.headline import Area, Block, Headline, Neighbour, times
from torchmark.records import Machine, Result, Run
from torchmark.report import document as doc
from torchmark.report import figures, names, units
from torchmark.report.charts import is_measured
from torchmark.report.html import GENERATOR, fill
from torchmark.report.text import clean_record, shorten

# Asked about most; other workloads follow in the order of the run.
HEADLINES = ("resnet50", "bert-classify", "llm-decode", "stable-diffusion", "vit-train", "mlp", "lstm", "matmul")
TILES = 6
FAILURES = 6  # that a card without a figure names
_INSIDE = 304  # pixels of a tile between its margins


def headline_blocks(headline: Headline, machine: Machine, named: bool = True) -> Iterator[doc.Block]:
    """A table and summary for each device, then the next commands; `named`: with the machine above."""
    marks = footnotes(headline.blocks)
    for areas in headline.blocks:
        device = "CPU" if areas.device == "cpu" else areas.device
        about = filter(None, (names.plain_model(names.machine_line(machine, areas.device)), f"{device} float32"))
        yield from [doc.Title(" · ".join(about))] if named or len(headline.blocks) > 1 else []
        faster, slower = any(area.faster for area in areas.areas), any(area.slower for area in areas.areas)
        columns = [  # the first three always fit
            doc.Column("area", "name", of="name"),
            doc.Column("this machine", "name", of=figure),
            doc.Column("±", "name", of=lambda area: doc.Cell(margin(area), doc.word(area.grade.word).look)),
            doc.Column("grade", "name", drop=3, of=lambda area: doc.judged(area.grade.text)),
            doc.Column("next faster", "name", 1, shown=faster, of=lambda area: neighbour(area.faster, marks)),
            doc.Column("next slower", "name", 2, shown=slower, of=lambda area: neighbour(area.slower, marks)),
        ]
        notes = sorted((marks[flaw], flaw) for flaw in footnotes([areas]))
        yield doc.table(columns, areas.areas, footnotes=notes, rule=False)
        sure = headline.confidence and areas is headline.blocks[-1]
        confidence = f"Confidence: {headline.grade}. {headline.confidence}" if sure else ""
        yield doc.Lines([f"In short: {areas.in_short}" if areas.in_short else "", confidence])
    commands = doc.Lines([f"{each.purpose}: {each.command}" for each in headline.commands])
    yield doc.Section("", [commands], only="terminal")  # they may name a folder of this machine


def footnotes(blocks: Sequence[Block]) -> dict[str, str]:
    """The known flaws of published figures, each with its mark."""
    others = (other for areas in blocks for area in areas.areas for other in (area.faster, area.slower))
    flaws = dict.fromkeys(flaw for other in others if other for flaw in other.flaws)
    return {flaw: f"[{letter}]" for flaw, letter in zip(flaws, ascii_lowercase, strict=False)}


def figure(area: Area) -> str:
    """14.8 image/s, 1.91 ms, 65.0 s MNIST"""
    if area.figure == "rate":
        return units.rate(area.value, area.unit)
    return units.duration(area.value) + (f" {area.unit}" if area.figure == "job" else "")


def margin(area: Area) -> str:
    """±4.2%; ±? where nothing is known about repeats."""
    return "±?" if area.margin is None else units.relative(area.margin)


def neighbour(other: Neighbour | None, marks: dict[str, str]) -> str:
    """Xeon Gold 2.3×, with the marks of its known flaws"""
    if other is None:
        return "—"
    said = "similar" if other.similar else times(other.ratio)
    return " ".join([other.name, said, *(marks[flaw] for flaw in other.flaws)])


def render_card(run: Run, version: str, baseline: Run | None = None, headline: Headline | None = None) -> str:
    """An SVG of 1200 by 630: areas of the headline's first device, else first results."""
    run, headline = clean_record(run), headline and clean_record(headline)
    baseline = baseline and clean_record(baseline)
    machine = run.header.machine
    of_cpu = headline and headline.blocks[0].device == "cpu"
    name = (names.plain_model(machine.cpu) if of_cpu else "") or names.machine_name(run)
    cores, memory, torch = names.machine_parts(machine)
    tiles = _tiles(run, baseline, headline)
    failed = [each for each in run.results if each.status != "ok"]
    reasons = [f"{each.case.task}: {each.status}, {each.reason or 'no reason was given'}" for each in failed]
    failures = ["Nothing was measured", *(shorten(text, 100) for text in reasons[:FAILURES])]
    failures += [f"and {len(reasons) - FAILURES} more"] if len(reasons) > FAILURES else []
    return fill(
        "card.svg.jinja",
        name=shorten(name, 44),
        size=54 if len(name) <= 30 else 40,
        facts=shorten(" · ".join(filter(None, (cores, memory, machine.os, torch, run.header.label))), 90),
        tiles=tiles,
        failures=[] if tiles else failures,
        notes="  ".join(f"{mark} {flaw}" for flaw, mark in footnotes(headline.blocks if headline else ()).items()),
        baseline=shorten(names.run_names([baseline])[0], 60) if baseline else "",
        footer=f"torchmark {version} · {shorten(run.header.id, 40)} · {shorten(names.moment(run.header.created), 30)}",
        interval=figures.interval_note(run),
        generator=f"{GENERATOR} {version}",
    )


def draw_png(card: str) -> bytes:
    import vl_convert

    return vl_convert.svg_to_png(card, scale=1)


def headline_results(run: Run) -> list[Result]:
    """The first of each workload, in the order of HEADLINES."""
    first: dict[str, Result] = {}
    for result in run.results:
        if is_measured(result) and figures.step_rate(result):
            first.setdefault(result.case.workload, result)
    return sorted(first.values(), key=lambda result: (*HEADLINES, result.case.workload).index(result.case.workload))


def _tiles(run: Run, baseline: Run | None, headline: Headline | None) -> list[dict[str, Any]]:
    pairs = compare_runs(baseline, run).pairs if baseline else ()
    factors = {pair.b.case.text: units.factor(1 / pair.ratio) for pair in pairs}
    marks = footnotes(headline.blocks if headline else ())
    shown: list[tuple[str, str, str, str, str, list[str]]] = []
    for area in headline.blocks[0].areas if headline else ():
        sides = {"faster": area.faster, "slower": area.slower}
        lines = [f"{side}: {neighbour(other, marks)}" for side, other in sides.items() if other]
        shown.append((area.name, figure(area), margin(area), area.grade.text, area.case, lines))
    for result in () if headline else headline_results(run)[:TILES]:
        reach = "" if is_published(result) else figures.margin(result.estimate)
        file, _, name = result.case.workload.rpartition(":")  # of an own model
        lines = [names.variant_name(result.case), *([file] if file else [])]
        shown.append((name, figures.rate(result), reach, figures.grade_text(result), result.case.text, lines))
    tiles = []
    for name, rate, reach, grade, case, lines in shown:
        number, _, unit = rate.partition(" ")
        tile = {"name": _fit(name, 20), "number": number, "unit": _fit(unit, 20, _INSIDE - 34 * _breadth(number + " "))}
        tile |= {"margin": reach, "ratio": factors.get(case, ""), "grade": grade}
        tiles.append(tile | {"color": doc.COLORS[doc.word(grade).look], "lines": [_fit(line, 15) for line in lines]})
    return tiles


def _fit(text: str, size: float, room: float = _INSIDE) -> str:
    shorter = (shorten(text, length) for length in range(len(text), 1, -1))
    return next((fitted for fitted in shorter if _breadth(fitted) * size <= room), shorten(text, 1))


def _breadth(text: str) -> float:
    """Relative to the font size, in the widest likely font."""
    narrow, broad = " ilj.,:;'|!·/()[]", "MWmw@%—…"
    return sum(0.42 if each in narrow else 1.0 if each in broad or ord(each) > 0x2FF else 0.7 for each in text)
