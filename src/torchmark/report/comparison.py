"""Comparisons of runs: two of them row by row, several as a matrix against the first, or settings inside one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters
from typing import Any

from torchmark.analyze.comparison import Comparison, Family, Gate, Pair, overall, per_item
from torchmark.analyze.grades import ASSUMED
from torchmark.analyze.pairing import axis_value, written
from torchmark.records import DISTURBED, Remark, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import Names, machine_of, shared_place, title

# By a pair or what could not be compared, and the headers of both runs.
_CSV: dict[str, doc.Field] = {
    "a": "a.id",
    "a_label": "a.label",
    "b": "b.id",
    "b_label": "b.label",
    "case": "row.case",
    "partner": lambda each: each["row"].b.case.text if each["row"].a and each["row"].b else None,
    "verdict": "row.verdict",
    "speed": lambda each: _inverse(each, "row.ratio"),
    "speed_low": lambda each: _inverse(each, "row.high"),
    "speed_high": lambda each: _inverse(each, "row.low"),
    **{name: f"row.{name}" for name in ("ratio", "low", "high", "p_value")},
    "a_step_s": "row.a.estimate.center_s",
    "b_step_s": "row.b.estimate.center_s",
    "basis": "row.basis",
    "differences": lambda each: "; ".join(known.text for known in getattr(each["row"], "differences", ())),
    "not_compared": "row.kind",
    "reason": "row.reason",
    "visible": "row.visible",
    "assumed": "row.assumed",
    "flaws": lambda each: "; ".join(flaw.cause for flaw in getattr(each["row"], "flaws", ())),
}
_BASELINE = "baseline"
_NOTHING = doc.Lines(["Nothing could be compared."])


class Pairs:
    """One comparison with what its rows need: how both sides are called, and what all pairs have in common.
    `letters` are of known flaws, by their causes: of all comparisons that are shown together."""

    def __init__(self, comparison: Comparison, letters: Mapping[str, str], b: str = "") -> None:
        self.comparison, self.letters = comparison, letters
        self.axis = None if b else comparison.axis  # what is compared inside a run
        self.a, self.b = "A", b
        if axis := self.axis:  # called by the two values where all rows compare the same two
            values = {(axis_value(pair.a, axis), axis_value(pair.b, axis)) for pair in comparison.pairs}
            names = [each if isinstance(each, str) else f"{axis} {written(each)}" for both in values for each in both]
            self.a, self.b = names if len(names) == 2 else (_BASELINE, "other")
        firsts = [pair.a for pair in comparison.pairs] or [each.a for each in comparison.unpaired if each.a]
        self.names = Names(shared_place(firsts))
        alike = [self._remarks(pair) for pair in comparison.pairs]
        self.shared = [text for text in alike[0] if all(text in texts for texts in alike)] if alike else []

    @property
    def shown_axis(self) -> str | None:
        """The axis, where the rows must say themselves which two values of it they compare."""
        return self.axis if self.a == _BASELINE else None

    def _remarks(self, pair: Pair) -> list[str]:
        found = [each.text for each in pair.differences if each.name != self.axis]
        for result, side in ((pair.a, self.a), (pair.b, self.b)):
            if result.estimate and result.estimate.verdict in DISTURBED:
                found.append(f"{result.estimate.verdict} {'with' if self.axis else 'in'} {side}")
        return found + ([f"no interval: {pair.no_interval}"] if pair.no_interval else [])

    def remarks(self, pair: Pair) -> list[str]:
        """What a pair has in particular: the values it compares, what differs, what disturbed."""
        axis = self.shown_axis
        values = [f"{axis} {written(axis_value(pair.a, axis))} → {written(axis_value(pair.b, axis))}"] if axis else []
        return values + [text for text in self._remarks(pair) if text not in self.shared]

    def speed(self, row: Pair | Family) -> str:
        """2.0× [ab]"""
        marks = "".join(sorted(self.letters.get(flaw.cause, "") for flaw in getattr(row, "flaws", ())))
        return f"{speed(row)} [{marks}]" if marks else speed(row)

    @property
    def means(self) -> list[tuple[str, Family]]:
        """The workloads with several cases, and all together where there are several and all were measured."""
        families = self.comparison.families
        found = [(f"{each.name}, {each.count} cases", each) for each in families if each.count > 1]
        total = overall(families)
        measured = all(pair.assumed is None for pair in self.comparison.pairs)
        if total is not None and len(families) > 1 and measured:
            found.append((f"all {len(families)} workloads, each counted once", total))
        return found


def comparison_document(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> doc.Document:
    """There is one comparison inside each run, or one of each later run with the first."""
    headers = [run.header for run in runs]
    inside = len(comparisons) == len(headers)
    sides = [(header, header) for header in headers] if inside else [(headers[0], other) for other in headers[1:]]
    pairs = zip(comparisons, sides, strict=True)
    rows = [{"row": row, "a": a, "b": b} for each, (a, b) in pairs for row in (*each.pairs, *each.unpaired)]
    about = {"runs": headers, "comparisons": comparisons}

    def blocks() -> Iterator[doc.Block]:
        flaws = (flaw.cause for comparison in comparisons for pair in comparison.pairs for flaw in pair.flaws)
        letters = dict(zip(dict.fromkeys(flaws), ascii_letters, strict=False))
        if inside:
            for comparison, run in zip(comparisons, runs, strict=True):
                pairs = Pairs(comparison, letters)
                what = f"how many times as fast {pairs.b} is as {pairs.a}"
                if pairs.shown_axis:
                    what = f"that of the second {pairs.axis} against that of the first"
                yield doc.Title(title(run), [machine_of(run)])
                yield from _pairs(pairs, what)
                yield _not_compared([pairs])
        else:
            about = [" · ".join((title(run), machine_of(run))) for run in runs]
            yield doc.Facts([(letter(number), each) for number, each in enumerate(about)])
            every = [Pairs(comparison, letters, letter(number)) for number, comparison in enumerate(comparisons, 1)]
            one = len(every) == 1
            yield from _pairs(every[0], "how many times as fast B is as A") if one else _overview(every, runs)
            yield _not_compared(every)
            for pairs in () if one else every:
                details = [*_pairs(pairs, f"how many times as fast {pairs.b} is as A")]
                yield doc.Section(f"{pairs.b} against A", details, only="text")
        known = [(f"[{mark}]", cause) for cause, mark in letters.items()]
        yield doc.Section("Known flaws of the published figures", [doc.Facts(known)])
        yield doc.Lines([_resolution(comparisons)])

    return doc.Document(blocks, doc.Records(_CSV, lambda: rows, lambda: about, lambda: [each["row"] for each in rows]))


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
    ends = (1 / row.high, 1 / row.low)
    return " – ".join(f"{x:.2f}" if 0.095 <= x < 9.995 else f"{x:.2g}" if x < 1 else units.digits(x) for x in ends)


def _inverse(record: dict[str, Any], field: str) -> float | None:
    value = doc.value_of(record, field)
    return 1 / value if value else None


def _pairs(pairs: Pairs, what: str) -> Iterator[doc.Block]:
    found = pairs.comparison.pairs
    yield doc.Lines([" · ".join(("Every pair", *pairs.shared)) if pairs.shared else ""])
    if not found:
        yield _NOTHING
        return

    def compared(pair: Pair) -> list[str]:
        """Two step times, or two rates where a step is not the same amount of work."""
        if per_item(pair.a, pair.b):
            return [units.rate(figures.step_rate(each), "").replace(" ", "") for each in (pair.a, pair.b)]
        return [figures.result_time(pair.a), figures.result_time(pair.b)]

    assumed = all(pair.assumed is not None for pair in found)
    columns = [
        doc.Column("case", "case", of=lambda pair: pairs.names.of(pair.a)),
        doc.Column(pairs.a, "figure", of=lambda pair: compared(pair)[0]),
        doc.Column(pairs.b, "figure", of=lambda pair: compared(pair)[1]),
        doc.Column("speed", "figure", of=pairs.speed),
        doc.Column("assumed ±" if assumed else "95% interval", "figure", drop=1, of=interval),
        doc.Column("verdict", "name", of=lambda pair: doc.judged(pair.verdict)),
    ]
    notes = [" · ".join(pairs.remarks(pair)) for pair in found]
    yield doc.table(columns, found, notes=notes, note_title="differs in")
    yield doc.quiet(_footnote([pairs.comparison], what))
    columns = [
        doc.Column("cases", of=lambda mean: mean[0]),
        doc.Column("speed", "figure", of=lambda mean: speed(mean[1])),
        doc.Column("95% interval", "figure", of=lambda mean: "" if mean[1].low is None else interval(mean[1])),
        doc.Column("verdict", "name", of=lambda mean: "" if mean[1].low is None else doc.judged(mean[1].verdict)),
    ]
    yield doc.Section("Geometric means", [doc.table(columns, pairs.means, headings=False)])


def _overview(every: Sequence[Pairs], runs: Sequence[Run]) -> Iterator[doc.Block]:
    """A matrix with a row for each case of A that has a partner somewhere: its own time, then the speeds."""
    by_case = [{pair.case: pair for pair in pairs.comparison.pairs} for pairs in every]
    known = [result for result in runs[0].results if any(result.case.text in found for found in by_case)]
    if not known:
        yield _NOTHING
        return

    def answer(pairs: Pairs, row: Pair | Family | None) -> doc.Cell:
        """2.00× ▲"""
        if row is None:
            return doc.Cell(units.NOTHING)
        answered = isinstance(row, Pair) or row.low is not None
        said, _, marks = pairs.speed(row).partition(" ")
        look = doc.WORDS[row.verdict]
        return doc.Cell(" ".join(filter(None, (said, look.mark if answered else " ", marks))), look.look)

    names = Names(shared_place(known))
    cells = [list(map(doc.Cell, ("case", *map(letter, range(len(runs))))))]
    for result in known:
        speeds = [answer(pairs, found.get(result.case.text)) for pairs, found in zip(every, by_case, strict=True)]
        cells.append([doc.Cell(names.of(result)), doc.Cell(figures.result_time(result)), *speeds])
    means = [{mean.name: mean for _, mean in pairs.means} for pairs in every]
    families = dict.fromkeys(name for each in means for name in each)
    for name in sorted(families, key=lambda name: name == "all workloads"):
        speeds = [answer(pairs, each.get(name)) for pairs, each in zip(every, means, strict=True)]
        cells.append([doc.Cell(f"mean of {name}"), doc.Cell(""), *speeds])
    if len(cells) < len(cells[0]):  # more runs than cases: runs go down, with their names
        cells = [list(column) for column in zip(*cells, strict=True)]
        for row, (number, run) in zip(cells[1:], enumerate(runs), strict=True):
            row[0] = doc.Cell(f"{letter(number)} {run.header.label or run.header.id}")
    (first, *titles), *rows = cells
    columns = [doc.Column(title.text, "value", most=22) for title in titles]
    yield doc.Table([doc.Column(first.text, "case"), *columns], rows, split=True)
    comparisons = [pairs.comparison for pairs in every]
    published = any(pair.assumed is not None for each in comparisons for pair in each.pairs)
    looks = {name: look.mark for name, look in doc.WORDS.items() if look.mark and (published or name != "similar")}
    marks = "  ".join(f"{mark} {name}" for name, mark in looks.items())
    yield doc.quiet(_footnote(comparisons, "how many times as fast as A", shown=False), marks)
    everywhere = [text for text in every[0].shared if all(text in pairs.shared for pairs in every)]
    differing = [Remark("all", ", ".join(everywhere))]
    for pairs in every:
        own = {pair.case: (pairs.names.of(pair.a), pairs.remarks(pair)) for pair in pairs.comparison.pairs}
        special = [text for text in pairs.shared if text not in everywhere]
        special += [f"{name}: {', '.join(texts)}" for name, texts in own.values() if texts]
        differing.append(Remark(pairs.b, "; ".join(special)))
    yield doc.Section("What differs from A", [doc.Remarks([each for each in differing if each.cause])])


def _not_compared(every: Sequence[Pairs]) -> doc.Section:
    """What is missing is named once for all runs that lack it; why two results may not be compared, each by itself."""
    missing: dict[str, dict[str, None]] = {}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for pairs in every:
        for each in pairs.comparison.unpaired:
            known = each.a or each.b
            name = pairs.names.of(known) if known else each.case
            if each.kind == "missing" and len(every) > 1:
                missing.setdefault(name, {})[pairs.b if each.a else "A"] = None
            else:
                groups.setdefault((each.kind, each.reason), {})[name] = None
    for name, letters in missing.items():
        groups.setdefault(("missing", f"not in {', '.join(letters)}"), {})[name] = None
    rows = [Remark(kind, reason, cases=tuple(names)) for (kind, reason), names in groups.items()]
    return doc.Section("Not compared", [doc.Remarks(rows)])


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
    known = [each for each in comparisons if each.visible is not None]
    if not known:
        return ""
    measured = [pair for each in known for pair in each.pairs if pair.assumed is None and pair.visible is not None]
    counts = {word: sum(pair.verdict == word for pair in measured) for word in ("slower", "faster")}
    said = [f"{count or 'no'} {'row is' if count < 2 else 'rows are'} {word}" for word, count in counts.items()]
    middle = units.percent(statistics.median(each.visible or 0.0 for each in known))
    worst = units.percent(max(each.visible_worst or 0.0 for each in known))
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
