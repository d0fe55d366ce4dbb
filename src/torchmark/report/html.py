"""The report as one HTML page: findings, speeds, comparisons, all results, caveats and machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from torchmark.analyze.findings import find_all
from torchmark.analyze.headline import Headline
from torchmark.analyze.money import Prices
from torchmark.analyze.scaling import Scaling, find_scaling
from torchmark.records import Result, Run
from torchmark.report import context, costs, money, results, scaling
from torchmark.report import headline as areas
from torchmark.report.charts import bars, curves, ratios, roofline, strips, workers
from torchmark.report.charts.series import Series, find_series, full_name, machine_name, run_names
from torchmark.report.conclusions import conclusion
from torchmark.report.draw import Chart, draw
from torchmark.report.elements import Card, Cell, card_grid, data_table
from torchmark.report.headings import moment
from torchmark.report.looks import look_of
from torchmark.report.page import Section, fill, render_page
from torchmark.report.text import clean_record, clean_run, shorten

if TYPE_CHECKING:
    from markupsafe import Markup

# A page must stay small enough to be sent around, whatever it is made of.
MOST_CARDS = 48  # in a section
SECTION_BYTES = 200_000  # of charts in a section
MOST_FINDINGS = 9  # before a click
MOST_NOTES = 60
MOST_RATIOS = 60  # in a card
MOST_ROWS = 1000  # in the table
FILTERED = 24  # cards from which a section has a filter
TITLE = 80
INTERVALS = "Lines are 95% intervals; a hollow point is inconclusive."

Draw = Callable[[Chart, str], "Markup"]
CardMaker = Callable[[], Card | None]


def render_report(
    runs: Sequence[Run],
    version: str,
    baseline: int = 0,
    on_chart: Callable[[], object] = lambda: None,
    prices: Prices | None = None,
    headlines: Sequence[Headline | None] = (),
) -> str:
    """The page about all runs. `baseline` is the index of the run that the others are compared with.
    With prices it has a table of costs. A headline opens the page where only one run has one."""
    runs = [clean_run(run) for run in runs]
    series = find_series(runs)

    def drawn(chart: Chart, about: str) -> Markup:
        drawing = draw(chart, about)
        on_chart()
        return drawing

    sections = [
        *_headline(runs, headlines),
        *_findings(runs),
        *_speed(series, drawn),
        *_against(runs, baseline, drawn),
        *_growth(series, drawn),
        *_roofs(series, drawn),
        _results(series),
        *(_costs(series, prices) if prices else []),
        *_course(series, drawn),
        *_care(runs),
        _machines(runs),
    ]
    return render_page(
        shorten(_title(runs), TITLE),
        sections,
        version=version,
        kicker=_kicker(runs),
        facts=_facts(runs, baseline),
        footer=[f"Made by torchmark {version}. This page is self-contained: it loads nothing and sends nothing."],
    )


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(machine_name(run) for run in runs))
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(runs) - 1} others"


def _kicker(runs: Sequence[Run]) -> str:
    """What the user called them, where that is short enough to stand above the title."""
    labels = [run.header.label for run in runs if run.header.label]
    return shorten(" and ".join(labels), TITLE) if len(labels) <= 2 else ""


def _facts(runs: Sequence[Run], baseline: int) -> list[str]:
    if len(runs) > 1:
        count = sum(len(run.results) for run in runs)
        return [f"{len(runs)} runs", f"{count} results", f"baseline: {run_names(runs)[baseline]}"]
    machine = runs[0].header.machine
    cores = f"{machine.physical_cores} core{'s' if machine.physical_cores != 1 else ''}"
    facts = [
        cores if machine.physical_cores else "",
        f"{machine.memory_gib} GiB memory" if machine.memory_gib else "",
        f"torch {machine.torch}" if machine.torch else "",
        moment(runs[0].header.created),
    ]
    return [shorten(fact, TITLE) for fact in facts if fact]


def _headline(runs: Sequence[Run], headlines: Sequence[Headline | None]) -> list[Section]:
    known = [(clean_record(found), run) for found, run in zip(headlines, runs, strict=False) if found]
    if len(known) != 1:
        return []
    [(headline, run)] = known
    several = len(headline.blocks) > 1
    blocks = [
        {
            "device": block.device,
            "about": areas.about(run.header.machine, block) if several else "",
            "rows": [(row.cells, look_of(row.area.grade.word).kind) for row in areas.rows(headline, block)],
            "sentences": areas.sentences(headline, block),
        }
        for block in headline.blocks
    ]
    columns = ("area", "this machine", *areas.COLUMNS[3:])
    body = fill("headline.html.jinja", blocks=blocks, columns=columns, footnotes=areas.footnotes(headline))
    return [Section("headline", "Headline", body)]


def _findings(runs: Sequence[Run]) -> list[Section]:
    named = [
        run if run.header.label else replace(run, header=replace(run.header, label=name))
        for run, name in zip(runs, run_names(runs), strict=True)
    ]
    several = len(runs) > 1
    texts = [f"{run.header.label}: " * several + line for run in named for line in conclusion(run)]
    texts = [shorten(text) for text in (*texts, *(found.text for found in find_all(named)))]
    body = fill("findings.html.jinja", findings=texts, most=MOST_FINDINGS)
    return [Section("findings", "Findings", body)] if texts else []


def _speed(series: Sequence[Series], drawn: Draw) -> list[Section]:
    cards = [partial(_speed_card, panel, drawn) for panel in bars.find_panels(series)]
    lead = "Longer bars are faster. Thin lines are 95% intervals. Pale bars are graded poor."
    legend = fill("legend.html.jinja", series=series) if len(series) > 1 else ""
    return _cards("speed", "Speed", lead, cards, legend)


def _speed_card(panel: bars.Panel, drawn: Draw) -> Card:
    """One figure alone has no length to be compared with: it is written large instead."""
    title = shorten(panel.title, TITLE)
    if len(panel.bars) == 1:
        bar = panel.bars[0]
        note = f"{panel.who} · {bar.label}" if panel.who else bar.label
        grade = Cell(bar.grade, kind=look_of(bar.grade).kind) if bar.grade else None
        return Card(title, figure=bar.figure, margin=bar.margin, note=shorten(note, TITLE), grade=grade)
    return Card(title, drawn(bars.draw_panel(panel), f"Speed of {title}"), note=panel.who)


def _against(runs: Sequence[Run], baseline: int, drawn: Draw) -> list[Section]:
    names, panels = run_names(runs), ratios.find_panels(runs, baseline)
    if not panels:
        return []
    domain = ratios.shared_domain([ratio for panel in panels for ratio in panel.ratios])
    cards = [partial(_ratio_card, panel, domain, drawn) for panel in panels]
    who = names[1 - baseline] if len(runs) == 2 else "each run"
    lead = f"Speed of {who} relative to {names[baseline]}: right of 1× is faster. {INTERVALS}"
    return _cards("against", f"Compared with {names[baseline]}", lead, cards)


def _ratio_card(panel: ratios.Panel, domain: Sequence[float], drawn: Draw) -> Card:
    title = shorten(panel.title, TITLE)
    chart = ratios.draw_ratios(panel.ratios[:MOST_RATIOS], domain)
    return Card(title, drawn(chart, f"Relative speed: {title}"), note=panel.mean)


def _growth(series: Sequence[Series], drawn: Draw) -> list[Section]:
    """Speed over whatever was swept: a parameter, threads, workers."""
    cards: list[CardMaker] = [partial(_sweep_card, panel, drawn) for panel in curves.find_panels(series)]
    for each in series:
        found = find_scaling(tuple(each.results))
        cards += [partial(_scaling_card, each, scaled, len(series) > 1, drawn) for scaled in found]
    lead = "Speed at each value that was measured."
    if any(find_scaling(tuple(each.results)) for each in series):
        lead += " The dashed line is the speed of workers that lose nothing to each other."
    return _cards("growth", "Diminishing returns", lead, cards)


def _sweep_card(panel: curves.Panel, drawn: Draw) -> Card:
    title = shorten(panel.title, TITLE)
    axes = shorten(f"{panel.unit}/s by {panel.parameter}", TITLE)
    return Card(title, drawn(curves.draw_panel(panel), f"{title}: {axes}"), note=axes)


def _scaling_card(series: Series, found: Scaling, named: bool, drawn: Draw) -> Card:
    title = shorten(found.case, TITLE)
    note = f"{series.name}: " * named + f"{shorten(found.unit, 24)}/s by workers. {scaling.note(found)}"
    return Card(title, drawn(workers.draw_scaling(found, series.color), f"Scaling of {title}"), note=note)


def _roofs(series: Sequence[Series], drawn: Draw) -> list[Section]:
    """How close results come to the highest rates measured on their device."""
    cards = [partial(_roof_card, panel, len(series) > 1, drawn) for panel in roofline.find_panels(series)]
    lead = (
        "Lines are the highest rates measured on the device; a point on a line has reached that limit. Work on the "
        "left is limited by memory bandwidth, work on the right by arithmetic. Points far below the lines are limited "
        "by something else, such as launch overhead or data loading. Unlabelled points show their names on hover."
    )
    return _cards("roofline", "Roofline", lead, cards)


def _roof_card(panel: roofline.Panel, named: bool, drawn: Draw) -> Card:
    title = f"Roofline of {panel.title}" if named else "Roofline"
    return Card(title, drawn(roofline.draw_panel(panel), title), note=panel.about)


def _results(series: Sequence[Series]) -> Section:
    rows = results.rows(series)
    if not rows:
        return Section("results", "Results", fill("problems.html.jinja", problems=["No case was finished."]))
    left = f" Showing the first {MOST_ROWS} of {len(rows)}." if len(rows) > MOST_ROWS else ""
    caption = f"All results with their 95% intervals.{left}"
    body = data_table("results-table", caption, results.columns(series), rows[:MOST_ROWS])
    lead = "" if any(map(_has_figure, series)) else "No case gave a figure. The last column says why."
    return Section("results", "Results", fill("chips.html.jinja", chips=results.grade_counts(series)) + body, lead)


def _has_figure(series: Series) -> bool:
    return any(result.status == "ok" and result.estimate for result in series.results)


def _costs(series: Sequence[Series], prices: Prices) -> list[Section]:
    rows = costs.rows(series, prices)
    notes = [money.note(each.run, prices) for each in series]
    lead = f"{money.heading(prices)}. {' '.join(dict.fromkeys(filter(None, notes)))}"
    body = data_table("costs-table", "Cost of each result.", costs.columns(series), rows[:MOST_ROWS])
    return [Section("cost", "Cost", body, lead)] if rows else []


def _course(series: Sequence[Series], drawn: Draw) -> list[Section]:
    sampled = [(each, result) for each in series for result in each.results if strips.has_samples(result)]
    cards = [partial(_strip_card, each, result, len(series) > 1, drawn) for each, result in sampled]
    lead = (
        "Samples in the order they were taken. Shaded samples were discarded as warm-up; a slope indicates drift or "
        "heating. In sustained runs, two bars mark the first and the last seconds."
    )
    return _cards("steps", "Step times", lead, cards)


def _strip_card(series: Series, result: Result, named: bool, drawn: Draw) -> Card | None:
    strip = strips.find_strip(result)
    if strip is None:
        return None
    title = full_name(result.case)
    drawing = drawn(strips.draw_strip(strip, series.color), f"Step times of {title}")
    return Card(title, drawing, note=f"{series.name}. " * named + strip.about, grade=results.grade(result))


def _care(runs: Sequence[Run]) -> list[Section]:
    notes = context.notes(runs, run_names(runs) if len(runs) > 1 else [""])
    if not notes:
        return []
    left = f"{len(notes) - MOST_NOTES} more not shown." if len(notes) > MOST_NOTES else ""
    return [Section("caveats", "Caveats", fill("notes.html.jinja", notes=notes[:MOST_NOTES]), left)]


def _machines(runs: Sequence[Run]) -> Section:
    machines = [context.machine_card(run, name) for run, name in zip(runs, run_names(runs), strict=True)]
    body = fill("machines.html.jinja", machines=machines[:MOST_CARDS])
    left = f"{len(runs) - MOST_CARDS} more not shown." if len(runs) > MOST_CARDS else ""
    return Section("machines", "Machines" if len(runs) > 1 else "Machine", body, left)


def _cards(anchor: str, title: str, lead: str, makers: Sequence[CardMaker], before: Markup | str = "") -> list[Section]:
    """A section of charts, as many as a page has room for; the ones that were left out are counted."""
    cards: list[Card] = []
    tried = room = 0
    for make in makers[:MOST_CARDS]:
        if room > SECTION_BYTES:
            break
        tried += 1
        card = make()
        if card:
            cards.append(card)
            room += len(card.drawing or "")
    if not cards:
        return []
    left = f" {len(makers) - tried} more not shown." if len(makers) > tried else ""
    return [Section(anchor, title, before + card_grid(anchor, cards, filtered=len(cards) >= FILTERED), lead + left)]
