"""Which results may be held against each other: only equal work, and whatever else has no partner says why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.differences import OPTIONS, option, parameter, written
from torchmark.errors import UnknownName
from torchmark.records import WAYS, Result, Run, Value

AXES = ("device", "dtype", "compile", "transfer", "threads", "workers", *WAYS, "protocol", "mode")
# What partners may differ in, given up one after another until there is exactly one partner.
_MAY_DIFFER = ("protocol", "threads", "device number", "device")
# What others are held against where it is there; of numbers the lowest, else what comes first.
_BASELINES = {
    "device": "cpu",
    "dtype": "float32",
    "compile": "off",
    "transfer": "resident",
    "protocol": "steady",
    "mode": "infer",
} | dict.fromkeys(WAYS, "usual")
# Kinds of notes on published figures that keep a figure without them from being its partner, and why.
_OTHER_WORK = {
    "not-comparable": "not comparable: {cause}",
    "whole-process": "image loading is not the published work yet",
}
_SHOWN = 3  # candidates that a reason lists
_NEAR = 2  # things in which another case may differ and still be worth a mention

Key = tuple[object, ...]
Places = tuple[str, str]  # where the two results stand, in words
PLACES = ("in the first run", "in the second run")


class Match(Struct, frozen=True):
    """Two results of the same work."""

    a: Result
    b: Result


class Unpaired(Struct, frozen=True):
    """A case that could not be compared, and why; `a` and `b` are what there is of it."""

    case: str
    reason: str
    kind: Literal["missing", "failed", "refused"] = "missing"
    a: Result | None = None
    b: Result | None = None


class Pairing(Struct, frozen=True):
    """What could be paired and what could not, in the order of the runs."""

    matches: tuple[Match, ...]
    unpaired: tuple[Unpaired, ...]


def pair_runs(a: Run, b: Run, axis: str | None = None, places: Places = PLACES) -> Pairing:
    """Equal cases; else one that differs only in what may differ, and in `axis`, where it is the only such one."""
    check_axis((a, b), axis)
    ours, theirs = _by_text(a), _by_text(b)
    matches: list[Match] = []
    for count in range(len(_MAY_DIFFER) + 1):
        matches += _take_matches(ours, theirs, {*_MAY_DIFFER[:count]})
    if axis:
        matches += _take_matches(ours, theirs, {*_MAY_DIFFER, axis})
    position = {text: index for index, text in enumerate(_by_text(a))}
    matches.sort(key=lambda match: position[match.a.case.text])
    fair, refused = _sift([(match, places) for match in matches], axis)
    free = {*_MAY_DIFFER, *((axis,) if axis else ())}
    reasons = _reasons(ours, theirs.values(), places[1], free)
    lost = [Unpaired(text, reason, a=ours[text]) for text, reason in reasons.items()]
    reasons = _reasons(theirs, ours.values(), places[0], free)
    new = [Unpaired(text, reason, b=theirs[text]) for text, reason in reasons.items()]
    return Pairing(fair, (*refused, *lost, *new))


def pair_within(run: Run, axis: str) -> Pairing:
    """The results of one run that differ in `axis` alone, each against the baseline of its group."""
    check_axis((run,), axis)
    groups: dict[Key, list[Result]] = {}
    for result in _by_text(run).values():
        groups.setdefault(_key(result, {axis}), []).append(result)
    placed, alone = [], []
    for results in groups.values():
        first, *others = _baseline_first(results, axis)
        placed += [(Match(first, other), (_with(first, axis), _with(other, axis))) for other in others]
        if not others:
            alone.append(Unpaired(first.case.text, f"measured with one {axis} only", a=first))
    fair, refused = _sift(placed, axis)
    return Pairing(fair, (*refused, *alone))


def join_machines(runs: Sequence[Run]) -> list[Run]:
    """The CPU and the GPU of one machine, which publications have as two, put together; measured runs stay apart."""
    groups: dict[str, list[Run]] = {}
    for index, run in enumerate(runs):
        published = run.header.id == run.header.label
        name = re.sub(r" (CPU|GPU)$", "", run.header.id)
        groups.setdefault(name if published else str(index), []).append(run)
    return [_joined(name, group) if len(group) > 1 else group[0] for name, group in groups.items()]


def _joined(name: str, runs: Sequence[Run]) -> Run:
    machines = [run.header.machine for run in runs]
    machine = next((machine for machine in machines if machine.cpu), machines[0])
    devices = tuple(info for each in machines for info in each.devices)
    header = replace(runs[0].header, id=name, label=name, machine=replace(machine, devices=devices))
    return replace(runs[0], header=header, results=tuple(result for run in runs for result in run.results))


def axis_value(result: Result, axis: str) -> Value:
    """What a result has on an axis: an option of its case, or a parameter of its workload."""
    if axis == "threads":
        return result.case.threads or result.settings.get("threads") or "default"
    if axis in AXES:
        return option(result.case, axis)
    return parameter(result, axis)


def check_axis(runs: Sequence[Run], axis: str | None) -> None:
    """An axis is an option of a case, or a parameter that some workload here has."""
    known = {name for run in runs for result in run.results for name in (*result.params, *result.case.params)}
    if axis is not None and axis not in known.union(AXES):
        raise UnknownName("thing to compare by", axis, known.union(AXES))


def _by_text(run: Run) -> dict[str, Result]:
    return {result.case.text: result for result in run.results}


def _key(result: Result, free: set[str]) -> Key:
    """Two results with equal keys differ at most in what is free."""
    case = result.case
    device = case.device.partition(":")[0] if "device number" in free else case.device
    params = tuple(sorted((name, value) for name, value in case.params.items() if name not in free))
    options = [option(case, name) for name in AXES if name != "device" and name not in free]
    return (case.workload, params, "" if "device" in free else device, *options)


def _take_matches(ours: dict[str, Result], theirs: dict[str, Result], free: set[str]) -> list[Match]:
    """Pairs of results that are each other's only candidate; they are taken out."""
    groups: dict[Key, tuple[list[Result], list[Result]]] = {}
    for side, results in enumerate((ours, theirs)):
        for result in results.values():
            groups.setdefault(_key(result, free), ([], []))[side].append(result)
    matches = [Match(a[0], b[0]) for a, b in groups.values() if len(a) == len(b) == 1]
    for match in matches:
        del ours[match.a.case.text], theirs[match.b.case.text]
    return matches


