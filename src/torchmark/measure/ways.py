"""Ways to do the same work: which of them a case can choose among, and what each asks of its process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchmark.errors import UnknownName
from torchmark.records import WAYS, Case
from torchmark.workloads import find_workload

# Those that any work in torch can be done in, the usual one first.
PROCESS_WAYS = {
    "matmul": ("highest", "high", "medium"),
    "isa": ("all", "avx512-core-bf16", "avx512-core", "avx2"),
    "bind": ("free", "close", "spread"),
    "wait": ("usual", "active", "passive"),
}
# Read while torch is loaded: a process that was forked from one that has loaded it cannot follow them any more.
_VARIABLES = {"bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}
_FAST_DTYPES = ("float32", "bfloat16", "float16")
_ISA = "ONEDNN_MAX_CPU_ISA"  # read at the first product


def offered(case: Case) -> dict[str, tuple[str, ...]]:
    """All ways of this case, by name, each with its values, the usual one first."""
    workload = find_workload(case.workload)
    known = {way.name: way.values for way in workload.ways} | (PROCESS_WAYS if workload.needs_torch else {})
    if case.mode == "train":
        known.pop("gradients", None)
    return {name: known[name] for name in WAYS if name in known}


def tunable_dtypes(case: Case) -> tuple[str, ...]:
    """Number formats in which the same work may be worth doing: the usual ones that the workload knows."""
    return tuple(dtype for dtype in _FAST_DTYPES if dtype in find_workload(case.workload).dtypes)


def check_ways(case: Case) -> dict[str, str]:
    """The ways of a case without those that are the usual ones; raises where it names what is not offered."""
    known = offered(case)
    for name, value in case.ways.items():
        if name not in known:
            raise UnknownName(f"way of {case.workload}/{case.mode}", name, known)
        if value not in known[name]:
            raise UnknownName(f"{name} of {case.workload}", value, known[name])
    return {name: value for name, value in case.ways.items() if value != known[name][0]}


def chosen_instructions() -> str | None:
    """The `isa` that the environment chooses already, by the user or because the CPU lacks what it announces."""
    value = os.environ.get(_ISA, "").lower().replace("_", "-")
    return value if value in PROCESS_WAYS["isa"][1:] else None


def environment_of(ways: Mapping[str, str]) -> dict[str, str]:
    """Variables that must stand in the environment before torch is loaded."""
    variables = {_VARIABLES[name]: value.upper() for name, value in ways.items() if name in _VARIABLES}
    return variables | ({"OMP_PLACES": "cores"} if "bind" in ways else {})


def later_environment_of(ways: Mapping[str, str]) -> dict[str, str]:
    """Variables that must stand in the environment before torch computes anything."""
    return {_ISA: ways["isa"].upper().replace("-", "_")} if "isa" in ways else {}


def follow(ways: Mapping[str, str]) -> None:
    """Set this process, which has not computed anything yet, to what can still be set."""
    os.environ.update(later_environment_of(ways))
    if "matmul" in ways:
        import torch

        torch.set_float32_matmul_precision(ways["matmul"])
        torch.backends.cudnn.allow_tf32 = ways["matmul"] != "highest"
