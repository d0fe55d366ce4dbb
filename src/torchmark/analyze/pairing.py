"""Which results can be compared: only equal work. Lists what differs besides times, and why a case has no partner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnknownName
from torchmark.records import CASE_OPTIONS, Case, Machine, Result, Run, RunHeader, Value

# Options of a case that may differ between two measurements of the same work. The number of threads is among the
# settings too, with its actual value where none was chosen.
OPTIONS = ("device", "dtype", "compile", "transfer", "workers", *CASE_OPTIONS, "protocol")


class Difference(Struct, frozen=True):
    """One thing that was not the same, and what it was on either side."""

    name: str
    a: str
    b: str

    @property
    def text(self) -> str:
        """torch 2.12.0 → 2.13.0"""
        return f"{self.name} {self.a} → {self.b}"


def differences_of(a: Result, b: Result, a_header: RunHeader, b_header: RunHeader) -> tuple[Difference, ...]:
    """Everything that is known to differ: what was asked for, how torch was set up, and the machine."""
    pairs = [
        *_case_pairs(a, b),
        *_setting_pairs(a, b),
        *_machine_pairs(a_header.machine, b_header.machine),
        *_device_pairs(a.case.device, a_header.machine, b.case.device, b_header.machine),
        ("steps", a_header.steps, b_header.steps),
        ("torchmark", a_header.version, b_header.version),
    ]
    return tuple(
        Difference(name, written(first), written(second))
        for name, first, second in pairs
        if first != second and None not in (first, second) and "" not in (first, second)
    )


def written(value: Value | None) -> str:
    """A value as people write it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def parameter(result: Result, name: str) -> Value:
    """The value of a workload's parameter, also where it was not chosen."""
    return result.case.params.get(name, result.params.get(name, "default"))


def option(case: Case, name: str) -> Value:
    """What a case has for one of its options; a way that it does not name is the usual one."""
    value: Value = case.options.get(name, "usual") if name in CASE_OPTIONS else getattr(case, name)
    return value


Pairs = Iterator[tuple[str, Value | None, Value | None]]


def _case_pairs(a: Result, b: Result) -> Pairs:
    for name in OPTIONS:
        yield name, option(a.case, name), option(b.case, name)
    for name in sorted({*a.case.params, *b.case.params}):
        yield name, parameter(a, name), parameter(b, name)


def _setting_pairs(a: Result, b: Result) -> Pairs:
    """Skip settings that only one side knows: the other may have had the same."""
    threads = a.settings.get("threads") or a.case.threads, b.settings.get("threads") or b.case.threads
    yield "threads", *threads
    if "printed" in a.settings or "printed" in b.settings:
        return  # they say where a published figure was printed, not how torch was set up
    for name in a.settings:
        if name != "threads" and name in b.settings:
            yield name.replace("_", " "), a.settings[name], b.settings[name]


def _machine_pairs(a: Machine, b: Machine) -> Pairs:
    yield "machine", _hardware(a), _hardware(b)
    for name in ("torch", "torch_build", "python", "os", "power_mode"):
        yield name.replace("_", " "), getattr(a, name), getattr(b, name)
    yield "power", _supply(a), _supply(b)


def _device_pairs(a_name: str, a: Machine, b_name: str, b: Machine) -> Pairs:
    """Of the device that was used, where both are of one kind; the processor is part of the machine already."""
    first = {info.name: info for info in a.devices}.get(a_name)
    second = {info.name: info for info in b.devices}.get(b_name)
    kinds = {a_name.partition(":")[0], b_name.partition(":")[0]}
    if first and second and len(kinds) == 1 and "cpu" not in kinds:
        yield "device model", first.model, second.model
        yield "driver", first.driver, second.driver


def _hardware(machine: Machine) -> str:
    sizes = ((machine.physical_cores, "cores"), (machine.memory_gib, "GiB"))
    known = ", ".join(f"{count} {unit}" for count, unit in sizes if count)  # a publication may not say
    return f"{machine.cpu} ({known})" if machine.cpu and known else machine.cpu


