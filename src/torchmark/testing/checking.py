"""Tries a workload of the user's in this process: a few small steps in each mode, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchmark.errors import UnsupportedError
from torchmark.measure.check import check_step
from torchmark.measure.outcomes import failure_of
from torchmark.measure.parameters import read_params
from torchmark.records import NumericCheck
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

DTYPES = ("float32", "float64")  # where every CPU computes, and as exactly as it is checked


def check_file(path: Path, params: Mapping[str, Any]) -> dict[str, NumericCheck | None]:
    """How far each mode and dtype is from the reference; raises where one fails, with the line of the file."""
    workload = find_workload(str(path))
    given = read_params(workload, params, start=workload.tiny)
    workload.check(given)
    found: dict[str, NumericCheck | None] = {}
    for mode in workload.modes:
        for dtype in (each for each in DTYPES if each in workload.dtypes):
            try:
                step = workload.prepare(given, Setting(mode=mode, dtype=dtype))
                step.run()
                step.run()
                found[f"{mode} {dtype}"] = check_step(step, dtype)
            except Exception as error:
                failure = failure_of(error, "check")
                cause = f"{workload.name} in {mode} with {dtype} is {failure.status}: {failure.reason}"
                raise UnsupportedError(cause, detail=failure.detail or "") from error
    return found
