"""Comparisons: two runs by row, several as a matrix, settings inside one run, and live."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from string import ascii_letters
from typing import Any

from msgspec.structs import replace

from torchmark.analyze import comparison as compared
from torchmark.analyze.comparison import Comparison, Family, Gate, LiveComparison, LiveSide, Pair, overall, per_item
from torchmark.analyze.grades import ASSUMED
from torchmark.analyze.pairing import axis_value, grouped, written
from torchmark.analyze.spread import Interval
from torchmark.analyze.wording import counted
from torchmark.records import DISTURBED, Case, Live, Remark, Result, Run, RunHeader
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import Names, machine_line, machine_of, shared_place, title
from torchmark.settings import VARIABLES, shareable_version

_CSV = doc.fields("""
    a=a.id a_label=a.label b=b.id b_label=b.label case=row.case partner verdict=row.verdict speed speed_low speed_high
    ratio=row.ratio low=row.low high=row.high p_value=row.p_value a_step_s=row.a.estimate.center_s
    b_step_s=row.b.estimate.center_s basis=row.basis differences not_compared=row.kind reason=row.reason
    visible=row.visible assumed=row.assumed flaws
""")
_NOTHING = doc.Lines(["Nothing could be compared."])


class Pairs:
    """A comparison with the names of its sides and what all pairs share; `letters` by cause of a known flaw."""

    def __init__(self, comparison: Comparison, letters: Mapping[str, str], b: str = "") -> None:
        self.comparison, self.letters = comparison, letters
        self.axis = None if b else comparison.axis  # what is compared inside a run
        self.a, self.b = "A", b
        self.shown_axis: str | None = None  # if rows compare different pairs of values
        if axis := self.axis:
            values = {(axis_value(pair.a, axis), axis_value(pair.b, axis)) for pair in comparison.pairs}
            names = [each if isinstance(each, str) else f"{axis} {written(each)}" for both in values for each in both]
            self.a, self.b = names if len(names) == 2 else ("baseline", "other")
            self.shown_axis = axis if len(names) != 2 else None
        firsts = [pair.a for pair in comparison.pairs] or [each.a for each in comparison.unpaired if each.a]
        self.names = Names(shared_place(firsts))
        alike = list(map(self._remarks, comparison.pairs))
        self.shared = [text for text in alike[0] if all(text in texts for texts in alike)] if alike else []

    def _remarks(self, pair: Pair) -> list[str]:
        found = [each.text for each in pair.differences if each.name != self.axis]
        for result, side in ((pair.a, self.a), (pair.b, self.b)):
            if result.estimate and result.estimate.verdict in DISTURBED:
                found.append(f"{result.estimate.verdict} {'with' if self.axis else 'in'} {side}")
        return found + ([f"no interval: {pair.no_interval}"] if pair.no_interval else [])

    def remarks(self, pair: Pair) -> list[str]:
        axis = self.shown_axis
        values = [f"{axis} {written(axis_value(pair.a, axis))} → {written(axis_value(pair.b, axis))}"] if axis else []
        return values + [text for text in self._remarks(pair) if text not in self.shared]

    def speed(self, row: Pair | Family) -> str:
        """2.0× [ab]"""
        marks = "".join(sorted(self.letters.get(flaw.cause, "") for flaw in getattr(row, "flaws", ())))
        return f"{speed(row)} [{marks}]" if marks else speed(row)

    @property
    def means(self) -> list[tuple[str, Family]]:
        """Workloads with several cases, and all together where several were measured."""
        families = self.comparison.families
        found = [(f"{each.name}, {each.count} cases", each) for each in families if each.count > 1]
        measured = all(pair.assumed is None for pair in self.comparison.pairs)
        if len(families) > 1 and measured and (total := overall(families)):
            found.append((f"all {len(families)} workloads, each counted once", total))
        return found


def _row(row: Any, a: RunHeader, b: RunHeader) -> dict[str, Any]:
    """The values of a CSV row about a pair or an uncompared case."""
    ratios = {"speed": "ratio", "speed_low": "high", "speed_high": "low"}
    speeds = {name: 1 / ratio if (ratio := getattr(row, field, None)) else None for name, field in ratios.items()}
    differences = "; ".join(known.text for known in getattr(row, "differences", ()))
    flaws = "; ".join(flaw.cause for flaw in getattr(row, "flaws", ()))
    partner = row.b.case.text if row.a and row.b else None
    return {"row": row, "a": a, "b": b, "partner": partner, "differences": differences, "flaws": flaws} | speeds


def comparison_document(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> doc.Document:
    """One comparison inside each run, or of each later run with the first."""
    headers = [run.header for run in runs]
    inside = len(comparisons) == len(headers)
    sides = [(header, header) for header in headers] if inside else [(headers[0], other) for other in headers[1:]]
    pairs = zip(comparisons, sides, strict=True)
    rows = [_row(row, a, b) for each, (a, b) in pairs for row in (*each.pairs, *each.unpaired)]

    def blocks() -> Iterator[doc.Block]:
        flaws = (flaw.cause for comparison in comparisons for pair in comparison.pairs for flaw in pair.flaws)
        letters = dict(zip(dict.fromkeys(flaws), ascii_letters, strict=False))
        if inside:
            for comparison, run in zip(comparisons, runs, strict=True):
                pairs = Pairs(comparison, letters)
                yield doc.Title(title(run), [machine_of(run)])
                yield from _pairs(pairs)
                yield _not_compared([pairs])
        else:
            yield doc.Facts([(letter(at), f"{title(run)} · {machine_of(run)}") for at, run in enumerate(runs)])
            every = [Pairs(comparison, letters, letter(number)) for number, comparison in enumerate(comparisons, 1)]
            yield from _overview(every, runs) if len(every) > 1 else _pairs(every[0])
            yield _not_compared(every)
            sections = [doc.Section(f"{pairs.b} against A", [*_pairs(pairs)], only="text") for pairs in every]
            yield from sections if len(every) > 1 else ()
        marked = [(f"[{mark}]", cause) for cause, mark in letters.items()]
        yield doc.Section("Known flaws of the published figures", [doc.Facts(marked)])
        yield doc.Lines([_resolution(comparisons)])

    about = {"runs": headers, "comparisons": comparisons}
    return doc.Document(blocks, doc.Records(_CSV, lambda: rows, lambda: about, lambda: [each["row"] for each in rows]))


def letter(index: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def speed(row: Pair | Family) -> str:
    """How many times as fast B is as A; two digits against a published figure."""
    return units.factor(1 / row.ratio, rough=isinstance(row, Pair) and row.assumed is not None)


def interval(row: Pair | Family) -> str:
    if isinstance(row, Pair) and row.assumed is not None:
        return units.relative(row.assumed)
    if row.low is None or row.high is None:
        return units.NOTHING
    ends = (1 / row.high, 1 / row.low)
    return " – ".join(f"{x:.2f}" if 0.095 <= x < 9.995 else f"{x:.2g}" if x < 1 else units.digits(x) for x in ends)


def _pairs(pairs: Pairs) -> Iterator[doc.Block]:
    found = pairs.comparison.pairs
    if not found:
        yield _NOTHING
        return
    yield doc.Lines([" · ".join(("Every pair", *pairs.shared)) if pairs.shared else ""])

    def speed_of(pair: Pair, result: Result) -> str:
        """A step time, or a rate where a step is not the same amount of work."""
        if per_item(pair.a, pair.b):
            return units.rate(figures.step_rate(result), "").replace(" ", "")
        return figures.step_time(result.estimate)

    assumed = all(pair.assumed is not None for pair in found)
    columns = [
        doc.Column("case", "case", of=lambda pair: pairs.names.of(pair.a)),
        doc.Column(pairs.a, "figure", of=lambda pair: speed_of(pair, pair.a)),
        doc.Column(pairs.b, "figure", of=lambda pair: speed_of(pair, pair.b)),
        doc.Column("speed", "figure", of=pairs.speed),
        doc.Column("assumed ±" if assumed else "95% interval", "figure", drop=1, of=interval),
        doc.Column("verdict", "name", of=lambda pair: doc.judged(pair.verdict)),
    ]
    yield doc.table(columns, found, notes=[" · ".join(pairs.remarks(pair)) for pair in found], note_title="differs in")
    what = f"how many times as fast {pairs.b} is as {pairs.a}"
    if pairs.shown_axis:
        what = f"that of the second {pairs.axis} against that of the first"
    yield doc.quiet(_footnote([pairs.comparison], what))
    columns = [
        doc.Column("cases", of="0"),
        doc.Column("speed", "figure", of=lambda mean: speed(mean[1])),
        doc.Column("95% interval", "figure", of=lambda mean: "" if mean[1].low is None else interval(mean[1])),
        doc.Column("verdict", "name", of=lambda mean: "" if mean[1].low is None else doc.judged(mean[1].verdict)),
    ]
    yield doc.Section("Geometric means", [doc.table(columns, pairs.means, headings=False)])


def _overview(every: Sequence[Pairs], runs: Sequence[Run]) -> Iterator[doc.Block]:
    """A matrix: for each case of A with a partner its time, then the speeds."""
    by_case = [{pair.case: pair for pair in pairs.comparison.pairs} for pairs in every]
    known = [result for result in runs[0].results if any(result.case.text in found for found in by_case)]
    if not known:
        yield _NOTHING
        return

    def speeds(rows: Sequence[Mapping[str, Pair | Family]], name: str) -> Iterator[doc.Cell]:
        """2.00× ▲, for each run"""
        for pairs, row in zip(every, (of_run.get(name) for of_run in rows), strict=True):
            if row is None:
                yield doc.Cell(units.NOTHING)
            else:
                answered = isinstance(row, Pair) or row.low is not None
                said, _, marks = pairs.speed(row).partition(" ")
                look = doc.WORDS[row.verdict]
                yield doc.Cell(" ".join(filter(None, (said, look.mark if answered else " ", marks))), look.look)

    names = Names(shared_place(known))
    cells = [[doc.Cell("case"), *(doc.Cell(letter(index)) for index in range(len(runs)))]]
    for result in known:
        first = [doc.Cell(names.of(result)), doc.Cell(figures.step_time(result.estimate))]
        cells.append([*first, *speeds(by_case, result.case.text)])
    means = [{mean.name: mean for _, mean in pairs.means} for pairs in every]
    ordered = sorted(dict.fromkeys(name for each in means for name in each), key=lambda name: name == "all workloads")
    cells += [[doc.Cell(f"mean of {name}"), doc.Cell(""), *speeds(means, name)] for name in ordered]
    if len(cells) < len(cells[0]):  # more runs than cases: runs go down, with their names
        cells = [list(column) for column in zip(*cells, strict=True)]
        for number, run in enumerate(runs):
            cells[number + 1][0] = doc.Cell(f"{letter(number)} {run.header.label or run.header.id}")
    (corner, *titles), *rows = cells
    columns = [doc.Column(title.text, "value", most=22) for title in titles]
    yield doc.Table([doc.Column(corner.text, "case"), *columns], rows, split=True)
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
    yield doc.remarks("What differs from A", [each for each in differing if each.cause])


def _not_compared(every: Sequence[Pairs]) -> doc.Section:
    """Each missing case once for all runs without it; each reason with its cases."""
    missing: dict[str, dict[str, None]] = {}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for pairs, each in [(own, each) for own in every for each in own.comparison.unpaired]:
        known = each.a or each.b
        name = pairs.names.of(known) if known else each.case
        if each.kind == "missing" and len(every) > 1:
            missing.setdefault(name, {})[pairs.b if each.a else "A"] = None
        else:
            groups.setdefault((each.kind, each.reason), {})[name] = None
    for name, letters in missing.items():
        groups.setdefault(("missing", f"not in {', '.join(letters)}"), {})[name] = None
    return doc.remarks("Not compared", [Remark(kind, why, cases=tuple(own)) for (kind, why), own in groups.items()])


def _footnote(comparisons: Sequence[Comparison], what: str, shown: bool = True) -> str:
    """What the answers rest on; `shown`: the intervals are in the table."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    count = sum(pair.low is not None for pair in pairs)
    said = f"Speed: {what}{', with its 95% interval over fresh processes' if shown and count else ''}"
    said += f"; the verdicts hold for all {count} of them together." if count > 1 else "."
    if any(pair.assumed is not None for pair in pairs):
        said += f" Published figures have no interval: {units.relative(ASSUMED)} or more is assumed for each."
    return said


