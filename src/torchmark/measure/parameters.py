"""Reads the parameters of a workload as a person types them, and tells what may be typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct, inspect

from torchmark.errors import UnknownName, UsageError
from torchmark.records import Value
from torchmark.workloads.contract import Workload

RANGE_HELP = "A range is 1..4, 128..512+128 or 16..256x2"

_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?:([+x])(\d{1,18}))?")
_MOST_VALUES = 1000
_MOST_THINGS = 1 << 20  # where a model of the user's own does not say how many of something it takes


class Parameter(Struct, frozen=True):
    """One thing that can be set about a workload; `takes` says in words what it accepts."""

    name: str
    default: Value
    takes: str
    choices: tuple[str, ...] = ()


def list_parameters(workload: Workload) -> tuple[Parameter, ...]:
    """What can be set, in the order in which the workload declares it."""
    return _describe(workload.params)


def read_params(workload: Workload, given: Mapping[str, Value], start: Struct | None = None) -> Struct:
    """The workload's parameters with the given ones changed, from the defaults or from another start."""
    known = {parameter.name: parameter for parameter in list_parameters(workload)}
    types = _types(workload.params)
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownName(f"parameter of {workload.name}", name, known)
        changes[name] = _convert(workload, known[name], value, types[name])
    return msgspec.structs.replace(start or workload.params(), **changes)


def whole_range(workload: Workload, name: str) -> tuple[int, int] | None:
    """The smallest and the largest whole number that a parameter takes; None where it takes no such."""
    info = inspect.type_info(workload.params)
    assert isinstance(info, inspect.StructType)
    (kind,) = (field.type for field in info.fields if field.name == name)
    if not isinstance(kind, inspect.IntType):
        return None
    return 1 if kind.ge is None else kind.ge, _MOST_THINGS if kind.le is None else kind.le


def split_settings(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What `-p batch=16,64 -p outputs=2` gives: each name with its values, still as typed."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UsageError(f"'{text}' does not set a parameter", "Write -p NAME=VALUE, such as -p batch=16,64")
        found[name.strip()] = (*found.get(name.strip(), ()), values)
    return found


def split_values(texts: Iterable[str]) -> tuple[str, ...]:
    """All values of comma-separated texts, with ranges written out. Nothing in them needs quoting in any shell."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if "" in parts:
        raise UsageError("a value is empty", "Separate values by single commas, such as 16,64")
    return tuple(value for part in parts for value in _write_out(part))


def _write_out(text: str) -> tuple[str, ...]:
    found = _RANGE.fullmatch(text)
    if not found:
        return (text,)
    value, last, sign, by = int(found[1]), int(found[2]), found[3] or "+", int(found[4] or 1)
    if value > last or by == 0 or (sign == "x" and (by == 1 or value == 0)):
        raise UsageError(f"the range '{text}' leads nowhere", RANGE_HELP)
    values: list[str] = []
    while value <= last:
        values.append(str(value))
        value = value * by if sign == "x" else value + by
        if len(values) > _MOST_VALUES:
            raise UsageError(f"the range '{text}' has more than {_MOST_VALUES} values", RANGE_HELP)
    return tuple(values)


@cache
def _describe(params: type[Struct]) -> tuple[Parameter, ...]:
    info = inspect.type_info(params)
    assert isinstance(info, inspect.StructType)
    return tuple(
        Parameter(field.name, field.default, _takes(field.type), _choices(field.type)) for field in info.fields
    )


@cache
def _types(params: type[Struct]) -> dict[str, Any]:
    return get_type_hints(params, include_extras=True)


def _convert(workload: Workload, parameter: Parameter, value: Value, kind: object) -> Value:
    try:
        converted: Value = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if parameter.choices:
            raise UnknownName(f"{parameter.name} of {workload.name}", str(value), parameter.choices) from None
        shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        raise UsageError(
            f"{parameter.name}={shown} is not possible for {workload.name}: it takes {parameter.takes}",
            f"The default is {parameter.name}={parameter.default}",
        ) from None
    return converted


def _choices(kind: inspect.Type) -> tuple[str, ...]:
    return tuple(str(value) for value in kind.values) if isinstance(kind, inspect.LiteralType) else ()


def _takes(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or _takes(kind.type))
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(_choices(kind))
    if isinstance(kind, inspect.BoolType):
        return "on, off"
    if isinstance(kind, inspect.UnionType):  # one kind, or the word that says that it has no default
        kinds = [each for each in kind.types if not isinstance(each, inspect.LiteralType)]
        return _takes(kinds[0]) if len(kinds) == 1 else "a value"
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return "a word"
    words = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    low, high = (kind.ge if kind.ge is not None else kind.gt), (kind.le if kind.le is not None else kind.lt)
    above = "" if low is None else f" {'from' if kind.ge is not None else 'above'} {low}"
    return words + above + ("" if high is None else f" {'to' if kind.le is not None else 'below'} {high}")
