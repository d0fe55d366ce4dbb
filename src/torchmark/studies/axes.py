"""What can be tuned about a case: each setting with the values that are worth a try on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from torchmark.analyze.configurations import OPTIONS, USUAL, changed, setting
from torchmark.errors import UnknownName, UsageError
from torchmark.measure.cases import check_case, full_params
from torchmark.measure.parameters import split_values
from torchmark.measure.ways import offered, tunable_dtypes
from torchmark.records import WAYS, Case, Machine, Value, parse_value

Axes = dict[str, tuple[Value, ...]]

NUMBERS = ("dtype", "matmul", "layout")  # these decide together which code computes a product, so all pairs are tried
_ACCELERATED_MODES = ("on", "reduce-overhead", "max-autotune-no-cudagraphs")
_LOADERS = (0, 1, 2, 4, 8)
_FEW_CORES = 2  # where threads have nowhere else to go, binding them and how they wait change nothing


def axes_of(case: Case, machine: Machine, keep: Iterable[str] = (), also: Mapping[str, Sequence[str]] = {}) -> Axes:
    """Every axis with the values that the case does not have yet; `keep` holds some, `also` adds values to others."""
    keep = tuple(keep)
    usual = dict(_usual_axes(case, machine, keep))
    for name, texts in also.items():
        usual[name] = (*usual.get(name, ()), *(parse_value(text) for text in split_values(texts)))
    for name in (*keep, *also):
        known = {*OPTIONS, *offered(case), *full_params(case).__struct_fields__}
        if name not in known:
            raise UnknownName("setting", name, known)
        for value in usual[name] if name in also else ():
            check_case(changed(case, name, value))
    return {
        name: tuple(value for value in dict.fromkeys(values) if value != _current(case, name))
        for name, values in usual.items()
        if name not in keep
    }


def _current(case: Case, name: str) -> Value | None:
    if name in OPTIONS or name in WAYS:
        return setting(case, name)
    value: Value = getattr(full_params(case), name)
    return value


def _usual_axes(case: Case, machine: Machine, keep: Sequence[str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    ways, on_cpu = offered(case), case.device == "cpu"
    if on_cpu or not case.device.startswith("fake"):
        yield "dtype", tunable_dtypes(case)
        yield "compile", ("off", *(("on",) if on_cpu else _ACCELERATED_MODES))
    if case.device.startswith("cuda") and case.dtype == "float32" and "matmul" in ways and "dtype" not in keep:
        yield "matmul", ("high",)
    for name in ("layout", "attention", "gradients"):
        if name in ways:
            yield name, (USUAL, *ways[name][1:])
    if on_cpu:
        yield "threads", _thread_counts(case, machine)
    if on_cpu and machine.physical_cores > _FEW_CORES:
        yield "bind", (USUAL, *ways.get("bind", ("",))[1:])
        yield "wait", (USUAL, *ways.get("wait", ("",))[1:])
    if not on_cpu and case.transfer in ("per-step", "pinned"):
        yield "transfer", ("per-step", "pinned")
    if hasattr(full_params(case), "loader_workers"):
        yield "loader_workers", tuple(count for count in _LOADERS if count <= machine.logical_cores)


def _thread_counts(case: Case, machine: Machine) -> tuple[int, ...]:
    """From one to all that the machine runs at once, in doubles: which of them is best differs from work to work. What
    a process takes by itself is the case without a number."""
    most, physical = max(1, machine.logical_cores), max(1, machine.physical_cores)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
    if allowed < (os.cpu_count() or 1):  # a job that may use some of the cores
        most, physical = min(most, allowed), min(physical, allowed)
    counts = {1 << power for power in range(most.bit_length())} | {physical, most}
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    usual = int(given) if given.isdecimal() else physical
    return tuple(sorted(counts - ({usual} if case.threads is None else set())))


def variations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
    """The case with one of these settings changed, for every value of each."""
    return [changed(case, name, value) for name in names for value in axes.get(name, ())]


def combinations(case: Case, axes: Axes, names: Iterable[str]) -> list[Case]:
    """The case with every combination of these settings but its own; a shorter product is worth nothing in them all."""
    chosen = [name for name in names if axes.get(name)]
    found = {}
    for values in product(*([setting(case, name), *axes[name]] for name in chosen)):
        other = case
        for name, value in zip(chosen, values, strict=True):
            other = changed(other, name, value)
        if "matmul" not in other.ways or other.dtype == "float32":  # it speaks of float32 alone
            found[other.text] = other
    found.pop(case.text)
    return list(found.values())


def check_tunable(case: Case) -> Case:
    """The case itself; raises where it is none that can be tuned."""
    if case.workers > 1:
        raise UsageError(f"{case.text} takes {case.workers} workers", "Cases of one are tuned: leave +workers out")
    if case.protocol != "steady":
        raise UsageError(f"{case.text} is timed as published", "Leave +as-published out")
    return check_case(case)
