"""Expands a sweep into cases, each of them valid, none of them twice, always in the same order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct, field

from torchmark.devices import ACCELERATOR, KINDS
from torchmark.errors import UnknownName, UsageError
from torchmark.measure.parameters import RANGE_HELP, list_parameters, read_params, split_values, whole_range
from torchmark.measure.ways import check_ways
from torchmark.meters.contention import allowed_cores
from torchmark.records import DTYPES, MOST_CASES, TRANSFERS, Case, Value, parse_case, parse_value
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Workload

COMPILE_MODES = ("off", "on", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_MOST_THREADS = 4096


class Sweep(Struct, frozen=True):
    """What a person asks for: every combination of these. All values are as typed: with commas, numbers with ranges.

    A workload is a name or a whole case in its text form, which is then taken as it is.
    Without modes it is each workload's first; without workers as many as it is published with; without threads torch's
    own choice, but where counts of workers are to be compared, every rank of them gets the same number.
    """

    workloads: Sequence[str]
    devices: Sequence[str] = ("cpu",)
    modes: Sequence[str] = ()
    params: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dtypes: Sequence[str] = ("float32",)
    compile: Sequence[str] = ("off",)
    transfer: Sequence[str] = ("resident",)
    threads: Sequence[str] = ()
    workers: Sequence[str] = ()
    ways: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nodes: int = 1  # among which the workers are shared out
    tiny: bool = False


def expand(sweep: Sweep) -> tuple[Case, ...]:
    """All cases of a sweep, in the order in which its parts are given; the last part changes fastest."""
    _check_use(sweep)
    cases: dict[str, Case] = {}
    for name in sweep.workloads:
        if "@" in name:
            found = [check_case(_parse_steady(name))]
        else:
            found = [*map(_check_swept, _combine(find_workload(name), sweep))]
        cases.update((case.text, case) for case in found)
        if len(cases) > MOST_CASES:
            raise UsageError(f"the sweep has more than {MOST_CASES} cases", "Ask for fewer values at once")
    return tuple(cases.values())


def _parse_steady(text: str) -> Case:
    """A case that is written out; one that is to be timed the way a publication did is for a replay of it."""
    case = parse_case(text)
    if case.protocol == "as-published":
        steady = msgspec.structs.replace(case, protocol="steady").text
        raise UsageError(
            f"{text} is timed the way its publication did, which is no way to measure",
            f"Replay the publication with `torchmark replicate`, or measure {steady}",
        )
    return case


def _check_swept(case: Case) -> Case:
    """The accelerator of a sweep gets its name only when the machine is looked at."""
    if case.device != ACCELERATOR:
        return check_case(case)
    return msgspec.structs.replace(check_case(msgspec.structs.replace(case, device="cpu")), device=ACCELERATOR)


def check_case(case: Case) -> Case:
    """The case itself, without what says no more than the defaults; raises where it names what does not exist."""
    workload = find_workload(case.workload)
    _check_name(f"mode of {case.workload}", case.mode, workload.modes)
    check_device(case.device)
    if case.device == ACCELERATOR:
        raise UsageError(
            f"a case cannot be on '{ACCELERATOR}'", "Name the device: `torchmark devices` lists those here"
        )
    _check_name("dtype", case.dtype, DTYPES)
    _check_name(f"dtype of {case.workload}", case.dtype, workload.dtypes)
    _check_name("compile mode", case.compile, COMPILE_MODES)
    _check_name("transfer", case.transfer, TRANSFERS)
    _check_count("threads", case.threads, _MOST_THREADS)
    _check_count("workers", case.workers, _MOST_THREADS)
    if case.workers > 1 and not workload.distributed:
        raise UsageError(f"{case.workload} runs in one worker only", "Leave --workers out")
    params = read_params(workload, case.params)
    workload.check(params)
    return msgspec.structs.replace(case, params=_changed(workload, params), ways=check_ways(case))


def full_params(case: Case) -> Struct:
    """All parameters of the case's workload, those at their default included."""
    return read_params(find_workload(case.workload), case.params)