def _resolution(comparisons: Sequence[Comparison]) -> str:
    known = [each for each in comparisons if each.visible is not None]
    if not known:
        return ""
    measured = [pair for each in known for pair in each.pairs if pair.assumed is None and pair.visible is not None]
    counts = {word: sum(pair.verdict == word for pair in measured) for word in ("slower", "faster")}
    said = [f"{count or 'no'} {'row is' if count < 2 else 'rows are'} {word}" for word, count in counts.items()]
    said = said if counts["faster"] else said[:1]
    middle = units.percent(median(each.visible or 0.0 for each in known))
    worst = units.percent(max(each.visible_worst or 0.0 for each in known))
    more = f" (in the worst row, under {worst})" if worst != middle else ""
    return f"{', '.join(said).capitalize()}; differences under {middle} would not be visible{more}."


def gate_lines(gate: Gate, complaints: Sequence[str] = (), option: str = "--fail-if-slower") -> list[str]:
    limit = units.percent(gate.limit)
    seen = "" if gate.visible is None else f"differences under {units.percent(gate.visible)} would not be visible"
    if gate.word == "FAIL":
        slower = [f"{row.name if isinstance(row, Family) else row.b.case.text} ({speed(row)})" for row in gate.slower]
        lost = [f"{each.case} ({each.reason})" for each in gate.lost]
        found = {f"slower by more than {limit}": slower, "failed or missing now": lost}
        complaints = [*complaints, *(f"{title}: {doc.some(names, 5)}" for title, names in found.items() if names)]
        return [*(f"FAIL: {text}" for text in complaints), *filter(None, [seen])]
    if gate.word == "PASS":
        return [f"PASS: nothing is slower by more than {limit}; {seen}"]
    where = f" in {doc.some([pair.b.case.text for pair in gate.blind], 5)}" if gate.blind else ""
    first = f"INCONCLUSIVE: a slowdown of {limit} would not be visible{where}; {seen or 'no interval is known'}"
    limits = "no limit" if gate.decidable is None else f"{option} {gate.decidable:.0%}"
    more = "" if gate.decidable is None else "for less, "
    return [first, f"{limits} can be decided by this data; {more}measure in more processes"]


