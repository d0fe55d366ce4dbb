"""The page about runs: headline, findings, charts, comparisons, results, caveats and machines."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices, cost_of
from torchmark.analyze.findings import find_all
from torchmark.analyze.headline import Headline
from torchmark.analyze.pairing import grouped
from torchmark.errors import UsageError
from torchmark.records import Remark, Result, Run, parse_case
from torchmark.report import document as doc
from torchmark.report import figures, names, units
from torchmark.report.charts import TITLE, Panel, draw, find_series, roofline, speeds
from torchmark.report.headline import headline_blocks
from torchmark.report.run import conclusion
from torchmark.report.text import clean_record, shorten

# Keep a page small enough to send around.
MOST_CARDS = 48  # in a section
_SECTION_BYTES = 200_000  # of charts in a section
_MOST_NOTES = 60
_MOST_ROWS = 1000  # in the table
_REASON = 160
_MEASURING = ("run", "limits", "tune", "fit", "ab", "replicate")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.,:+=%-]*")  # nothing to a shell, and no folder
_ROOFLINE = (
    "Lines are the highest rates measured on the device: memory bandwidth limits work on the left, arithmetic on the "
    "right. Points far below are limited by something else, such as launch overhead or data loading. Hover for names."
)
_STEPS = (
    "Samples in their order; discarded warm-up is shaded. A slope indicates drift or heating. In sustained runs, two "
    "bars mark the first and the last seconds."
)


class _Page:  # what all sections need
    def __init__(self, runs: Sequence[Run], on_chart: Callable[[], object]) -> None:
        self.runs = list(map(clean_record, runs))
        self.names = names.run_names(self.runs)
        self.series = find_series(self.runs)
        self.done = [(each, result) for each in self.series for result in each.results]
        self.several = len(self.series) > 1
        self.named = list(zip(self.runs, self.names, strict=True))
        self._on_chart = on_chart

    def card(self, panel: Panel) -> doc.Card:
        if panel.chart:
            drawing = draw(panel.chart, panel.about)
            self._on_chart()
            return doc.Card(panel.title, drawing, note=panel.note, grade=panel.grade)
        bar = panel.rows[0]
        note = shorten(" · ".join(filter(None, (panel.note, bar["label"]))), TITLE)
        grade = doc.judged(bar["grade"]) if bar["grade"] else None
        return doc.Card(panel.title, figure=bar["figure"], margin=bar["margin"], note=note, grade=grade)

    def cards(
        self, anchor: str, title: str, lead: str, panels: Iterable[Panel | None], count: int, **more: Any
    ) -> doc.Section:
        """As many charts as a page has room for, and the count of the others."""
        cards: list[doc.Card | None] = []
        for panel in islice(panels, MOST_CARDS):
            cards.append(self.card(panel) if panel else None)
            if sum(len(card.drawing) for card in cards if card) > _SECTION_BYTES:
                break
        shown = [card for card in cards if card]
        left = f"{lead} {_left(count - len(cards))}".strip()
        return doc.Section(title, [doc.Cards(shown, **more)], left if shown else "", anchor)


def page_document(
    runs: Sequence[Run],
    version: str,
    baseline: int = 0,
    on_chart: Callable[[], object] = lambda: None,
    prices: Prices | None = None,
    headlines: Sequence[Headline | None] = (),
) -> doc.Document:
    """All runs, compared with the one at index `baseline`. The headline of a single run opens it."""
    page = _Page(runs, on_chart)

    def blocks() -> Iterator[doc.Block]:
        yield _title(page, baseline)
        known = [(replace(each, commands=()), run) for each, run in zip(headlines, page.runs, strict=False) if each]
        if len(known) == 1:
            shown = [*headline_blocks(known[0][0], known[0][1].header.machine, named=False)]
            yield doc.Section("Headline", shown, anchor="headline")
        several = len(page.runs) > 1
        named = [replace(run, header=replace(run.header, label=run.header.label or name)) for run, name in page.named]
        said = [f"{run.header.label}: " * several + line for run in named for line in conclusion(run)]
        yield replace(doc.remarks("Findings", [*said, *(found.cause for found in find_all(named))]), anchor="findings")
        yield from _charts(page, baseline)
        yield _results(page)
        yield from [_costs(page, prices)] if prices else []
        sampled = [done for done in page.done if speeds.has_samples(done[1])]
        panels = (speeds.find_steps(*done, page.several) for done in sampled)
        yield page.cards("steps", "Step times", _STEPS, panels, len(sampled))
        notes = caveats(page.runs, page.names if several else [""])
        listed = doc.Remarks(notes.remarks[:_MOST_NOTES], where=notes.where[:_MOST_NOTES])
        yield doc.Section("Caveats", [listed], _left(len(notes.remarks) - _MOST_NOTES), "caveats")
        cards = []
        for run, name in page.named[:MOST_CARDS]:
            facts = [(title, shorten(text, _REASON)) for title, text in _machine_facts(run) if text]
            command = run.header.command
            cards.append(doc.Card(name, facts=facts, command=command if _can_be_pasted(command) else ""))
        left = _left(len(page.runs) - MOST_CARDS)
        yield doc.Section("Machines" if several else "Machine", [doc.Cards(cards)], left, "machines")

    return doc.Document(blocks, version=version)


def _left(count: int) -> str:
    return f"{count} more not shown." if count > 0 else ""


def _title(page: _Page, baseline: int) -> doc.Title:
    machines = list(dict.fromkeys(map(names.machine_name, page.runs)))
    name = " and ".join(machines) if len(machines) <= 2 else f"{machines[0]} and {len(page.runs) - 1} others"
    labels = [run.header.label for run in page.runs if run.header.label]
    if len(page.runs) > 1:
        count = sum(len(run.results) for run in page.runs)
        facts = [f"{len(page.runs)} runs", f"{count} results", f"baseline: {page.names[baseline]}"]
    else:
        cores, memory, torch = names.machine_parts(page.runs[0].header.machine)
        facts = [cores, f"{memory} memory" if memory else "", torch, names.moment(page.runs[0].header.created)]
    kicker = shorten(" and ".join(labels), TITLE) if len(labels) <= 2 else ""
    return doc.Title(shorten(name, TITLE), [shorten(fact, TITLE) for fact in facts], kicker)


def _charts(page: _Page, baseline: int) -> Iterator[doc.Block]:
    legend = [(each.name, each.color) for each in page.series] if page.several else []
    found = speeds.find_speeds(page.series)
    lead = "Longer bars are faster. Thin lines are 95% intervals. Pale bars are graded poor."
    yield page.cards("speed", "Speed", lead, found, len(found), legend=legend)
    ratios = speeds.find_ratios(page.runs, baseline)
    who, base = page.names[1 - baseline] if len(page.runs) == 2 else "each run", page.names[baseline]
    meaning = "right of 1× is faster. Lines are 95% intervals; a hollow point is inconclusive."
    lead = f"Speed of {who} relative to {base}: {meaning}"
    yield page.cards("against", f"Compared with {base}", lead, ratios, len(ratios))
    scalings = [*speeds.find_scalings(page.series)]
    growth = [*speeds.find_curves(page.series), *scalings]
    ideal = " The dashed line is the speed of workers that lose nothing to each other." if scalings else ""
    lead = f"Speed at each value that was measured.{ideal}"
    yield page.cards("growth", "Diminishing returns", lead, growth, len(growth))
    roofs = roofline.find_rooflines(page.series)
    yield page.cards("roofline", "Roofline", _ROOFLINE, roofs, len(roofs))


def _results(page: _Page) -> doc.Section:
    owners = {id(result): each.name if page.several else "" for each, result in page.done}
    results = [result for _, result in page.done]
    if not results:
        return doc.Section("Results", [doc.Lines(["No case was finished."])], anchor="results")

    def called(result: Result) -> doc.Cell:
        name, order = shorten(result.case.workload, _REASON), shorten(result.case.text, _REASON)
        return doc.Cell(name, sort=order, note=names.variant_name(result.case))

    left = f" Showing the first {_MOST_ROWS} of {len(results)}." if len(results) > _MOST_ROWS else ""
    caption = f"All results with their 95% intervals.{left}"
    table = figures.results_table(results[:_MOST_ROWS], called, lambda result: owners[id(result)], caption)
    has_figures = any(result.status == "ok" and result.estimate for result in results)
    lead = "" if has_figures else "No case gave a figure. The last column says why."
    words = Counter(text.partition(":")[0] for text in map(figures.grade_text, results) if text)
    best_first = sorted(words, key=lambda text: doc.word(text).rank)
    chips = [replace(doc.judged(text), text=f"{words[text]} {text}") for text in best_first]
    return doc.Section("Results", [doc.Lines(chips), table], lead, "results")


def _costs(page: _Page, prices: Prices) -> doc.Section:
    def price(value: float | None) -> str:
        return units.NOTHING if value is None or not math.isfinite(value) else units.digits(value)

    columns = [
        doc.Column("case", "case", of=lambda row: names.full_name(row[1].case)),
        doc.Column("machine", shown=page.several, of="0.name"),
        doc.Column("per million items", "figure", of="2.million_items", written=price),
        doc.Column("per epoch", "figure", of="2.epoch", written=price),
        doc.Column("whole job", "figure", of="2.job", written=price),
    ]
    rows = [(each, result, cost) for each, result in page.done if (cost := cost_of(result, prices))]
    notes = dict.fromkeys(figures.cost_note(run.results, prices) for run in page.runs)
    lead = f"{figures.cost_heading(prices)}. {' '.join(filter(None, notes))}"
    table = doc.table(columns, rows[:_MOST_ROWS], caption="Cost of each result.")
    return doc.Section("Cost", [table], lead if rows else "", "cost")


def caveats(runs: Sequence[Run], owners: Sequence[str]) -> doc.Remarks:
    """Failures, cautions, file problems. Equal ones of several machines are one remark."""
    pairs = [(run, name, names.Names(names.shared_place(run.results))) for run, name in zip(runs, owners, strict=True)]
    found = [(name, each) for run, name, called in pairs for each in figures.failures(run.results, called.of).remarks]
    found += [(name, each) for run, name, called in pairs for each in figures.cautions(run, called)]
    together = list(map(_together, grouped(found, lambda pair: (pair[1].kind, pair[1].fix)).values()))
    together += [(Remark("file", shorten(problem)), name) for run, name, _ in pairs for problem in run.problems]
    return doc.Remarks([remark for remark, _ in together], where=[where for _, where in together])


def _together(alike: Sequence[tuple[str, Remark]]) -> tuple[Remark, str]:
    """The first as an example, with a line per machine, or per case where causes differ; and where they are:
    mlp/infer; M1 GPU: 3 cases; M1 GPU, M1 CPU; 6 machines"""
    first, varied = alike[0][1], len({each.cause for _, each in alike}) > 1
    cases = [(name, shorten(case, TITLE), each) for name, each in alike for case in each.cases or ("all cases",)]
    parts = [(name, case, shorten(each.cause, _REASON)) for name, case, each in cases]
    if not varied:
        own = grouped(cases, itemgetter(0)) if len(cases) > 1 else {}
        parts = [(name, ", ".join(_cut([case for _, case, _ in each])), "") for name, each in own.items()]
    lines = [": ".join(filter(None, each)) for each in parts]
    cause = ("For example: " if varied else "") + shorten(first.cause)
    remark = Remark(shorten(first.kind, 40), cause, shorten(first.fix), tuple(_cut(lines)))
    machines = list(dict.fromkeys(name for name, _ in alike))
    if len(machines) > 1:
        return remark, ", ".join(machines) if len(machines) <= 3 else f"{len(machines)} machines"
    named = [case for _, each in alike for case in each.cases] or ["all cases"]
    count = shorten(named[0], TITLE) if len(named) == 1 else f"{len(named)} cases"
    return remark, f"{machines[0]}: {count}" if machines[0] else count


def _cut(texts: Sequence[str]) -> list[str]:
    return [*texts[:30], *([f"{len(texts) - 30} more"] if len(texts) > 30 else [])]


def _can_be_pasted(command: str) -> bool:
    """Whether a stranger's file may suggest it: only measuring commands of plain words are safe to paste."""
    program, *words = command.split(" ")
    if len(command) > 10_000 or program != "torchmark" or not words or words[0] not in _MEASURING:
        return command == "pytest"
    try:
        return all(_PLAIN_WORD.fullmatch(each) or parse_case(each) for each in words[1:])
    except UsageError:
        return False