def _supply(machine: Machine) -> str | None:
    return None if machine.on_battery is None else "battery" if machine.on_battery else "mains"


AXES = ("device", "dtype", "compile", "transfer", "threads", "workers", *CASE_OPTIONS, "protocol", "mode")
# What partners may differ in, given up one after another until there is exactly one partner.
_MAY_DIFFER = ("protocol", "threads", "device number", "device")
# The baseline of each axis; without it the lowest number, else the first value.
_BASELINES = {
    "device": "cpu",
    "dtype": "float32",
    "compile": "off",
    "transfer": "resident",
    "protocol": "steady",
    "mode": "infer",
} | dict.fromkeys(CASE_OPTIONS, "usual")
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
    """Remove and return the pairs of results that are each other's only candidate."""
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
    """Name the alternatives: several possible partners, or the nearest impossible one."""
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
    fix = f" (--by {names[0]} compares them)" if len(names) == 1 else ""
    return f"; the nearest there has {values} instead of {own}{fix}"


def _apart(a: Result, b: Result) -> list[str]:
    names = ["mode", *(name for name in OPTIONS if name not in _MAY_DIFFER)]
    options = [name for name in names if option(a.case, name) != option(b.case, name)]
    params = sorted({*a.case.params, *b.case.params})
    return options + [name for name in params if a.case.params.get(name) != b.case.params.get(name)]


def _sift(placed: Sequence[tuple[Match, Places]], axis: str | None) -> tuple[tuple[Match, ...], tuple[Unpaired, ...]]:
    """Split matches into those that can be compared and those that cannot, with the reason."""
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


TUNED_OPTIONS = ("dtype", "transfer", "threads", "compile")
# The order of settings: number formats first, then memory layout, then execution.
_ORDER = ("dtype", "matmul", "isa", "layout", "attention", "gradients", "transfer", "threads", "bind", "wait")
USUAL = "usual"


def setting(case: Case, name: str) -> Value | None:
    """What a case has for an option, a way or a parameter; None where nothing was chosen."""
    if name in TUNED_OPTIONS:
        value: Value | None = getattr(case, name)
        return value
    return case.options.get(name, USUAL) if name in CASE_OPTIONS else case.params.get(name)


def changed(case: Case, name: str, value: Value | None) -> Case:
    """The case with one setting changed; the usual way, and no value, leave it to the default."""
    if name in TUNED_OPTIONS:
        return replace(case, **{name: value})
    if name in CASE_OPTIONS:
        options = {**case.options, name: str(value)}
        return replace(case, options={each: how for each, how in options.items() if how != USUAL})
    params = {**case.params, name: value}
    return replace(case, params={each: given for each, given in params.items() if given is not None})


def differing(a: Case, b: Case) -> tuple[str, ...]:
    """The settings that are not the same, in a fixed order."""
    names = dict.fromkeys((*_ORDER, *sorted({*a.params, *b.params}), *TUNED_OPTIONS))
    return tuple(name for name in names if setting(a, name) != setting(b, name))


def same_precision(a: Case, b: Case) -> bool:
    """Whether both compute in numbers of the same length."""
    return all(setting(a, name) == setting(b, name) for name in ("dtype", "matmul"))


def setting_text(name: str, value: Value | None) -> str:
    """A setting as a sentence names it: bfloat16, channels-last, compile, threads=1."""
    if name == "compile":
        return {"on": "compile", "off": "no compile"}.get(str(value), f"compile={value}")
    if name in ("dtype", "layout", "transfer", "gradients"):
        return str(value)
    return f"{name}={'default' if value is None else value}"


def name_of(case: Case, default: Case) -> str:
    """A configuration by what makes it differ from the default."""
    return " + ".join(setting_text(name, setting(case, name)) for name in differing(default, case)) or "default"
