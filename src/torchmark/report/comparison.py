"""Comparisons of runs: two of them row by row, several as a matrix against the first, or settings inside one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters

from msgspec import Struct

from torchmark.analyze.comparison import Comparison, Family, Gate, Pair, overall, per_item
from torchmark.analyze.grades import ASSUMED
from torchmark.analyze.pairing import Unpaired, axis_value, written
from torchmark.records import DISTURBED, Remark, Result, Run, RunHeader
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import Names, machine_of, shared_place, title

_CSV_COLUMNS = (
    "a", "a_label", "b", "b_label", "case", "partner", "verdict", "speed", "speed_low", "speed_high", "ratio", "low",
    "high", "p_value", "a_step_s", "b_step_s", "basis", "differences", "not_compared", "reason", "visible", "assumed",
    "flaws",
)  # fmt: skip
_BASELINE = "baseline"
_WIDEST_CELL = 22
_ANSWERS = ("faster", "slower", "same", "similar", "unsure")


class Side(Struct, frozen=True):
    """How one side of a comparison is called, in a heading and inside a sentence."""

    title: str
    place: str


class Pairs(Struct, frozen=True):
    """One comparison with what its rows need: who is compared, and what they all have in common."""

    comparison: Comparison
    a: Side
    b: Side
    shared: tuple[str, ...]  # remarks that hold for every pair
    names: Names  # as the rows call the cases
    letters: Mapping[str, str]  # of known flaws, by their causes; of all comparisons that are shown together
    axis: str | None = None  # what is compared inside a run

    @property
    def shown_axis(self) -> str | None:
        """The axis, where the rows must say themselves which two values of it they compare."""
        return self.axis if self.a.title == _BASELINE else None

    def remarks(self, pair: Pair) -> list[str]:
        """What a pair has in particular: the values it compares, what differs, what disturbed."""
        axis = self.shown_axis
        values = f"{axis} {written(axis_value(pair.a, axis))} → {written(axis_value(pair.b, axis))}" if axis else ""
        own = [text for text in _remarks(pair, self.a, self.b, self.axis) if text not in self.shared]
        return [values, *own] if values else own


def comparison_document(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> doc.Document:
    """There is one comparison inside each run, or one of each later run with the first."""
    rows = [row for comparison in comparisons for row in (*comparison.pairs, *comparison.unpaired)]
    records = doc.Records(
        _CSV_COLUMNS,
        lambda: _csv_rows(comparisons, runs),
        lambda: {"runs": [run.header for run in runs], "comparisons": comparisons},
        lambda: rows,
    )
    return doc.Document(lambda: _blocks(comparisons, runs), records)


def letter(index: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def place(index: int) -> str:
    """in B"""
    return f"in {letter(index)}"


def speed(row: Pair | Family) -> str:
    """How many times as fast the second side is as the first; a published figure deserves two digits."""
    return units.factor(1 / row.ratio, rough=isinstance(row, Pair) and row.assumed is not None)


def interval(row: Pair | Family) -> str:
    """The 95% interval of the speed, or what is assumed instead."""
    if isinstance(row, Pair) and row.assumed is not None:
        return units.relative(row.assumed)
    if row.low is None or row.high is None:
        return units.NOTHING
    return f"{_bound(1 / row.high)} – {_bound(1 / row.low)}"


def _bound(value: float) -> str:
    return f"{value:.2f}" if 0.095 <= value < 9.995 else f"{value:.2g}" if value < 1 else units.digits(value)


def _blocks(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> Iterator[doc.Block]:
    flaws = (flaw.cause for comparison in comparisons for pair in comparison.pairs for flaw in pair.flaws)
    letters = dict(zip(dict.fromkeys(flaws), ascii_letters, strict=False))
    if len(comparisons) == len(runs):
        for comparison, run in zip(comparisons, runs, strict=True):
            pairs = _inside(comparison, letters)
            what = f"that of the second {pairs.axis} against that of the first"
            if not pairs.shown_axis:
                what = f"how many times as fast {pairs.b.title} is as {pairs.a.title}"
            yield doc.Title(title(run), [machine_of(run)])
            yield from _pairs(pairs, what)
            yield from _not_compared([pairs])
    else:
        yield doc.Facts(
            [(letter(number), " · ".join((title(run), machine_of(run)))) for number, run in enumerate(runs)]
        )
        a = Side("A", "in A")
        every = [
            _with_names(comparison, letters, a, Side(letter(number), place(number)))
            for number, comparison in enumerate(comparisons, 1)
        ]
        if len(every) > 1:
            yield from _overview(every, runs)
        else:
            yield from _pairs(every[0], "how many times as fast B is as A")
        yield from _not_compared(every)
        for pairs in every if len(every) > 1 else ():
            blocks = [*_pairs(pairs, f"how many times as fast {pairs.b.title} is as A")]
            yield doc.Section(f"{pairs.b.title} against A", blocks, only="text")
    known = [(f"[{mark}]", cause) for cause, mark in letters.items()]
    yield from [doc.Section("Known flaws of the published figures", [doc.Facts(known)])] if known else []
    yield from [doc.Lines([said])] if (said := _resolution(comparisons)) else []


def _inside(comparison: Comparison, letters: Mapping[str, str]) -> Pairs:
    """The columns are called by the two values where all rows compare the same two."""
    assert comparison.axis is not None
    axis = comparison.axis
    values = {(axis_value(pair.a, axis), axis_value(pair.b, axis)) for pair in comparison.pairs}
    names = [value if isinstance(value, str) else f"{axis} {written(value)}" for both in values for value in both]
    first, second = names if len(names) == 2 else (_BASELINE, "other")
    return _with_names(comparison, letters, Side(first, f"with {first}"), Side(second, f"with {second}"), axis)


def _with_names(comparison: Comparison, letters: Mapping[str, str], a: Side, b: Side, axis: str | None = None) -> Pairs:
    firsts = [pair.a for pair in comparison.pairs] or [each.a for each in comparison.unpaired if each.a]
    alike = [_remarks(pair, a, b, axis) for pair in comparison.pairs]
    shared = [text for text in alike[0] if all(text in texts for texts in alike)] if alike else []
    return Pairs(comparison, a, b, tuple(shared), Names(shared_place(firsts)), letters, axis)


def _remarks(pair: Pair, a: Side, b: Side, axis: str | None) -> list[str]:
    """What should be known before the ratio is believed: what differs, what disturbed, why there is no interval."""
    found = [each.text for each in pair.differences if each.name != axis]
    for result, side in ((pair.a, a), (pair.b, b)):
        if result.estimate and result.estimate.verdict in DISTURBED:
            found.append(f"{result.estimate.verdict} {side.place}")
    return found + ([f"no interval: {pair.no_interval}"] if pair.no_interval else [])


def _pairs(pairs: Pairs, what: str) -> Iterator[doc.Block]:
    """One row for each pair, then the means."""
    found = pairs.comparison.pairs
    yield from [doc.Lines([" · ".join(("Every pair", *pairs.shared))])] if pairs.shared else []
    if not found:
        yield doc.Lines(["Nothing could be compared."])
        return
    assumed = all(pair.assumed is not None for pair in found)
    titles = (pairs.a.title, pairs.b.title, "speed")
    columns = [doc.Column("case", "case"), *(doc.Column(title, "figure") for title in titles)]
    columns += [doc.Column("assumed ±" if assumed else "95% interval", "figure", drop=1), doc.Column("verdict", "name")]
    rows: list[doc.Row] = [
        [pairs.names.of(pair.a), *_figures(pair), _speed(pair, pairs.letters), interval(pair), doc.judged(pair.verdict)]
        for pair in found
    ]
    notes = [" · ".join(pairs.remarks(pair)) for pair in found]
    yield doc.Table(columns, rows, notes, "differs in")
    yield doc.Lines([doc.Cell(_footnote([pairs.comparison], what), "quiet")])
    means: list[doc.Row] = [
        [name, speed(mean), *([interval(mean), doc.judged(mean.verdict)] if mean.low is not None else ["", ""])]
        for name, mean in _means(pairs.comparison)
    ]
    columns = [
        doc.Column("cases"),
        doc.Column("speed", "figure"),
        doc.Column("95% interval", "figure"),
        doc.Column("verdict", "name"),
    ]
    yield from [doc.Section("Geometric means", [doc.Table(columns, means, headings=False)])] if means else []


def _figures(pair: Pair) -> tuple[str, str]:
    """What was compared: two step times, or two rates where a step is not the same amount of work."""
    if per_item(pair.a, pair.b):
        first, second = (units.rate(figures.step_rate(each), "").replace(" ", "") for each in (pair.a, pair.b))
        return first, second
    return _step_time(pair.a), _step_time(pair.b)


def _step_time(result: Result) -> str:
    return figures.step_time(result.estimate) if result.estimate else units.NOTHING


def _speed(pair: Pair, letters: Mapping[str, str]) -> str:
    """2.0× [ab]"""
    marks = "".join(sorted(letters.get(flaw.cause, "") for flaw in pair.flaws))
    return f"{speed(pair)} [{marks}]" if marks else speed(pair)


def _means(comparison: Comparison) -> list[tuple[str, Family]]:
    """The workloads with several cases, and all of them together where there are several and all were measured."""
    found = [(f"{each.name}, {each.count} cases", each) for each in comparison.families if each.count > 1]
    total = overall(comparison.families)
    measured = all(pair.assumed is None for pair in comparison.pairs)
    if total is not None and len(comparison.families) > 1 and measured:
        found.append((f"all {len(comparison.families)} workloads, each counted once", total))
    return found


def _overview(every: Sequence[Pairs], runs: Sequence[Run]) -> Iterator[doc.Block]:
    """A matrix with a row for each case of A that has a partner somewhere: its own time, then the speeds."""
    by_case = [{pair.case: pair for pair in pairs.comparison.pairs} for pairs in every]
    known = [result for result in runs[0].results if any(result.case.text in found for found in by_case)]
    if not known:
        yield doc.Lines(["Nothing could be compared."])
        return
    names = Names(shared_place(known))
    cells: list[list[doc.Cell]] = [[doc.Cell("case"), *(doc.Cell(letter(index)) for index in range(len(runs)))]]
    for result in known:
        speeds = [_answer(found.get(result.case.text), every[0].letters) for found in by_case]
        cells.append([doc.Cell(names.of(result)), doc.Cell(_step_time(result)), *speeds])
    means = [{mean.name: mean for _, mean in _means(pairs.comparison)} for pairs in every]
    order = sorted(dict.fromkeys(name for each in means for name in each), key=lambda name: name == "all workloads")
    cells += [
        [doc.Cell(f"mean of {name}"), doc.Cell(""), *(_answer(each.get(name), {}) for each in means)] for name in order
    ]
    if len(cells) < len(cells[0]):  # more runs than cases: runs go down, with their names
        cells = [list(column) for column in zip(*cells, strict=True)]
        for row, (number, run) in zip(cells[1:], enumerate(runs), strict=True):
            row[0] = doc.Cell(f"{letter(number)} {run.header.label or run.header.id}")
    heads, *rows = cells
    first, *titles = heads
    columns = [
        doc.Column(first.text, "case"),
        *(doc.Column(title.text, "value", most=_WIDEST_CELL) for title in titles),
    ]
    yield doc.Table(columns, rows, split=True)
    comparisons = [pairs.comparison for pairs in every]
    published = any(pair.assumed is not None for each in comparisons for pair in each.pairs)
    marks = [f"{doc.WORDS[answer].mark} {answer}" for answer in _ANSWERS if published or answer != "similar"]
    note = _footnote(comparisons, "how many times as fast as A", shown=False)
    yield doc.Lines([doc.Cell(note, "quiet"), doc.Cell("  ".join(marks), "quiet")])
    yield from _differences(every)


def _answer(row: Pair | Family | None, letters: Mapping[str, str]) -> doc.Cell:
    """2.00× ▲"""
    if row is None:
        return doc.Cell(units.NOTHING)
    known = isinstance(row, Pair) or row.low is not None
    said, _, marks = (_speed(row, letters) if isinstance(row, Pair) else speed(row)).partition(" ")
    look = doc.WORDS[row.verdict]
    return doc.Cell(" ".join(filter(None, (said, look.mark if known else " ", marks))), look.look)


def _differences(every: Sequence[Pairs]) -> list[doc.Block]:
    everywhere = [text for text in every[0].shared if all(text in pairs.shared for pairs in every)]
    rows = [Remark("all", ", ".join(everywhere))] if everywhere else []
    for pairs in every:
        special = [text for text in pairs.shared if text not in everywhere]
        special += [
            f"{pairs.names.of(pair.a)}: {', '.join(own)}"
            for pair in pairs.comparison.pairs
            if (own := pairs.remarks(pair))
        ]
        rows += [Remark(pairs.b.title, "; ".join(special))] if special else []
    return [doc.Section("What differs from A", [doc.Remarks(rows)])] if rows else []


def _not_compared(every: Sequence[Pairs]) -> list[doc.Block]:
    """What is missing is named once for all runs that lack it; why two results may not be compared, each by itself."""
    missing: dict[str, list[str]] = {}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for pairs in every:
        for each in pairs.comparison.unpaired:
            known = each.a or each.b
            name = pairs.names.of(known) if known else each.case
            if each.kind == "missing" and len(every) > 1:
                missing.setdefault(name, []).append(pairs.b.title if each.a else "A")
            else:
                groups.setdefault((each.kind, each.reason), {})[name] = None
    for name, letters in missing.items():
        groups.setdefault(("missing", f"not in {', '.join(dict.fromkeys(letters))}"), {})[name] = None
    rows = [Remark(kind, reason, cases=tuple(names)) for (kind, reason), names in groups.items()]
    return [doc.Section("Not compared", [doc.Remarks(rows)])] if rows else []


def _footnote(comparisons: Sequence[Comparison], what: str, shown: bool = True) -> str:
    """What the answers rest on; `shown`: the intervals are in the table."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    known = [pair for pair in pairs if pair.low is not None]
    interval = ", with its 95% interval over fresh processes" if shown and known else ""
    rows = f"; the verdicts hold for all {len(known)} of them together" if len(known) > 1 else ""
    assumed = f" Published figures have no interval: {units.relative(ASSUMED)} or more is assumed for each."
    return f"Speed: {what}{interval}{rows}." + assumed * any(pair.assumed is not None for pair in pairs)