_LIVE_CSV = doc.fields("""
    case_a=a.result.case.text case_b=b.result.case.text verdict ratio low high pairs stopped status_a=a.result.status
    status_b=b.result.status step_a_s=a.result.estimate.center_s step_b_s=b.result.estimate.center_s first_step_a_s
    first_step_b_s memory_a_bytes memory_b_bytes torch_a=a.machine.torch torch_b=b.machine.torch
""") | {
    "pairs": lambda found: len(found.ratios),
    "first_step_a_s": lambda found: _first_step_s(found.a.result),
    "first_step_b_s": lambda found: _first_step_s(found.b.result),
    "memory_a_bytes": lambda found: figures.peak_memory(found.a.result),
    "memory_b_bytes": lambda found: figures.peak_memory(found.b.result),
}
_STOPPED = {
    "clear": "It stopped when the answer was clear.",
    "precise": "It stopped at the precision that was asked for.",
    "pairs": "It stopped after as many pairs as it ever takes.",
    "budget": "It stopped when the budget was spent.",
    "failed": "It stopped when a process failed.",
    "interrupted": "It was interrupted.",
}
_FIXES = {"budget": "Give it more time with --budget.", "pairs": "The machine is too busy: close other programs."}
_DISTURBED = ("contended", "throttled", "slowing", "paging", "oversubscribed")  # alike for sides that take turns
_ALIKE = "Both sides took turns, so the ratio suffers less than the times; on a quiet machine the interval is narrower."


