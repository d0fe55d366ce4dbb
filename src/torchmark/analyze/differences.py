"""What differs between two results beside their times: everything known that could be the cause of a ratio."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from torchmark.records import WAYS, Case, Machine, Result, RunHeader, Value

# Options of a case that may differ between two measurements of the same work. The number of threads is among the
# settings too: those tell what it came to where nobody chose one.
OPTIONS = ("device", "dtype", "compile", "transfer", "workers", *WAYS, "protocol")
# Where a published figure was printed; not a setting of what was run.
_PRINTED = frozenset(("machine", "table", "row", "column", "printed", "unit", "steps"))


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
    value: Value = case.ways.get(name, "usual") if name in WAYS else getattr(case, name)
    return value


Pairs = Iterator[tuple[str, Value | None, Value | None]]


def _case_pairs(a: Result, b: Result) -> Pairs:
    for name in OPTIONS:
        yield name, option(a.case, name), option(b.case, name)
    for name in sorted({*a.case.params, *b.case.params}):
        yield name, parameter(a, name), parameter(b, name)


def _setting_pairs(a: Result, b: Result) -> Pairs:
    """Settings that only one side knows say nothing: the other may have had the same."""
    threads = a.settings.get("threads") or a.case.threads, b.settings.get("threads") or b.case.threads
    yield "threads", *threads
    if "printed" in a.settings or "printed" in b.settings:
        return  # they tell where a published figure was printed, not how torch was set up
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
