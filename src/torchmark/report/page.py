"""The page about one or more runs: headline, findings, speeds, comparisons, all results, caveats and machines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices, Scaling, find_scaling
from torchmark.analyze.findings import find_all
from torchmark.analyze.headline import Headline
from torchmark.analyze.wording import counted
from torchmark.errors import UsageError
from torchmark.records import DeviceInfo, Remark, Result, Run, parse_case
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.charts import bars, curves, roofline, strips
from torchmark.report.charts.drawing import Chart, Series, draw, find_series
from torchmark.report.headline import headline_blocks
from torchmark.report.names import (
    Names,
    full_name,
    machine_name,
    moment,
    plain_model,
    run_names,
    shared_place,
    variant_name,
)
from torchmark.report.results import cautions, failures, grade_cell, results_table
from torchmark.report.run import conclusion, scaling_note
from torchmark.report.text import clean_record, shorten

# A page must stay small enough to be sent around, whatever it is made of.
MOST_CARDS = 48  # in a section
_SECTION_BYTES = 200_000  # of charts in a section
_MOST_NOTES = 60
_MOST_RATIOS = 60  # in a card
_MOST_ROWS = 1000  # in the table
_TITLE = 80
_REASON = 160
_SHOWN = 30  # cases of a note
_NAMED = 3  # machines that are named before they are counted
_LONGEST_COMMAND = 10_000
_MEASURING = ("run", "limits", "tune", "fit", "ab", "replicate")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.,:+=%-]*")  # no shell takes it for more, and it leads to no folder
_INTERVALS = "Lines are 95% intervals; a hollow point is inconclusive."
_ROOFLINE = (
    "Lines are the highest rates measured on the device; a point on a line has reached that limit. Work on the "
    "left is limited by memory bandwidth, work on the right by arithmetic. Points far below the lines are limited "
    "by something else, such as launch overhead or data loading. Unlabelled points show their names on hover."
)
_STEPS = (
    "Samples in the order they were taken. Shaded samples were discarded as warm-up; a slope indicates drift or "
    "heating. In sustained runs, two bars mark the first and the last seconds."
)

Headlines = Sequence[Headline | None]
CardMaker = Callable[[], doc.Card | None]


class _Page:
    """What all sections need: the runs, their names and series, and how a chart is drawn."""

    def __init__(self, runs: Sequence[Run], on_chart: Callable[[], object]) -> None:
        self.runs = [clean_record(run) for run in runs]
        self.names = run_names(self.runs)
        self.series = find_series(self.runs)
        self.several = len(self.series) > 1
        self._on_chart = on_chart

    def drawn(self, chart: Chart, about: str) -> str:
        drawing = draw(chart, about)
        self._on_chart()
        return drawing

    def label(self, series: Series, rest: str = "") -> str:
        """The series, where there are several, before anything else."""
        return f"{series.name}{rest}" if self.several else ""


def page_document(
    runs: Sequence[Run],
    version: str,
    baseline: int = 0,
    on_chart: Callable[[], object] = lambda: None,
    prices: Prices | None = None,
    headlines: Headlines = (),
) -> doc.Document:
    """The page about all runs. `baseline` is the index of the run that the others are compared with.
    With prices it has a table of costs. A headline opens the page where only one run has one."""
    page = _Page(runs, on_chart)
    return doc.Document(lambda: _blocks(page, baseline, prices, headlines), version=version)


def _blocks(
    page: _Page, baseline: int, prices: Prices | None, headlines: Sequence[Headline | None]
) -> Iterator[doc.Block]:
    labels = [run.header.label for run in page.runs if run.header.label]
    kicker = shorten(" and ".join(labels), _TITLE) if len(labels) <= 2 else ""
    yield doc.Title(shorten(_title(page.runs), _TITLE), _facts(page, baseline), kicker)
    known = [(found, run) for found, run in zip(headlines, page.runs, strict=False) if found]
    if len(known) == 1:
        [(headline, run)] = known
        blocks = [*headline_blocks(replace(headline, commands=()), run.header.machine, named=False)]
        yield doc.Section("Headline", blocks, anchor="headline")
    yield from _findings(page)
    yield from _speed(page)
    yield from _against(page, baseline)
    yield from _growth(page)
    roofs = [partial(_roof_card, page, panel) for panel in roofline.find_rooflines(page.series)]
    yield from _cards("roofline", "Roofline", _ROOFLINE, roofs)
    yield _results(page)
    yield from _costs(page, prices) if prices else ()
    sampled = [(each, result) for each in page.series for result in each.results if strips.has_samples(result)]
    steps = [partial(_strip_card, page, each, result) for each, result in sampled]
    yield from _cards("steps", "Step times", _STEPS, steps)
    yield from _caveats(page)
    yield _machines(page)


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(machine_name(run) for run in runs))
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(runs) - 1} others"


def _facts(page: _Page, baseline: int) -> list[str]:
    if len(page.runs) > 1:
        count = sum(len(run.results) for run in page.runs)
        return [f"{len(page.runs)} runs", f"{count} results", f"baseline: {page.names[baseline]}"]
    header = page.runs[0].header
    facts = [
        counted(header.machine.physical_cores, "core") if header.machine.physical_cores else "",
        f"{header.machine.memory_gib} GiB memory" if header.machine.memory_gib else "",
        f"torch {header.machine.torch}" if header.machine.torch else "",
        moment(header.created),
    ]
    return [shorten(fact, _TITLE) for fact in facts if fact]


def _findings(page: _Page) -> list[doc.Block]:
    named = [
        run if run.header.label else replace(run, header=replace(run.header, label=name))
        for run, name in zip(page.runs, page.names, strict=True)
    ]
    several = len(named) > 1
    texts = [f"{run.header.label}: " * several + line for run in named for line in conclusion(run)]
    remarks = [Remark("", text) for text in (*texts, *(found.cause for found in find_all(named)))]
    return [doc.Section("Findings", [doc.Remarks(remarks)], anchor="findings")] if remarks else []


def _speed(page: _Page) -> list[doc.Block]:
    cards = [partial(_speed_card, page, panel) for panel in bars.find_speeds(page.series)]
    lead = "Longer bars are faster. Thin lines are 95% intervals. Pale bars are graded poor."
    legend = [(each.name, each.color) for each in page.series] if page.several else []
    return _cards("speed", "Speed", lead, cards, legend)


def _speed_card(page: _Page, panel: bars.Panel) -> doc.Card:
    """One figure alone has no length to be compared with: it is written large instead."""
    title = shorten(panel.title, _TITLE)
    if len(panel.bars) == 1:
        bar = panel.bars[0]
        note = shorten(" · ".join(filter(None, (panel.note, bar.label))), _TITLE)
        grade = doc.judged(bar.grade) if bar.grade else None
        return doc.Card(title, figure=bar.figure, margin=bar.margin, note=note, grade=grade)
    return doc.Card(title, page.drawn(bars.draw_speeds(panel), f"Speed of {title}"), note=panel.note)


def _against(page: _Page, baseline: int) -> list[doc.Block]:
    panels = bars.find_ratios(page.runs, baseline)
    if not panels:
        return []
    domain = bars.shared_domain([bar for panel in panels for bar in panel.bars])
    cards = [partial(_ratio_card, page, panel, domain) for panel in panels]
    who = page.names[1 - baseline] if len(page.runs) == 2 else "each run"
    lead = f"Speed of {who} relative to {page.names[baseline]}: right of 1× is faster. {_INTERVALS}"
    return _cards("against", f"Compared with {page.names[baseline]}", lead, cards)


def _ratio_card(page: _Page, panel: bars.Panel, domain: Sequence[float]) -> doc.Card:
    title = shorten(panel.title, _TITLE)
    chart = bars.draw_ratios(panel.bars[:_MOST_RATIOS], domain)
    return doc.Card(title, page.drawn(chart, f"Relative speed: {title}"), note=panel.note)


def _growth(page: _Page) -> list[doc.Block]:
    """Speed over whatever was swept: a parameter, threads, workers."""
    cards: list[CardMaker] = [partial(_sweep_card, page, panel) for panel in curves.find_curves(page.series)]
    scalings = [(each, found) for each in page.series for found in find_scaling(tuple(each.results))]
    cards += [partial(_scaling_card, page, each, found) for each, found in scalings]
    lead = "Speed at each value that was measured."
    lead += " The dashed line is the speed of workers that lose nothing to each other." if scalings else ""
    return _cards("growth", "Diminishing returns", lead, cards)


def _sweep_card(page: _Page, panel: curves.Panel) -> doc.Card:
    title = shorten(panel.title, _TITLE)
    axes = shorten(f"{panel.unit}/s by {panel.parameter}", _TITLE)
    return doc.Card(title, page.drawn(curves.draw_curves(panel), f"{title}: {axes}"), note=axes)


def _scaling_card(page: _Page, series: Series, found: Scaling) -> doc.Card:
    title = shorten(found.case, _TITLE)
    note = page.label(series, ": ") + f"{shorten(found.unit, 24)}/s by workers. {scaling_note(found)}"
    return doc.Card(title, page.drawn(curves.draw_scaling(found, series.color), f"Scaling of {title}"), note=note)


def _roof_card(page: _Page, panel: roofline.Panel) -> doc.Card:
    title = f"Roofline of {panel.title}" if page.several else "Roofline"
    return doc.Card(title, page.drawn(roofline.draw_roofline(panel), title), note=panel.about)


def _strip_card(page: _Page, series: Series, result: Result) -> doc.Card | None:
    strip = strips.find_strip(result)
    if strip is None:
        return None
    title = full_name(result.case)
    drawing = page.drawn(strips.draw_strip(strip, series.color), f"Step times of {title}")
    return doc.Card(title, drawing, note=page.label(series, ". ") + strip.about, grade=grade_cell(result))


def _results(page: _Page) -> doc.Section:
    found = [(result, each.name) for each in page.series for result in each.results]
    if not found:
        return doc.Section("Results", [doc.Lines(["No case was finished."])], anchor="results")
    left = f" Showing the first {_MOST_ROWS} of {len(found)}." if len(found) > _MOST_ROWS else ""
    caption = f"All results with their 95% intervals.{left}"
    shown = found[:_MOST_ROWS]
    owners = {id(result): doc.Cell(name) for result, name in shown}
    machine = (lambda result: owners[id(result)]) if page.several else None
    table = results_table([result for result, _ in shown], _case, machine, caption)
    has_figures = any(result.status == "ok" and result.estimate for result, _ in found)
    lead = "" if has_figures else "No case gave a figure. The last column says why."
    chips = doc.Lines(_grade_counts([result for result, _ in found]))
    return doc.Section("Results", [*([chips] if chips.lines else []), table], lead, "results")


def _case(result: Result) -> doc.Cell:
    name, order = shorten(result.case.workload, _REASON), shorten(result.case.text, _REASON)
    return doc.Cell(name, sort=order, note=variant_name(result.case))


def _grade_counts(results: Sequence[Result]) -> list[doc.Cell]:
    """How many results have which grade or failed, the best first."""
    words = Counter(text.partition(":")[0] for text in map(figures.grade_text, results) if text)
    order = sorted(words, key=lambda text: doc.word(text).rank)
    return [replace(doc.judged(text), text=f"{words[text]} {text}") for text in order]


def _costs(page: _Page, prices: Prices) -> list[doc.Block]:
    rows: list[list[doc.Cell]] = []
    for each in page.series:
        who = [doc.Cell(each.name)] if page.several else []
        for result, cost in figures.costs(tuple(each.results), prices):
            values = [_price(value) for value in (cost.million_items, cost.epoch, cost.job)]
            rows.append([doc.Cell(full_name(result.case)), *who, *values])
    notes = dict.fromkeys(figures.cost_note(run.results, prices) for run in page.runs)
    lead = f"{figures.cost_heading(prices)}. {' '.join(filter(None, notes))}"
    columns = [doc.Column("case", "case"), *([doc.Column("machine")] * page.several)]
    columns += [doc.Column(title, "figure") for title in ("per million items", "per epoch", "whole job")]
    table = doc.Table(columns, rows[:_MOST_ROWS], caption="Cost of each result.")
    return [doc.Section("Cost", [table], lead, "cost")] if rows else []


def _price(value: float | None) -> doc.Cell:
    if value is None or not math.isfinite(value):
        return doc.Cell(units.NOTHING)
    return doc.Cell(units.digits(value), sort=float(f"{value:.6g}"))


def _caveats(page: _Page) -> list[doc.Block]:
    notes = caveats(page.runs, page.names if len(page.runs) > 1 else [""])
    more = len(notes.remarks) - _MOST_NOTES
    left = f"{more} more not shown." if more > 0 else ""
    shown = doc.Remarks(notes.remarks[:_MOST_NOTES], where=notes.where[:_MOST_NOTES])
    return [doc.Section("Caveats", [shown], left, "caveats")] if notes.remarks else []


def caveats(runs: Sequence[Run], names: Sequence[str]) -> doc.Remarks:
    """Failures, then cautions, then file problems. Equal ones of several machines are one remark."""
    groups: dict[tuple[str, str], list[tuple[str, Remark]]] = {}
    found: list[tuple[str, Remark]] = []
    for run, name in zip(runs, names, strict=True):
        found += [(name, each) for each in failures(run.results, Names(shared_place(run.results)).of).remarks]
    for run, name in zip(runs, names, strict=True):
        found += [(name, each) for each in cautions(run, Names(shared_place(run.results)))]
    for name, each in found:
        groups.setdefault((each.kind, each.fix), []).append((name, each))
    remarks = [_together(alike) for alike in groups.values()]
    where = [_where(alike) for alike in groups.values()]
    for run, name in zip(runs, names, strict=True):
        remarks += [Remark("file", shorten(problem)) for problem in run.problems]
        where += [name] * len(run.problems)
    return doc.Remarks(remarks, where=where)


def _together(alike: Sequence[tuple[str, Remark]]) -> Remark:
    """The first as an example; one line per machine, or per case where their causes differ."""
    first = alike[0][1]
    varied = len({each.cause for _, each in alike}) > 1
    lines = [*(_by_case(alike) if varied else _by_machine(alike))]
    cause = "For example: " * varied + shorten(first.cause)
    return Remark(shorten(first.kind, 40), cause, shorten(first.fix), tuple(_cut(lines)))


def _where(alike: Sequence[tuple[str, Remark]]) -> str:
    """all cases; mlp/infer; 3 cases; M1 GPU: 3 cases; M1 GPU, M1 CPU; 6 machines"""
    machines = list(dict.fromkeys(name for name, _ in alike))
    if len(machines) > 1:
        return ", ".join(machines) if len(machines) <= _NAMED else f"{len(machines)} machines"
    cases = [case for _, each in alike for case in each.cases]
    count = "all cases" if not cases else shorten(cases[0], _TITLE) if len(cases) == 1 else f"{len(cases)} cases"
    return f"{machines[0]}: {count}" if machines[0] else count


def _by_case(alike: Sequence[tuple[str, Remark]]) -> Iterator[str]:
    for name, each in alike:
        for case in each.cases or ("all cases",):
            parts = (name, shorten(case, _TITLE), shorten(each.cause, _REASON))
            yield ": ".join(filter(None, parts))


def _by_machine(alike: Sequence[tuple[str, Remark]]) -> Iterator[str]:
    """Nothing where `_where` names the cases already."""
    if len(alike) == 1 and len(alike[0][1].cases) < 2:
        return
    cases: dict[str, list[str]] = {}
    for name, each in alike:
        cases.setdefault(name, []).extend(shorten(case, _TITLE) for case in each.cases or ("all cases",))
    for name, called in cases.items():
        yield f"{name}: " * bool(name) + ", ".join(_cut(called))


def _cut(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _SHOWN
    return [*texts[:_SHOWN], *([f"{more} more"] if more > 0 else [])]


def _machines(page: _Page) -> doc.Section:
    """What is known of each machine, and the command that measures again."""
    cards = []
    for run, name in list(zip(page.runs, page.names, strict=True))[:MOST_CARDS]:
        facts = [(title, shorten(text, _REASON)) for title, text in _machine_facts(run) if text]
        command = run.header.command if _can_be_pasted(run.header.command) else ""
        cards.append(doc.Card(name, facts=facts, command=command))
    more = len(page.runs) - MOST_CARDS
    left = f"{more} more not shown." if more > 0 else ""
    return doc.Section("Machines" if len(page.runs) > 1 else "Machine", [doc.Cards(cards)], left, "machines")


def _can_be_pasted(command: str) -> bool:
    """People paste what they are shown, and a file may come from anybody: only what measures, in words and cases."""
    program, *words = command.split(" ")
    if len(command) > _LONGEST_COMMAND or program != "torchmark" or not words or words[0] not in _MEASURING:
        return command == "pytest"
    return all(_PLAIN_WORD.fullmatch(each) or _is_case(each) for each in words[1:])


def _is_case(text: str) -> bool:
    try:
        parse_case(text)
    except UsageError:
        return False
    return True


def _machine_facts(run: Run) -> Iterator[tuple[str, str]]:
    header, machine = run.header, run.header.machine
    yield "Processor", plain_model(machine.cpu) if machine.cpu else ""
    if machine.physical_cores:
        yield "Cores", f"{machine.physical_cores} ({machine.logical_cores} threads)"
    yield "Memory", f"{machine.memory_gib} GiB" if machine.memory_gib else ""
    for device in machine.devices:
        if device.name != "cpu":
            yield shorten(device.name, 24), _device(device)
    yield "System", machine.os
    yield "Python", machine.python
    yield "torch", " ".join(part for part in (machine.torch, machine.torch_build) if part)
    yield "Power", ", ".join(_power(run))
    yield "Meters", "; ".join(_sources(run))
    yield "Measured", moment(header.created)
    yield "Run", header.id
    yield "Interval", figures.interval_note(run) or ""
    yield "torchmark", header.version


def _device(device: DeviceInfo) -> str:
    memory = units.size(device.memory_bytes) if device.memory_bytes else ""
    driver = f"driver {device.driver}" if device.driver else ""
    return ", ".join(part for part in (plain_model(device.model), memory, driver, device.capability) if part)


def _sources(run: Run) -> Iterator[str]:
    """Where readings of meters come from, or why there are none; said once where all cases agree."""
    known = [result.provenance for result in run.results if result.provenance]
    for name in ("energy", "clock", "temperature", "throttling"):
        sources = {each[name] for each in known if name in each}
        if len(sources) == 1:
            yield f"{name} {sources.pop()}"


def _power(run: Run) -> Iterator[str]:
    machine = run.header.machine
    if machine.power_mode:
        yield machine.power_mode
    if machine.on_battery is not None:
        yield "on battery" if machine.on_battery else "plugged in"


def _cards(
    anchor: str, title: str, lead: str, makers: Sequence[CardMaker], legend: Sequence[tuple[str, str]] = ()
) -> list[doc.Block]:
    """A section of charts, as many as a page has room for; the ones that were left out are counted."""
    cards: list[doc.Card] = []
    tried = room = 0
    for make in makers[:MOST_CARDS]:
        if room > _SECTION_BYTES:
            break
        tried += 1
        card = make()
        if card:
            cards.append(card)
            room += len(card.drawing)
    left = f" {len(makers) - tried} more not shown." if len(makers) > tried else ""
    return [doc.Section(title, [doc.Cards(cards, legend)], lead + left, anchor)] if cards else []