def memory_needed(case: Case, nodes: int = 1) -> float | None:
    """About how much memory of its device a case needs at its peak; None where that is too little to matter. Ranks
    share a CPU; of other devices each has one of its own."""
    setting = Setting(mode=case.mode, device=case.device, dtype=case.dtype)
    needed = find_workload(case.workload).memory_bytes(full_params(case), setting)
    ranks = case.workers // nodes if case.device == "cpu" else 1
    return None if needed is None else needed * ranks


def range_of(case: Case, name: str) -> tuple[int, int] | None:
    """Which whole numbers a parameter of the case's workload takes; None where it takes no such."""
    return whole_range(find_workload(case.workload), name)


def _changed(workload: Workload, params: Struct) -> dict[str, Value]:
    defaults, values = msgspec.structs.asdict(workload.params()), msgspec.structs.asdict(params)
    return {name: value for name, value in values.items() if value != defaults[name]}


def _check_use(sweep: Sweep) -> None:
    if not sweep.workloads:
        raise UsageError("no workload is named", "`torchmark list` shows them")
    if all("@" in name for name in sweep.workloads) and (sweep.params or sweep.modes):
        raise UsageError("modes and parameters change nothing about a case that is written out", "Write them into it")


def _combine(workload: Workload, sweep: Sweep) -> Iterator[Case]:
    """Every combination for one workload; its parameters in the order in which it declares them."""
    declared = [parameter.name for parameter in list_parameters(workload)]
    for name in sweep.params:
        _check_name(f"parameter of {workload.name}", name, declared)
    names = [name for name in declared if name in sweep.params]
    axes: list[Sequence[Any]] = [
        split_values(sweep.devices),
        split_values(sweep.modes) or workload.modes[:1],
        *(split_values(sweep.params[name]) for name in names),
        split_values(sweep.dtypes),
        split_values(sweep.compile),
        split_values(sweep.transfer),
        split_values(sweep.threads) or (_equal_threads(sweep),),
        split_values(sweep.workers) or (str(workload.default_workers),),
        _combinations(sweep.ways),
    ]
    if math.prod(map(len, axes)) > MOST_CASES:
        raise UsageError(f"the sweep has more than {MOST_CASES} cases", "Ask for fewer values at once")
    start = _changed(workload, workload.tiny) if sweep.tiny else {}
    for device, mode, *values, dtype, compile_, transfer, threads, workers, ways in product(*axes):
        given = {name: parse_value(str(value)) for name, value in zip(names, values, strict=True)}
        yield Case(
            workload=workload.name,
            mode=str(mode),
            params=start | given,
            device=str(device),
            dtype=str(dtype),
            compile=str(compile_),
            transfer=str(transfer),  # type: ignore[arg-type]  # checked with everything else
            threads=None if threads is None else _number("threads", threads),
            workers=_number("workers", str(workers)),
            ways=ways,
        )


def _combinations(ways: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    values = [split_values(texts) for texts in ways.values()]
    return [dict(zip(ways, chosen, strict=True)) for chosen in product(*values)]


def _equal_threads(sweep: Sweep) -> str | None:
    """Threads for each rank where counts of workers are compared: what the largest count leaves for each."""
    counts = {_number("workers", text) for text in split_values(sweep.workers)}
    return str(max(1, len(allowed_cores()) // (max(counts) // sweep.nodes or 1))) if len(counts) > 1 else None


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


def _check_count(name: str, count: int | None, most: int) -> None:
    if count is not None and not 1 <= count <= most:
        raise UsageError(f"{name} cannot be {count}", f"It takes a whole number from 1 to {most}")


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"'{text}' is no number of {name}", f"Write a whole number. {RANGE_HELP}")
    return int(text)