def _resolution(comparisons: Sequence[Comparison]) -> str:
    """How many measured rows differ, and which differences would not have been seen."""
    pairs = [pair for each in comparisons for pair in each.pairs if pair.assumed is None and pair.visible is not None]
    if not pairs:
        return ""
    counts = {word: sum(pair.verdict == word for pair in pairs) for word in ("slower", "faster")}
    said = [f"{count or 'no'} {'row is' if count < 2 else 'rows are'} {word}" for word, count in counts.items()]
    shares = sorted(pair.visible or 0.0 for pair in pairs)
    middle, worst = units.percent(statistics.median(shares)), units.percent(shares[-1])
    more = f" (in the worst row, under {worst})" if worst != middle else ""
    found = said[0] if not counts["faster"] else ", ".join(said)
    return f"{found.capitalize()}; differences under {middle} would not be visible{more}."


def gate_lines(gate: Gate, complaints: Sequence[str] = (), option: str = "--fail-if-slower") -> list[str]:
    """The answer of a gate and why, one line each."""
    limit = units.percent(gate.limit)
    seen = f"differences under {units.percent(gate.visible)} would not be visible" if gate.visible is not None else ""
    if gate.word == "FAIL":
        return [*(f"FAIL: {text}" for text in complaints), *([seen] if seen else [])]
    if gate.word == "PASS":
        return [f"PASS: nothing is slower by more than {limit}; {seen}"]
    where = f" in {doc.some([pair.b.case.text for pair in gate.blind], 5)}" if gate.blind else ""
    first = f"INCONCLUSIVE: a slowdown of {limit} would not be visible{where}; {seen or 'no interval is known'}"
    if gate.decidable is None:
        return [first, "no limit can be decided by this data; measure in more processes"]
    return [first, f"{option} {gate.decidable:.0%} can be decided by this data; for less, measure in more processes"]


