"""Which results can be compared (only equal work), what differs between them, and why a case has no partner."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.case import AXES as CASE_AXES
from torchmark.errors import UnknownName
from torchmark.records import CASE_OPTIONS, Case, Result, Run, RunHeader, Value

AXES = tuple(axis.name for axis in CASE_AXES)
USUAL = "usual"  # the value of an option that a case does not name
# What partners may differ in, given up one by one until there is exactly one partner.
_MAY_DIFFER = ("protocol", "threads", "device number", "device")
# The baselines of axes; else the lowest number or the first value.
_BASELINES = {axis.name: axis.default for axis in CASE_AXES if isinstance(axis.default, str)}
_BASELINES |= {"mode": "infer"} | dict.fromkeys(CASE_OPTIONS, USUAL)
_OTHER_WORK = {  # notes on published figures that both partners must have
    "not-comparable": "not comparable: {cause}",
    "whole-process": "image loading is not the published work yet",
}
Free = Collection[str | None]  # names in which two results may differ
Places = tuple[str, str]  # where the two results are, in words
PLACES = ("in the first run", "in the second run")
Match = tuple[Result, Result]  # of the same work
Item = TypeVar("Item")
Group = TypeVar("Group")


def grouped(items: Iterable[Item], key: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def setting(case: Case, name: str) -> Value | None:
    """What a case has for an axis, an option or a parameter; None if it was not chosen."""
    if name in CASE_OPTIONS:
        return case.options.get(name, USUAL)
    value: Value | None = getattr(case, name) if name in AXES else case.params.get(name)
    return value


def axis_value(result: Result, axis: str) -> Value:
    """What a result has for an axis or a parameter, even if it was not chosen."""
    known = (result.settings if axis == "threads" else result.params).get(axis)
    return next((value for value in (setting(result.case, axis), known) if value is not None), "default")


def written(value: Value | None) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


class Difference(Struct, frozen=True):
    name: str
    a: str
    b: str

    @property
    def text(self) -> str:
        return f"{self.name} {self.a} → {self.b}"


def differences_of(a: Result, b: Result, a_header: RunHeader, b_header: RunHeader) -> tuple[Difference, ...]:
    """Everything that is known of both and differs: what was asked for, how torch was set up, the machine."""

    def facts(result: Result, header: RunHeader, other: Result) -> list[dict[str, Any]]:
        machine, case = header.machine, result.case
        named = [name for name in AXES if name not in ("mode", "threads")] + sorted({*case.params, *other.case.params})
        set_up: dict[str, Any] = {"threads": result.settings.get("threads") or case.threads}
        if "printed" not in result.settings and "printed" not in other.settings:  # not of published figures
            set_up |= {n.replace("_", " "): value for n, value in result.settings.items() if n != "threads"}
        sizes = ((machine.physical_cores, "cores"), (machine.memory_gib, "GiB"))
        known = ", ".join(f"{count} {unit}" for count, unit in sizes if count)  # a publication may not say
        where: dict[str, Any] = {"machine": f"{machine.cpu} ({known})" if machine.cpu and known else machine.cpu}
        software = ("torch", "torch_build", "python", "os", "power_mode")
        where |= {name.replace("_", " "): getattr(machine, name) for name in software}
        where["power"] = {None: None, True: "battery", False: "mains"}[machine.on_battery]
        kinds = {each.case.device.partition(":")[0] for each in (result, other)}
        info = next((info for info in machine.devices if info.name == case.device), None)
        if info and len(kinds) == 1 and "cpu" not in kinds:  # a processor is part of the machine
            where |= {"device model": info.model, "driver": info.driver}
        where |= {"steps": header.steps, "torchmark": header.version}
        return [{name: axis_value(result, name) for name in named}, set_up, where]

    found = differing_facts(zip(facts(a, a_header, b), facts(b, b_header, a), strict=True))
    return tuple(Difference(name, written(x), written(y)) for name, x, y in found if not {None, ""} & {x, y})


def differing_facts(parts: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[tuple[str, Any, Any]]:
    both = ((name, a.get(name), b.get(name)) for a, b in parts for name in dict.fromkeys((*a, *b)))
    return (each for each in both if each[1] != each[2])


class Unpaired(Struct, frozen=True):  # a case that could not be compared
    case: str
    reason: str
    kind: Literal["missing", "failed", "refused"] = "missing"
    a: Result | None = None  # what there is of it
    b: Result | None = None


class Pairing(Struct, frozen=True):  # in the order of the runs
    matches: tuple[Match, ...]
    unpaired: tuple[Unpaired, ...]


def pair_runs(a: Run, b: Run, axis: str | None = None, places: Places = PLACES) -> Pairing:
    """Pair equal cases; else those that differ only in what may differ, or in `axis`, if no other one does."""
    _check_axis((a, b), axis)
    ours, theirs = ({result.case.text: result for result in run.results} for run in (a, b))
    position = {text: index for index, text in enumerate(ours)}
    frees: list[Free] = [_MAY_DIFFER[:count] for count in range(len(_MAY_DIFFER) + 1)]
    frees += [(*_MAY_DIFFER, axis)] if axis else []
    matches: list[Match] = []
    for free in frees:  # take the pairs of results that are each other's only candidate
        candidates = grouped(theirs.values(), partial(_key, free=free))
        for key, results in grouped(ours.values(), partial(_key, free=free)).items():
            if len(results) == len(candidates.get(key, ())) == 1:
                matches.append((results[0], candidates[key][0]))
                del ours[results[0].case.text], theirs[candidates[key][0].case.text]
    matches.sort(key=lambda match: position[match[0].case.text])
    lost, new = _left_over("a", ours, theirs, places[1], free), _left_over("b", theirs, ours, places[0], free)
    return _sift([(match, places) for match in matches], axis, [*lost, *new])


def pair_within(run: Run, axis: str) -> Pairing:
    """The results of one run that differ in `axis` alone, each against the baseline of its group."""
    _check_axis((run,), axis)

    def rank(result: Result) -> tuple[bool, float]:
        value = axis_value(result, axis)
        return value != _BASELINES.get(axis), float(value) if type(value) in (int, float) else 0.0

    placed, alone, unique = [], [], {result.case.text: result for result in run.results}
    for results in grouped(unique.values(), lambda result: _key(result, {axis})).values():
        first, *others = sorted(results, key=rank)
        place, *places = (f"with {axis} {written(axis_value(each, axis))}" for each in (first, *others))
        placed += [((first, other), (place, there)) for other, there in zip(others, places, strict=True)]
        alone += [] if others else [Unpaired(first.case.text, f"only one value of {axis} was measured", a=first)]
    return _sift(placed, axis, alone)


def join_machines(runs: Sequence[Run]) -> list[Run]:
    """Join the CPU and the GPU of a machine, which publications separate; measured runs stay apart."""
    groups: dict[str, list[Run]] = {}
    for index, run in enumerate(runs):
        published = run.header.id == run.header.label
        groups.setdefault(re.sub(r" (CPU|GPU)$", "", run.header.id) if published else str(index), []).append(run)
    for name, group in groups.items():
        if len(group) > 1:
            machines = [run.header.machine for run in group]
            machine = next((machine for machine in machines if machine.cpu), machines[0])
            machine = replace(machine, devices=tuple(info for each in machines for info in each.devices))
            header = replace(group[0].header, id=name, label=name, machine=machine)
            results = tuple(result for run in group for result in run.results)
            group[:] = [replace(group[0], header=header, results=results)]
    return [run for (run,) in groups.values()]


def _check_axis(runs: Sequence[Run], axis: str | None) -> None:
    known = {name for run in runs for result in run.results for name in (*result.params, *result.case.params)}
    if axis is not None and axis not in known.union(AXES):
        raise UnknownName("thing to compare by", axis, known.union(AXES))


def _key(result: Result, free: Free) -> tuple[object, ...]:
    case = result.case
    device = case.device.partition(":")[0] if "device number" in free else case.device
    params = tuple(sorted(item for item in case.params.items() if item[0] not in free))
    options = [setting(case, name) for name in AXES if name != "device" and name not in free]
    return (case.workload, params, "" if "device" in free else device, *options)


def _left_over(side: str, left: dict[str, Result], others: dict[str, Result], there: str, free: Free) -> list[Unpaired]:
    alike = grouped(others.values(), lambda other: _key(other, free))
    family = grouped(others.values(), lambda other: other.case.workload)

    def apart(a: Case, b: Case) -> list[str]:
        names = dict.fromkeys(("mode", *AXES, *sorted({*a.params, *b.params})))
        return [name for name in names if name not in _MAY_DIFFER and setting(a, name) != setting(b, name)]

    def instead(result: Result) -> str:
        if partners := [other.case.text for other in alike.get(_key(result, free), ())]:
            return f"; several there could be its partner: {', '.join(partners[:3])}{' …' if len(partners) > 3 else ''}"
        near = [(apart(result.case, other.case), other) for other in family.get(result.case.workload, ())]
        names, nearest = min(near, key=lambda each: len(each[0]), default=([], result))
        if not 1 <= len(names) <= 2:  # in more, another case is not near
            return ""
        values = ", ".join(f"{name} {written(axis_value(nearest, name))}" for name in names)
        own = ", ".join(written(axis_value(result, name)) for name in names)
        fix = f" (--by {names[0]} compares them)" if len(names) == 1 else ""
        return f"; the nearest there has {values} instead of {own}{fix}"

    return [replace(Unpaired(text, f"not {there}{instead(each)}"), **{side: each}) for text, each in left.items()]


def _sift(placed: Sequence[tuple[Match, Places]], axis: str | None, others: Sequence[Unpaired]) -> Pairing:
    fair, refused = [], []
    for (a, b), places in placed:
        failed = [f"{each.status} {place}" for each, place in zip((a, b), places, strict=True) if each.status != "ok"]
        if obstacle := ", ".join(failed) or next(_obstacles(a, b, places, axis), None):
            refused.append(Unpaired(a.case.text, obstacle, "failed" if failed else "refused", a, b))
        else:
            fair.append((a, b))
    return Pairing(tuple(fair), (*refused, *others))


def _obstacles(a: Result, b: Result, places: Places, axis: str | None) -> Iterator[str]:
    def sides(first: object, second: object) -> str:
        return f"{first} {places[0]}, {second} {places[1]}"

    for first, second in ((a, b), (b, a)):
        there = {caution.kind for caution in second.cautions}
        for caution in first.cautions:
            if caution.kind in _OTHER_WORK and caution.kind not in there:
                yield _OTHER_WORK[caution.kind].format(cause=caution.cause)
    if a.version != b.version:
        yield f"the work changed: version {sides(a.version, b.version)}"
    for name in a.params:
        if name != axis and b.params.get(name, a.params[name]) != a.params[name]:
            yield f"another {name}: {sides(written(a.params[name]), written(b.params[name]))}"
    if a.work and b.work and a.work.unit != b.work.unit:
        yield f"another unit: {sides(a.work.unit, b.work.unit)}"
    resized = axis == "workers" or axis not in (None, *AXES)
    if a.work and b.work and a.work.items != b.work.items and not resized:
        yield f"another amount of work in a step: {sides(f'{a.work.items:g} {a.work.unit}', f'{b.work.items:g}')}"


TUNED_OPTIONS = ("dtype", "transfer", "threads", "compile")


def changed(case: Case, name: str, value: Value | None) -> Case:
    """The case with one setting changed; `usual` and None leave it to the default."""
    if name in TUNED_OPTIONS:
        return replace(case, **{name: value})
    field, unset = ("options", USUAL) if name in CASE_OPTIONS else ("params", None)
    given = {**getattr(case, field), name: value}
    return replace(case, **{field: {each: chosen for each, chosen in given.items() if chosen != unset}})


def differing(a: Case, b: Case) -> tuple[str, ...]:
    """The settings that differ: number formats first, then memory layout, then execution."""
    first = "dtype", "matmul", "isa", "layout", "attention", "gradients", "transfer", "threads", "bind", "wait"
    names = (*first, *sorted({*a.params, *b.params}), "compile")
    return tuple(name for name in names if setting(a, name) != setting(b, name))


def same_precision(a: Case, b: Case) -> bool:
    return all(setting(a, name) == setting(b, name) for name in ("dtype", "matmul"))


def setting_text(name: str, value: Value | None) -> str:
    """A setting as a sentence names it: bfloat16, channels-last, compile, threads=1."""
    if name == "compile":
        return {"on": "compile", "off": "no compile"}.get(str(value), f"compile={value}")
    if name in ("dtype", "layout", "transfer", "gradients"):
        return str(value)
    return f"{name}={'default' if value is None else value}"


def settings_text(case: Case, names: Iterable[str]) -> str:
    return " + ".join(setting_text(name, setting(case, name)) for name in names)


def name_of(case: Case, default: Case) -> str:
    return settings_text(case, differing(default, case)) or "default"