def _baseline_first(results: Sequence[Result], axis: str) -> list[Result]:
    def rank(result: Result) -> tuple[bool, float]:
        value = axis_value(result, axis)
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
        return value != _BASELINES.get(axis), number

    return sorted(results, key=rank)


def _with(result: Result, axis: str) -> str:
    return f"with {axis} {written(axis_value(result, axis))}"


def _reasons(left: dict[str, Result], others: Iterable[Result], there: str, free: set[str]) -> dict[str, str]:
    """Why each result that is left over on one side has no partner among those left over on the other."""
    alike: dict[Key, list[Result]] = {}
    family: dict[str, list[Result]] = {}
    for other in others:
        alike.setdefault(_key(other, free), []).append(other)
        family.setdefault(other.case.workload, []).append(other)
    return {
        text: f"not {there}" + _instead(result, alike.get(_key(result, free), []), family.get(result.case.workload, []))
        for text, result in left.items()
    }


def _instead(result: Result, alike: Sequence[Result], family: Sequence[Result]) -> str:
    """What there is instead: several that could be meant, or the nearest of those that cannot."""
    if alike:
        shown = ", ".join(other.case.text for other in alike[:_SHOWN]) + (" …" if len(alike) > _SHOWN else "")
        return f"; several there could be its partner: {shown}"
    if not family:
        return ""
    nearest = min(family, key=lambda other: len(_apart(result, other)))
    names = _apart(result, nearest)
    if len(names) > _NEAR:
        return ""
    values = ", ".join(f"{name} {written(axis_value(nearest, name))}" for name in names)
    own = ", ".join(written(axis_value(result, name)) for name in names)
    cure = f" (--by {names[0]} compares them)" if len(names) == 1 else ""
    return f"; the nearest there has {values} instead of {own}{cure}"


def _apart(a: Result, b: Result) -> list[str]:
    """What keeps two results of one workload apart."""
    names = ["mode", *(name for name in OPTIONS if name not in _MAY_DIFFER)]
    options = [name for name in names if option(a.case, name) != option(b.case, name)]
    params = sorted({*a.case.params, *b.case.params})
    return options + [name for name in params if a.case.params.get(name) != b.case.params.get(name)]


def _sift(placed: Sequence[tuple[Match, Places]], axis: str | None) -> tuple[tuple[Match, ...], tuple[Unpaired, ...]]:
    """The matches that may be compared, and the others with what stands in the way."""
    fair, refused = [], []
    for match, places in placed:
        a, b = match.a, match.b
        failed = [f"{each.status} {place}" for each, place in zip((a, b), places, strict=True) if each.status != "ok"]
        obstacle = ", ".join(failed) or _obstacle(a, b, places, axis)
        if obstacle:
            refused.append(Unpaired(a.case.text, obstacle, "failed" if failed else "refused", a, b))
        else:
            fair.append(match)
    return tuple(fair), tuple(refused)


def _obstacle(a: Result, b: Result, places: Places, axis: str | None) -> str | None:
    """Why two results that look alike are not of the same work, or None."""

    def sides(first: object, second: object) -> str:
        return f"{first} {places[0]}, {second} {places[1]}"

    for first, second in ((a, b), (b, a)):
        there = {caution.kind for caution in second.cautions}
        for caution in first.cautions:
            if caution.kind in _OTHER_WORK and caution.kind not in there:
                return _OTHER_WORK[caution.kind].format(cause=caution.cause)
    if a.version != b.version:
        return f"the work changed: version {sides(a.version, b.version)}"
    for name in a.params:
        if name != axis and b.params.get(name, a.params[name]) != a.params[name]:
            return f"another {name}: {sides(written(a.params[name]), written(b.params[name]))}"
    if a.work and b.work and a.work.unit != b.work.unit:
        return f"another unit: {sides(a.work.unit, b.work.unit)}"
    resized = axis == "workers" or axis not in (None, *AXES)
    if a.work and b.work and a.work.items != b.work.items and not resized:
        return f"another amount of work in a step: {sides(f'{a.work.items:g} {a.work.unit}', f'{b.work.items:g}')}"
    return None