def complaints_of(gate: Gate) -> list[str]:
    """What a gate on stored runs fails for."""
    slower = [f"{row.name if isinstance(row, Family) else row.b.case.text} ({speed(row)})" for row in gate.slower]
    lost = [f"{each.case} ({each.reason})" for each in gate.lost]
    found = {f"slower by more than {units.percent(gate.limit)}": slower, "failed or missing now": lost}
    return [f"{title}: {doc.some(names, 5)}" for title, names in found.items() if names]


def _csv_rows(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> Iterator[list[doc.CsvValue]]:
    headers = [run.header for run in runs]
    inside = len(comparisons) == len(headers)
    sides = [(header, header) for header in headers] if inside else [(headers[0], other) for other in headers[1:]]
    for comparison, (a, b) in zip(comparisons, sides, strict=True):
        yield from (_csv_row(pair, a, b) for pair in comparison.pairs)
        yield from (_csv_row(each, a, b) for each in comparison.unpaired)


def _csv_row(row: Pair | Unpaired, a: RunHeader, b: RunHeader) -> list[doc.CsvValue]:
    cells: dict[str, doc.CsvValue] = {"a": a.id, "a_label": a.label, "b": b.id, "b_label": b.label, "case": row.case}
    cells |= {"partner": row.b.case.text if row.a and row.b else None}
    cells |= {"a_step_s": _step_s(row.a), "b_step_s": _step_s(row.b)}
    if isinstance(row, Pair):
        names = ("verdict", "ratio", "low", "high", "p_value", "basis", "visible", "assumed")
        cells |= {name: getattr(row, name) for name in names}
        cells |= {
            "speed": 1 / row.ratio,
            "speed_low": 1 / row.high if row.high else None,
            "speed_high": 1 / row.low if row.low else None,
            "differences": "; ".join(each.text for each in row.differences),
            "flaws": "; ".join(each.cause for each in row.flaws),
        }
    else:
        cells |= {"not_compared": row.kind, "reason": row.reason}
    return [cells.get(column) for column in _CSV_COLUMNS]


def _step_s(result: Result | None) -> float | None:
    return result.estimate.center_s if result and result.estimate else None
