"""Compares a result with the work that is known here: its workload, version, parameters and the work of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import asdict

from torchmark.errors import TorchmarkError
from torchmark.measure.cases import check_case, full_params
from torchmark.records import Result
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting
from torchmark.workloads.own.files import split_name


def compare_with_known(result: Result) -> Iterator[tuple[str, str]]:
    """Each difference from what is known here: the place of a field, and what is odd about it. Nothing is run.

    Nothing is known about a model from a user's own file.
    """
    case = result.case
    if split_name(case.workload):  # a file of that name here may be any other
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
    # A parameter that the workload has gained since then was at its default.
    if asdict(workload.params()) | result.params != asdict(params):
        yield "$.result.params", "they are not those of the case"
    if result.numeric is None and workload.needs_torch and steady:
        yield "$.result.numeric", "ok although its numbers were never checked"
    setting = Setting(case.mode, case.device, case.dtype, case.compile, case.transfer, world_size=case.workers)
    expected, stored = workload.work(params, setting), result.work
    if expected is None or not steady:
        return
    if stored is None:
        yield "$.result.work", "the work of a step is missing"
        return
    if stored.unit != expected.unit:
        yield "$.result.work.unit", f"{stored.unit} instead of {expected.unit}"
    for name in ("items", "flops", "bytes"):
        value, known = getattr(stored, name), getattr(expected, name)
        if known is not None and (value is None or not math.isclose(value, known, rel_tol=1e-6)):
            yield f"$.result.work.{name}", f"{'none' if value is None else f'{value:g}'} instead of {known:g}"
