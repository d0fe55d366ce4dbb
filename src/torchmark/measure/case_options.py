"""Options of a case: other ways to do the same work, which cases have them, and what each changes in a process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchmark.errors import UnknownName
from torchmark.records import CASE_OPTIONS, Case
from torchmark.workloads import find_workload

# Those that any work in torch can use, the default first.
PROCESS_OPTIONS = {
    "matmul": ("highest", "high", "medium"),
    "isa": ("all", "avx512-core-bf16", "avx512-core", "avx2"),
    "bind": ("free", "close", "spread"),
    "wait": ("usual", "active", "passive"),
}
# Variables read when torch is imported: a process that was forked after that cannot apply them.
_VARIABLES = {"bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}
_ISA = "ONEDNN_MAX_CPU_ISA"  # read at the first matrix product


def offered(case: Case) -> dict[str, tuple[str, ...]]:
    """The options of this case with their values, the default first."""
    workload = find_workload(case.workload)
    known = {each.name: each.values for each in workload.options} | (PROCESS_OPTIONS if workload.needs_torch else {})
    if case.mode == "train":
        known.pop("gradients", None)
    return {name: known[name] for name in CASE_OPTIONS if name in known}


def tunable_dtypes(case: Case) -> tuple[str, ...]:
    """The common dtypes that the workload supports."""
    dtypes = find_workload(case.workload).dtypes
    return tuple(dtype for dtype in ("float32", "bfloat16", "float16") if dtype in dtypes)


def check_options(case: Case) -> dict[str, str]:
    """The options of a case without those at their default; raises UnknownName for what is not offered."""
    known = offered(case)
    for name, value in case.options.items():
        if name not in known:
            raise UnknownName(f"option of {case.workload}/{case.mode}", name, known)
        if value not in known[name]:
            raise UnknownName(f"{name} of {case.workload}", value, known[name])
    return {name: value for name, value in case.options.items() if value != known[name][0]}


def chosen_instructions() -> str | None:
    """The `isa` that the environment sets already, by the user or because the CPU lacks what it announces."""
    value = os.environ.get(_ISA, "").lower().replace("_", "-")
    return value if value in PROCESS_OPTIONS["isa"][1:] else None


def environment_of(options: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be set before torch is imported."""
    variables = {_VARIABLES[name]: value.upper() for name, value in options.items() if name in _VARIABLES}
    return variables | ({"OMP_PLACES": "cores"} if "bind" in options else {})


def later_environment_of(options: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be set before torch computes anything."""
    return {_ISA: options["isa"].upper().replace("-", "_")} if "isa" in options else {}


def follow(options: Mapping[str, str]) -> None:
    """Apply to this process, which has not computed anything yet, what can still be applied."""
    os.environ.update(later_environment_of(options))
    if "matmul" in options:
        import torch

        torch.set_float32_matmul_precision(options["matmul"])
        torch.backends.cudnn.allow_tf32 = options["matmul"] != "highest"
