"""Tells whether a result is about work that is known here: its workload, version, parameters and worth of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import asdict

from torchmark.errors import TorchmarkError
from torchmark.measure.cases import check_case, full_params
from torchmark.records import Result, Work
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting
from torchmark.workloads.own import is_own

_EXACT = 1e-6


def recognise(result: Result) -> Iterator[tuple[str, str]]:
    """What is not known here, each as the place of a field and what is odd about it. Nothing is run for it.

    Of a model from somebody's own file nothing can be known.
    """
    case = result.case
    if is_own(case.workload):  # somebody else's file: what lies here under that name may be anything
        return
    try:
        check_case(case)
        workload, params = find_workload(case.workload), full_params(case)
    except TorchmarkError as error:
        yield "$.result.case", error.cause
        return
    steady = case.protocol == "steady"
    if not 1 <= result.version <= workload.version:
        yield "$.result.version", f"{case.workload} has no version {result.version} here, but {workload.version}"
    if result.version != workload.version or result.status != "ok":
        return
    # A parameter that the workload has got since then was at its default.
    if asdict(workload.params()) | result.params != asdict(params):
        yield "$.result.params", "they are not those of the case"
    if result.numeric is None and workload.needs_torch and steady:
        yield "$.result.numeric", "ok although its numbers were never checked"
    setting = Setting(case.mode, case.device, case.dtype, case.compile, case.transfer, world_size=case.workers)
    expected = workload.work(params, setting)
    if expected is not None and steady:
        yield from _compare(result.work, expected)


def _compare(told: Work | None, expected: Work) -> Iterator[tuple[str, str]]:
    if told is None:
        yield "$.result.work", "nobody says what a step is worth"
        return
    if told.unit != expected.unit:
        yield "$.result.work.unit", f"{told.unit} where it is {expected.unit}"
    for name in ("items", "flops", "bytes"):
        told_so, due = getattr(told, name), getattr(expected, name)
        if due is not None and (told_so is None or not math.isclose(told_so, due, rel_tol=_EXACT)):
            yield f"$.result.work.{name}", f"{'none' if told_so is None else f'{told_so:g}'} where it is {due:g}"