def live_document(found: LiveComparison) -> doc.Document:
    """Shared formats name neither unknown environment variables nor local versions."""
    unknown = [name for name in {**found.a.environment, **found.b.environment} if name not in VARIABLES]
    names = {name: f"a variable {number}" if number > 1 else "a variable" for number, name in enumerate(unknown, 1)}

    def shareable(side: LiveSide) -> LiveSide:
        environment = {names.get(name, name): value for name, value in side.environment.items()}
        packages = {name: shareable_version(version) for name, version in side.packages.items()}
        return replace(side, environment=environment, packages=packages)

    shared = replace(found, a=shareable(found.a), b=shareable(found.b))
    records = doc.Records(_LIVE_CSV, lambda: [shared], lambda: shared, lambda: [shared])
    return doc.Document(lambda: _live_blocks(found, shared), records)


def so_far(interval: Interval | None) -> str:
    if interval is None:
        return "no interval yet"
    return f"B is {units.factor(1 / interval.center)} as fast {units.relative(interval.precision)}"


def side_line(name: str, case: Case, python: str, environment: Mapping[str, str]) -> str:
    return " ".join([f"{name}: {case.text} by {python}", *(f"{key}={value}" for key, value in environment.items())])


def live_answer(found: LiveComparison | Live) -> list[str]:
    """The answer, then what it rests on and what would make it better."""
    count, stopped = len(found.ratios), _STOPPED[found.stopped]
    if not count or found.ratio is None:
        broken = "" if isinstance(found, Live) else " and ".join(name for name, _ in _sides(found, failed=True))
        return [f"No answer: {f'{broken} failed' if broken else 'nothing was measured'}.", stopped]
    ends = ", by one pair of processes"
    if found.low is not None and found.high is not None:
        ends = f" ({units.between(1 / found.high, 1 / found.low)})"
    verdict = "the same within 3%" if found.verdict == "same" else found.verdict
    pairs = f"{counted(count, 'pair')} of fresh processes that took turns"
    known = f"95% interval over {pairs}." if count > 1 else f"{pairs.capitalize()}."
    fix = _FIXES.get(found.stopped, "") if found.verdict == "unsure" else ""
    basis = f"{known} {stopped} {fix}".rstrip()
    return [f"B is {units.factor(1 / found.ratio)} as fast as A{ends}: {verdict}.", basis]


