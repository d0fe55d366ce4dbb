"""A live comparison: the answer in words, both sides' figures, what differs between them, what disturbed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from msgspec.structs import replace

from torchmark.analyze.comparison import LiveComparison, LiveSide, live_differences, recall_live
from torchmark.analyze.spread import Interval
from torchmark.analyze.wording import counted
from torchmark.records import Case, Remark, Result, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import machine_line
from torchmark.settings import VARIABLES, shareable_version

_CSV: dict[str, doc.Field] = {
    **{f"case_{side}": f"{side}.result.case.text" for side in "ab"},
    **{name: name for name in ("verdict", "ratio", "low", "high")},
    "pairs": lambda found: len(found.ratios),
    "stopped": "stopped",
    **{f"status_{side}": f"{side}.result.status" for side in "ab"},
    **{f"step_{side}_s": f"{side}.result.estimate.center_s" for side in "ab"},
    "first_step_a_s": lambda found: _first_step_s(found.a.result),
    "first_step_b_s": lambda found: _first_step_s(found.b.result),
    "memory_a_bytes": lambda found: figures.peak_memory(found.a.result),
    "memory_b_bytes": lambda found: figures.peak_memory(found.b.result),
    **{f"torch_{side}": f"{side}.machine.torch" for side in "ab"},
}
_STOPPED = {
    "clear": "It stopped when the answer was clear.",
    "precise": "It stopped at the precision that was asked for.",
    "pairs": "It stopped after as many pairs as it ever takes.",
    "budget": "It stopped when the budget was spent.",
    "failed": "It stopped when a process failed.",
    "interrupted": "It was interrupted.",
}
_MORE = {
    "budget": "Give it more time with --budget.",
    "pairs": "The machine is too restless: stop what else is running.",
}
# What would spoil a comparison of two runs that were measured one after the other; here both sides had it.
_DISTURBED = ("contended", "throttled", "slowing", "paging", "oversubscribed")
_ALIKE = "Both sides took turns, so the ratio suffers less than the times; on a quiet machine the interval is narrower."
_NOTHING_DIFFERS = "Nothing is known to differ between A and B: a difference would be chance."


def live_document(found: LiveComparison) -> doc.Document:
    """The comparison. What is made to be passed on has no names of variables that torchmark does not know, and no
    local versions."""
    unknown = [name for name in {**found.a.environment, **found.b.environment} if name not in VARIABLES]
    names = {name: f"a variable {number}" if number > 1 else "a variable" for number, name in enumerate(unknown, 1)}

    def shareable(side: LiveSide) -> LiveSide:
        environment = {names.get(name, name): value for name, value in side.environment.items()}
        packages = {name: shareable_version(version) for name, version in side.packages.items()}
        return replace(side, environment=environment, packages=packages)

    shared = replace(found, a=shareable(found.a), b=shareable(found.b))
    records = doc.Records(_CSV, lambda: [shared], lambda: shared, lambda: [shared])
    return doc.Document(lambda: _blocks(found, shared), records)


def so_far(interval: Interval | None) -> str:
    """What is known while pairs still come in."""
    if interval is None:
        return "no interval yet"
    reach = (interval.high - interval.low) / 2 / interval.center
    return f"B is {units.factor(1 / interval.center)} as fast {units.relative(reach)}"


def side_line(name: str, case: Case, python: str, environment: Mapping[str, str]) -> str:
    """One side as it was asked for."""
    return " ".join([f"{name}: {case.text} by {python}", *(f"{key}={value}" for key, value in environment.items())])


def answer(found: LiveComparison) -> str:
    """The answer in one sentence."""
    broken = [name for name, _ in _sides(found, failed=True)]
    if not found.ratios or found.ratio is None:
        return f"No answer: {' and '.join(broken) or 'nothing'} {'failed' if broken else 'was measured'}."
    verdict = {"same": "the same within 3%"}.get(found.verdict, found.verdict)
    speed = f"B is {units.factor(1 / found.ratio)} as fast as A"
    if found.low is None or found.high is None:
        return f"{speed}, by one pair of processes: {verdict}."
    return f"{speed} ({units.bound(1 / found.high)} to {units.bound(1 / found.low)}): {verdict}."


def basis(found: LiveComparison) -> str:
    """What the answer rests on, and what would make it better."""
    count = len(found.ratios)
    if not count:
        return _STOPPED[found.stopped]
    pairs = f"{counted(count, 'pair')} of fresh processes that took turns"
    known = f"95% interval over {pairs}." if count > 1 else f"{pairs.capitalize()}."
    more = _MORE.get(found.stopped, "") if found.verdict == "unsure" else ""
    return " ".join(part for part in (known, _STOPPED[found.stopped], more) if part)


def conclusion(run: Run) -> list[str]:
    """The answer as the command gave it, and which side this run is."""
    assert run.live
    found = recall_live(run.live)
    other = run.live.a if run.live.side == "B" else run.live.b
    against = "" if found.a.result.case == found.b.result.case else f", measured against {other.text}"
    return [answer(found), basis(found), f"This run is side {run.live.side}{against}."]


def _sides(found: LiveComparison, failed: bool = False) -> list[tuple[str, LiveSide]]:
    sides = [("A", found.a), ("B", found.b)]
    return [each for each in sides if not failed or each[1].result.status not in ("ok", "interrupted")]


def _blocks(found: LiveComparison, shared: LiveComparison) -> Iterator[doc.Block]:
    a, b = found.a.result.case.text, found.b.result.case.text
    machine = found.a.machine or found.b.machine
    title = f"{a} · A against B" if a == b else f"A {a} against B {b}"
    yield doc.Title(title, [machine_line(replace(machine, torch=None))] if machine else [])
    yield doc.answer([answer(found), basis(found)], doc.word(found.verdict).look)
    columns = [
        doc.Column("per step", "figure", of=lambda result: figures.step_time(result.estimate)),
        doc.Column("±", "figure", drop=1, of=lambda result: figures.margin(result.estimate)),
        doc.Column("rate", "figure", drop=2, of=figures.rate),
        doc.Column("first step", "figure", drop=3, of=lambda result: units.duration(_first_step_s(result))),
        doc.Column("memory", "figure", drop=4, of=lambda result: units.size(figures.peak_memory(result))),
    ]
    rows = []
    for name, side in _sides(found):
        known = side.result.estimate is not None
        rows.append([name, *(doc.value_of(side.result, each.of) if known else units.NOTHING for each in columns)])
    yield doc.Table([doc.Column("", "name"), *columns], rows if found.ratios else [])
    columns = [doc.Column("differs", "name", of="name"), doc.Column("A", of="a"), doc.Column("B", of="b")]
    yield doc.Section("", [doc.table(columns, live_differences(found.a, found.b))], only="terminal")
    yield doc.Section("", [doc.table(columns, live_differences(shared.a, shared.b))], only="text")
    yield doc.quiet(_NOTHING_DIFFERS if found.ratios and not live_differences(found.a, found.b) else "")
    for name, side in _sides(found, failed=True):
        remark = Remark(side.result.status, side.result.reason or "no reason was given", cases=(name,))
        yield doc.Section("Without a figure", [doc.Remarks([remark], local=[side.result.detail])])
        yield doc.Section("", [doc.Code("\n".join(side.last_words))], only="terminal")
    cautions: dict[str, Remark] = {}  # one for each kind: what disturbed one side will have disturbed the other
    for name, side in _sides(found):
        for caution in side.result.cautions:
            if caution.kind in _DISTURBED:
                cautions.setdefault(caution.kind, Remark(caution.kind, caution.cause, cases=(name,)))
    yield doc.Section("Cautions", [doc.Remarks([*cautions.values()]), doc.quiet(_ALIKE if cautions else "")])


def _first_step_s(result: Result) -> float | None:
    """Of the middle process: a single first step says little."""
    return median(process.first_step_s for process in result.processes) if result.processes else None
