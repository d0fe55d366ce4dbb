"""A look around before measuring: what would spoil the figures is told while there is still time to mend it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchmark.devices import ACCELERATOR, first_accelerator
from torchmark.errors import DeviceError
from torchmark.measure.cases import full_params
from torchmark.measure.inventory import judge_load, judge_power
from torchmark.measure.launch import Launcher
from torchmark.measure.messages import Refused, Surveyed, SurveyJob
from torchmark.meters import open_conditions
from torchmark.meters.contract import ROOT
from torchmark.records import Case, Caution, Machine
from torchmark.workloads import find_workload

LISTEN_S = 0.3
SURVEY_TIMEOUT_S = 120.0
SHARED_BYTES = 32 << 20  # a few batches of every loading process


def look_around(devices: Sequence[str] | None, cases: Iterable[Case]) -> tuple[Machine, tuple[Caution, ...]]:
    """The machine with these devices, or all that work, and everything that stands in the way of a good figure.

    Opening a device runs a kernel on it. One that is named and does not is an error; `cases` says what will be run.
    """
    cases = tuple(cases)
    found = _survey(devices, {case.workload for case in cases})
    if devices is not None and all(name.startswith("fake") for name in devices):
        return found.machine, found.cautions
    read = open_conditions()
    before = read()
    time.sleep(LISTEN_S)
    seen = (*judge_load(before, read()), *judge_power(), *judge_shared_memory(cases))
    return found.machine, (*found.cautions, *seen)


def _survey(devices: Sequence[str] | None, workloads: set[str]) -> Surveyed:
    """Which accelerator there is, only a look at all devices shows."""
    if devices is None or ACCELERATOR not in devices:
        return survey(devices, workloads)
    first = first_accelerator(info.name for info in survey(None, workloads).machine.devices)
    return survey([*dict.fromkeys(first if name == ACCELERATOR else name for name in devices)], workloads)


def judge_shared_memory(cases: Iterable[Case], root: Path = ROOT) -> tuple[Caution, ...]:
    """Processes that load data hand their batches over in shared memory, of which containers have little."""
    place = root / "dev/shm"
    loading = any(getattr(full_params(case), "loader_workers", 0) for case in cases)
    if not loading or not place.is_dir():
        return ()
    free = shutil.disk_usage(place).free
    if free >= SHARED_BYTES:
        return ()
    cause = f"only {free >> 20} MiB of shared memory are free, through which loading processes hand over their batches"
    return (Caution("shared-memory", cause, "Give the container more (docker run --shm-size=1g), or empty /dev/shm"),)


def survey(devices: Sequence[str] | None, workloads: Iterable[str] = ()) -> Surveyed:
    """The machine and what is wrong with it; found out in a worker, so that this process needs no torch.

    Later workers share the modules imported here, so `workloads` names what will be measured.
    """
    imports_torch = devices is None or any(not name.startswith("fake") for name in devices)
    imports = dict.fromkeys(module for name in workloads for module in find_workload(name).imports)
    ended = Launcher(imports_torch=imports_torch, imports=imports if imports_torch else ()).run(
        SurveyJob(None if devices is None else tuple(devices)), SURVEY_TIMEOUT_S, lambda _: None
    )
    if isinstance(ended.answer, Surveyed):
        return ended.answer
    if isinstance(ended.answer, Refused):
        raise DeviceError(ended.answer.cause, ended.answer.cure, ended.answer.detail)
    raise DeviceError(f"the machine could not be looked at: {ended.reason}", "See what `torchmark devices` says")