def _machine_facts(run: Run) -> Iterator[tuple[str, str]]:
    header, machine = run.header, run.header.machine
    yield "Processor", names.plain_model(machine.cpu)
    yield "Cores", f"{machine.physical_cores} ({machine.logical_cores} threads)" if machine.physical_cores else ""
    yield "Memory", f"{machine.memory_gib} GiB" if machine.memory_gib else ""
    for device in machine.devices:
        if device.name != "cpu":
            memory = units.size(device.memory_bytes) if device.memory_bytes else ""
            driver = f"driver {device.driver}" if device.driver else ""
            parts = (names.plain_model(device.model), memory, driver, device.capability)
            yield shorten(device.name, 24), ", ".join(filter(None, parts))
    yield "System", machine.os
    yield "Python", machine.python
    yield "torch", " ".join(filter(None, (machine.torch, machine.torch_build)))
    plugged = {True: "on battery", False: "plugged in", None: ""}[machine.on_battery]
    yield "Power", ", ".join(filter(None, (machine.power_mode, plugged)))
    meters = ("energy", "clock", "temperature", "throttling")  # on which all cases agree
    sources = {name: {each.provenance[name] for each in run.results if name in each.provenance} for name in meters}
    yield "Meters", "; ".join(f"{name} {found.pop()}" for name, found in sources.items() if len(found) == 1)
    yield "Measured", names.moment(header.created)
    yield "Run", header.id
    yield "Interval", figures.interval_note(run)
    yield "torchmark", header.version
