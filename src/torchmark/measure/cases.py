"""Expands a sweep into valid cases, each once and always in the same order; reads the parameters of workloads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import asdict, replace

from torchmark.case import AXES, MOST_CASES, parse_value
from torchmark.devices import ACCELERATOR, KINDS
from torchmark.errors import UnknownName, UsageError
from torchmark.measure.case_options import check_options
from torchmark.meters.contention import allowed_cores
from torchmark.records import CASE_OPTIONS, Case, Value, parse_case
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Workload

RANGE_HELP = "A range is 1..4, 128..512+128 or 16..256x2"

_MOST_VALUES = 1000
_AXES = {axis.name: axis for axis in AXES if axis.name != "protocol"}  # that a sweep can choose


class Sweep(Struct, frozen=True):
    """Every combination of these. All values are as typed: with commas, numbers with ranges.

    A workload is a name, or the text form of a case, which is taken as it is. The default is the first mode of a
    workload and its published number of workers. Torch chooses the threads, but where numbers of workers are compared,
    every rank gets the same number.
    """

    workloads: Sequence[str]
    axes: Mapping[str, Sequence[str]] = {}  # by the name of an axis or of an option of a case
    params: Mapping[str, Sequence[str]] = {}
    nodes: int = 1  # that share the workers
    tiny: bool = False


def expand(sweep: Sweep) -> tuple[Case, ...]:
    """All cases of a sweep, in the order in which its parts are given; the last part changes fastest."""
    if not sweep.workloads:
        raise UsageError("no workload is named", "`torchmark list` shows them")
    if all("@" in name for name in sweep.workloads) and (sweep.params or sweep.axes.get("mode")):
        raise UsageError("--mode and -p do not change a case that is written out", "Write them into the case")
    for name in sweep.axes:
        _check_name("option", name, [*_AXES])
    cases: dict[str, Case] = {}
    for name in sweep.workloads:
        is_written = "@" in name
        for case in [parse_case(name)] if is_written else _combine(find_workload(name), sweep):
            if case.protocol == "as-published":
                steady = replace(case, protocol="steady").text
                fix = f"Replay the publication with `torchmark replicate`, or measure {steady}"
                raise UsageError(f"{name} is timed the way its publication did, which is no way to measure", fix)
            # The accelerator of a sweep gets its name only when the machine is looked at.
            later = not is_written and case.device == ACCELERATOR
            checked = replace(check_case(replace(case, device="cpu") if later else case), device=case.device)
            cases[checked.text] = checked
        _check_count(len(cases))
    return tuple(cases.values())


def _check_count(count: int) -> None:
    if count > MOST_CASES:
        raise UsageError(f"the sweep has more than {MOST_CASES} cases", "Ask for fewer values at once")


def check_case(case: Case) -> Case:
    """The case without settings that are at their default; raise for what does not exist."""
    workload = find_workload(case.workload)
    _check_name(f"mode of {case.workload}", case.mode, workload.modes)
    check_device(case.device)
    if case.device == ACCELERATOR:
        fix = "Name the device: `torchmark devices` lists those here"
        raise UsageError(f"a case cannot be on '{ACCELERATOR}'", fix)
    for axis in AXES:
        axis.check(case.setting(axis.name))
    _check_name(f"dtype of {case.workload}", case.dtype, workload.dtypes)
    if case.workers > 1 and not workload.distributed:
        raise UsageError(f"{case.workload} runs in one worker only", "Leave --workers out")
    params = read_params(workload, case.params)
    workload.check(params)
    return replace(case, params=_changed(workload, params), options=check_options(case))


def full_params(case: Case) -> Struct:
    """All parameters of the case's workload, those at their default included."""
    return read_params(find_workload(case.workload), case.params)


def memory_needed(case: Case, nodes: int = 1) -> float | None:
    """About how much memory of its device a case needs; None if too little to matter. Only a CPU is shared by ranks."""
    setting = Setting(mode=case.mode, device=case.device, dtype=case.dtype)
    needed = find_workload(case.workload).memory_bytes(full_params(case), setting)
    ranks = case.workers // nodes if case.device == "cpu" else 1
    return None if needed is None else needed * ranks


def range_of(case: Case, name: str) -> tuple[int, int] | None:
    """The smallest and the largest whole number that a parameter takes; None if it takes no whole numbers."""
    info = inspect.type_info(find_workload(case.workload).params)
    assert isinstance(info, inspect.StructType)
    (kind,) = (field.type for field in info.fields if field.name == name)
    if not isinstance(kind, inspect.IntType):
        return None
    return 1 if kind.ge is None else kind.ge, 1 << 20 if kind.le is None else kind.le


def _changed(workload: Workload, params: Struct) -> dict[str, Value]:
    defaults = asdict(workload.params())
    return {name: value for name, value in asdict(params).items() if value != defaults[name]}


