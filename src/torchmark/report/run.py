"""The report of a run: its headline, its results, and everything that should be read next to the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchmark.analyze.efficiency import Prices, Scaling, ScalingRow, find_scaling
from torchmark.analyze.findings import find_all
from torchmark.analyze.headline import Headline
from torchmark.records import Remark, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.headline import headline_blocks
from torchmark.report.names import Names, machine_line, names_of, shared_place, title
from torchmark.report.results import cautions, failures, results_table, run_object, run_records

_WIDE = 120  # columns from which the table has room for the share of the peak
_MOST_FINDINGS = 5


def run_document(run: Run, prices: Prices | None = None, headline: Headline | None = None) -> doc.Document:
    """The report of one run; of a stored study what its command reported. With prices it has costs."""
    records = run_records([run], prices, lambda: run_object(run, prices, headline))
    study = _study(run) if prices is None else None
    return doc.Document(study.blocks if study else lambda: _blocks(run, prices, headline), records)


def runs_document(
    runs: Sequence[Run], prices: Prices | None = None, headlines: Sequence[Headline | None] = ()
) -> doc.Document:
    """Several runs in one: what they say together, then each of them."""
    headlines = headlines or [None] * len(runs)

    def blocks() -> Iterator[doc.Block]:
        findings = [Remark("", found.cause) for found in find_all(runs)]
        yield from [doc.Remarks(findings)] if findings else []
        for run, headline in zip(runs, headlines, strict=True):
            yield from _blocks(run, prices, headline, findings=False)

    def objects() -> object:
        pairs = zip(runs, headlines, strict=True)
        return {"runs": [run_object(run, prices, headline) for run, headline in pairs]}

    return doc.Document(blocks, run_records(runs, prices, objects))


def conclusion(run: Run) -> list[str]:
    """What a study came to: the answer in one sentence, then what it rests on; empty for a plain run."""
    if not (run.tuning or run.fitting or run.limiting or run.live):
        return []
    from torchmark.report import fitting, limits, live, tuning  # late: they import numpy

    return [
        *(tuning.conclusion(run) if run.tuning else ()),
        *(fitting.conclusion(run) if run.fitting else ()),
        *(limits.conclusion(run) if run.limiting else ()),
        *(live.conclusion(run) if run.live else ()),
    ]


def _study(run: Run) -> doc.Document | None:
    """The report of a study that has one of its own."""
    if not (run.tuning or run.fitting or run.limiting):
        return None
    from torchmark.report import fitting, limits, tuning

    if run.tuning:
        return tuning.stored_document(run)
    if run.fitting and run.fitting.tried:
        return fitting.stored_document(run)
    return limits.limits_document(run) if run.limiting else None


def _blocks(run: Run, prices: Prices | None, headline: Headline | None, findings: bool = True) -> Iterator[doc.Block]:
    names = names_of(run.results)
    yield from headline_blocks(headline, run.header.machine) if headline else ()
    machine = "" if headline else machine_line(run.header.machine, names.device)
    yield doc.Title(title(run), [line for line in (machine, names.note) if line])
    yield from [doc.Lines(said)] if (said := conclusion(run)) else []
    if run.results:
        yield results_table(run.results, lambda result: doc.Cell(names.of(result)))
    else:
        yield doc.Lines(["No results"])
    interval = figures.interval_note(run)
    yield from [doc.Lines([doc.Cell(interval, "quiet")])] if interval else []
    shares = [
        Remark(bound, ", ".join(f"{names.of(result)} {units.percent(share)}" for result, share in bounded))
        for bound, bounded in figures.by_bound(run)
    ]
    if shares:
        heading = "Of this machine's peak, by what bounds it"
        yield doc.Section(heading, [doc.Remarks(shares)], only="terminal", below=_WIDE)
    if findings and len(run.results) > 1:  # that some were disturbed is among the cautions
        found = [Remark("", finding.cause) for finding in find_all([run]) if finding.kind != "disturbed"]
        yield from _section("Findings", found[:_MOST_FINDINGS])
    yield from (scaling_section(each, shared_place(run.results)) for each in find_scaling(run.results))
    jobs = [(result, figures.job(result)) for result in run.results]
    yield from _section("Whole jobs", [Remark("", text, cases=(names.of(result),)) for result, text in jobs if text])
    kept = [(result, figures.sustained(result)) for result in run.results if result.sustained]
    yield from _section("Sustained", [Remark("", text, cases=(names.of(result),)) for result, text in kept])
    yield from _costs(run, prices, names) if prices else ()
    lost = failures(run.results, names.of)
    yield from [doc.Section("Without a figure", [lost])] if lost.remarks else []
    yield from _section("Cautions", cautions(run, names), brief=True)
    yield from _section("About the file", [Remark("", problem) for problem in run.problems])


def _section(heading: str, remarks: Sequence[Remark], brief: bool = False) -> list[doc.Block]:
    return [doc.Section(heading, [doc.Remarks(remarks, brief)])] if remarks else []


def _costs(run: Run, prices: Prices, names: Names) -> list[doc.Block]:
    """Prices are the user's, and the heading says so."""
    found = figures.costs(run.results, prices)
    remarks = [Remark("", figures.cost_text(result, cost), cases=(names.of(result),)) for result, cost in found]
    note = figures.cost_note(run.results, prices)
    return _section(figures.cost_heading(prices), [*remarks, *([Remark("", note)] if note else [])])


def scaling_section(found: Scaling, shared: str | None = None, nodes: bool = False) -> doc.Section:
    """What more workers bring; `nodes`: on several machines, whose count begins each row."""
    name = found.case.replace(f"@{shared}", "", 1) if shared else found.case
    titles = (*(["nodes"] if nodes else []), "workers", "per step", "rate", "efficiency", "communication")
    rows = [[*([str(row.nodes)] if nodes else []), *_scaling_cells(row, found.unit)] for row in found.rows]
    table = doc.Table([doc.Column(each, "figure") for each in titles], rows)
    return doc.Section(f"Scaling of {name}", [table, doc.Lines([doc.Cell(scaling_note(found), "quiet")])])


def scaling_note(found: Scaling) -> str:
    """What the rows have in common, and what their efficiency is relative to."""
    if found.threads is None:
        footing = "Threads per rank differ between the rows or are unknown: the efficiency is not a fair one"
    else:
        footing = f"Every rank has {found.threads} thread{'s' if found.threads != 1 else ''}, in all rows"
    if any(row.workers == 1 for row in found.rows):
        return f"{footing}. Efficiency: the rate for each worker against that of one alone."
    return f"{footing}. Without a row for one worker there is no efficiency: measure it with --workers 1, too."


def _scaling_cells(row: ScalingRow, unit: str) -> list[str]:
    reach = units.relative(row.margin * row.efficiency) if row.margin and row.efficiency is not None else ""
    share = row.communication_share
    return [
        str(row.workers),
        units.duration(row.step_s),
        units.rate(row.rate, unit),
        units.NOTHING if row.efficiency is None else f"{units.percent(row.efficiency)} {reach}".strip(),
        units.NOTHING if share is None else units.percent(share),
    ]