def live_conclusion(run: Run) -> list[str]:
    live = run.live
    assert live
    against = "" if live.a == live.b else f", measured against {(live.a if live.side == 'B' else live.b).text}"
    return [*live_answer(live), f"This run is side {live.side}{against}."]


def _sides(found: LiveComparison, failed: bool = False) -> list[tuple[str, LiveSide]]:
    sides = [("A", found.a), ("B", found.b)]
    return [each for each in sides if not failed or each[1].result.status not in ("ok", "interrupted")]


def _live_blocks(found: LiveComparison, shared: LiveComparison) -> Iterator[doc.Block]:
    a, b = found.a.result.case.text, found.b.result.case.text
    machine = found.a.machine or found.b.machine
    about = [machine_line(replace(machine, torch=None))] if machine else []
    yield doc.Title(f"{a} · A against B" if a == b else f"A {a} against B {b}", about)
    yield doc.answer(live_answer(found), doc.word(found.verdict).look)
    columns = [
        doc.Column("", "name", of="0"),
        doc.Column("per step", "figure", of="1.estimate", written=figures.step_time),
        doc.Column("±", "figure", drop=1, of="1.estimate", written=figures.margin),
        doc.Column("rate", "figure", drop=2, of="1", written=figures.rate),
        doc.Column("first step", "figure", drop=3, of=lambda side: _first_step_s(side[1]), written=units.duration),
        doc.Column("memory", "figure", drop=4, of=lambda side: figures.peak_memory(side[1]), written=units.size),
    ]
    yield doc.table(columns, [(name, side.result) for name, side in _sides(found) if found.ratios])
    columns = [doc.Column("differs", "name", of="name"), doc.Column("A", of="a"), doc.Column("B", of="b")]
    own, public = (compared.live_differences(each.a, each.b) for each in (found, shared))
    yield doc.Section("", [doc.table(columns, own)], only="terminal")
    yield doc.Section("", [doc.table(columns, public)], only="text")
    nothing = "Nothing is known to differ between A and B: a difference would be chance."
    yield doc.quiet(nothing if found.ratios and not own else "")
    for name, side in _sides(found, failed=True):
        remark = Remark(side.result.status, side.result.reason or "no reason was given", cases=(name,))
        yield doc.Section("Without a figure", [doc.Remarks([remark], local=[side.result.detail])])
        yield doc.Section("", [doc.Code("\n".join(side.last_words))], only="terminal")
    known = [(name, each) for name, side in _sides(found) for each in side.result.cautions if each.kind in _DISTURBED]
    # One of each kind: what disturbed one side disturbed the other.
    kinds = [own[0] for own in grouped(known, lambda each: each[1].kind).values()]
    cautions = [Remark(each.kind, each.cause, cases=(name,)) for name, each in kinds]
    yield doc.Section("Cautions", [doc.Remarks(cautions), doc.quiet(_ALIKE if cautions else "")])


def _first_step_s(result: Result) -> float | None:
    """The median: a single first step says little."""
    return median(process.first_step_s for process in result.processes) if result.processes else None