def _combine(workload: Workload, sweep: Sweep) -> Iterator[Case]:
    """Every combination for one workload; its parameters in the order in which it declares them."""
    declared = [parameter.name for parameter in list_parameters(workload)]
    for name in sweep.params:
        _check_name(f"parameter of {workload.name}", name, declared)
    typed = {name: split_values(sweep.axes.get(name, ())) for name in _AXES}
    usual = {"mode": workload.modes[0], "workers": workload.default_workers}
    # Threads of each rank where counts of workers are compared: what the largest count leaves for each.
    counts = {_AXES["workers"].read(text) for text in typed["workers"]}
    if len(counts) > 1:
        usual["threads"] = max(1, len(allowed_cores()) // (max(counts) // sweep.nodes or 1))
    for name, axis in _AXES.items():
        default = usual.get(name, axis.default)
        typed[name] = typed[name] or (() if default is None else (str(default),))
    axes = {name: values for name, values in typed.items() if values}
    swept = {name: axes.pop(name) for name in ("device", "mode")}  # parameters follow these, and precede the others
    swept |= {f"-p {name}": split_values(sweep.params[name]) for name in declared if name in sweep.params}
    swept |= axes
    _check_count(math.prod(map(len, swept.values())))
    start = _changed(workload, workload.tiny) if sweep.tiny else {}
    for chosen in product(*swept.values()):
        given = dict(zip(swept, chosen, strict=True))
        params = {name: parse_value(given[f"-p {name}"]) for name in declared if f"-p {name}" in given}
        settings = {name: _AXES[name].read(given[name]) for name in _AXES if name in given}
        options = {name: settings.pop(name) for name in CASE_OPTIONS if name in settings}
        yield Case(workload.name, params=start | params, options=options, **settings)


def check_device(name: str) -> None:
    """Only the name: whether such a device is here is asked where it is opened."""
    if name == ACCELERATOR:
        return
    kind, colon, index = name.partition(":")
    if kind not in KINDS:
        raise UnknownName("device", name, [kind for kind in KINDS if kind != "fake"])
    if colon and not re.fullmatch(r"\d{1,4}", index):
        raise UsageError(f"'{name}' does not say which {kind} device", f"Write a number, such as {kind}:0")


def _check_name(kind: str, given: str, valid: Sequence[str]) -> None:
    if given not in valid:
        raise UnknownName(kind, given, valid)


class Parameter(Struct, frozen=True):
    """A parameter of a workload; `takes` says in words what it accepts."""

    name: str
    default: Value
    takes: str
    choices: tuple[str, ...] = ()


@cache
def list_parameters(workload: Workload) -> tuple[Parameter, ...]:
    """The parameters of a workload, in the order in which it declares them."""
    info = inspect.type_info(workload.params)
    assert isinstance(info, inspect.StructType)
    return tuple(Parameter(each.name, each.default, _takes(each.type), _choices(each.type)) for each in info.fields)


def read_params(workload: Workload, given: Mapping[str, Value], start: Struct | None = None) -> Struct:
    """The workload's parameters with the given ones changed, from the defaults or from another start."""
    known = {parameter.name: parameter for parameter in list_parameters(workload)}
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownName(f"parameter of {workload.name}", name, known)
        try:
            changes[name] = msgspec.convert(value, _types(workload.params)[name])
        except msgspec.ValidationError:
            parameter = known[name]
            if parameter.choices:
                raise UnknownName(f"{name} of {workload.name}", str(value), parameter.choices) from None
            shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
            cause = f"{name}={shown} is not possible for {workload.name}: it takes {parameter.takes}"
            raise UsageError(cause, f"The default is {name}={parameter.default}") from None
    return replace(start or workload.params(), **changes)


def split_settings(texts: Iterable[str], example: str = "-p batch=16,64") -> dict[str, tuple[str, ...]]:
    """`-p batch=16,64 -p outputs=2` as names with their values as typed."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UsageError(f"'{text}' is not NAME=VALUE", f"Write NAME=VALUE, such as {example}")
        found[name.strip()] = (*found.get(name.strip(), ()), values)
    return found


def split_values(texts: Iterable[str]) -> tuple[str, ...]:
    """All values of comma-separated texts, with ranges written out."""
    values: list[str] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not part:
            raise UsageError("a value is empty", "Separate values by single commas, such as 16,64")
        found = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})(?:([+x])(\d{1,18}))?", part)
        if not found:
            values.append(part)
            continue
        value, last, sign, by = int(found[1]), int(found[2]), found[3] or "+", int(found[4] or 1)
        if value > last or by == 0 or (sign == "x" and (by == 1 or value == 0)):
            raise UsageError(f"the range '{part}' is empty or endless", RANGE_HELP)
        room = len(values) + _MOST_VALUES
        while value <= last:
            if len(values) == room:
                raise UsageError(f"the range '{part}' has more than {_MOST_VALUES} values", RANGE_HELP)
            values.append(str(value))
            value = value * by if sign == "x" else value + by
    return tuple(values)


_types = cache(partial(get_type_hints, include_extras=True))


def _choices(kind: inspect.Type) -> tuple[str, ...]:
    return tuple(str(value) for value in kind.values) if isinstance(kind, inspect.LiteralType) else ()


def _takes(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return str((kind.extra_json_schema or {}).get("description") or _takes(kind.type))
        case inspect.LiteralType():
            return ", ".join(_choices(kind))
        case inspect.BoolType():
            return "on, off"
        case inspect.UnionType():  # one kind, or the word that says that it has no default
            kinds = [each for each in kind.types if not isinstance(each, inspect.LiteralType)]
            return _takes(kinds[0]) if len(kinds) == 1 else "a value"
        case inspect.IntType() | inspect.FloatType():
            words = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            for limit, word in ((kind.ge, "from"), (kind.gt, "above"), (kind.le, "to"), (kind.lt, "below")):
                words += "" if limit is None else f" {word} {limit}"
            return words
    return "a word"
