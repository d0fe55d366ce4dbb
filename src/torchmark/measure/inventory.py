"""Takes stock of a machine: its devices, what torch makes of them, and what stands in the way with its cure."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable

from msgspec import Struct

from torchmark import devices
from torchmark.measure.dtypes import DtypeSupport, try_dtypes
from torchmark.measure.machine import describe_machine
from torchmark.meters import open_conditions
from torchmark.meters.contention import allowed_cores, capacity
from torchmark.meters.power import PowerMeter
from torchmark.meters.vitals import open_vitals
from torchmark.records import Caution, Conditions, DeviceInfo, Machine

_BUSY_SHARE = 0.1
_STEAL_SHARE = 0.02
_LISTEN_S = 0.5


class Threads(Struct, frozen=True):
    """How many threads torch uses, and how many cores it may use."""

    within_operators: int
    between_operators: int
    cores_allowed: int
    cores_worth: float  # less than the cores allowed where a quota limits them
    omp_num_threads: int | None = None


class Inventory(Struct, frozen=True):
    """What is here, and whether it is set up well."""

    machine: Machine
    threads: Threads
    dtypes: tuple[DtypeSupport, ...]
    cautions: tuple[Caution, ...]
    meters: dict[str, dict[str, str]] = {}  # of each device: who measures what, or why nobody does


def take_inventory(names: tuple[str, ...] | None = None) -> Inventory:
    """Look at these devices, or at all, for a few seconds."""
    cautions = find_cautions()
    infos: list[DeviceInfo] = []
    dtypes: list[DtypeSupport] = []
    for name in names or devices.find_devices():
        device = devices.open_device(name)
        infos.append(device.info())
        dtypes += try_dtypes(name)
    cautions += judge_dtypes(dtypes)
    meters = {info.name: open_vitals(info.name).provenance for info in infos if not info.name.startswith("fake")}
    return Inventory(describe_machine(infos), count_threads(), tuple(dtypes), cautions, meters)


def find_cautions(listen_s: float = _LISTEN_S) -> tuple[Caution, ...]:
    """All that stands between this machine and a good figure; listens a moment to what other programs do."""
    found = [*devices.diagnose(), *judge_threads(count_threads()), *judge_power()]
    read = open_conditions()
    before = read()
    time.sleep(listen_s)
    return (*found, *judge_load(before, read()))


def count_threads() -> Threads:
    """Torch's thread counts beside the cores that this process may use."""
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return Threads(
        within_operators=torch.get_num_threads(),
        between_operators=torch.get_num_interop_threads(),
        cores_allowed=len(allowed_cores()),
        cores_worth=capacity(),
        omp_num_threads=int(wanted) if wanted.isdecimal() else None,
    )


def judge_threads(threads: Threads) -> tuple[Caution, ...]:
    """More threads than cores wait for each other."""
    useful = max(1, math.ceil(min(threads.cores_allowed, threads.cores_worth)))
    if threads.within_operators <= useful:
        return ()
    cause = f"torch uses {threads.within_operators} threads, but this process may use {useful} core(s)"
    return (Caution("oversubscribed", cause, f"Set OMP_NUM_THREADS={useful}"),)


def judge_dtypes(dtypes: Iterable[DtypeSupport]) -> tuple[Caution, ...]:
    """A number format that kills its process was promised by the hardware and then refused by it."""
    cautions = []
    for support in dtypes:
        if not support.crashed:
            continue
        cure = "Leave this dtype out, or try another version of torch and of the driver"
        if support.device == "cpu" and "SIGILL" in (support.reason or ""):
            cure = "The CPU offers instructions that it cannot run (AMX, in a virtual machine): " + (
                "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
            )
        cause = f"a {support.dtype} matmul on {support.device} fails: {support.reason}"
        cautions.append(Caution("dtype-crashes", cause, cure))
    return tuple(cautions)


def judge_power() -> tuple[Caution, ...]:
    """A machine that saves power is slower than it can be."""
    power = PowerMeter().read()
    cautions = []
    if power.saving:
        cause = f"the machine is told to save power ({power.mode})"
        cautions.append(Caution("power-saver", cause, "Choose a balanced or performance power mode"))
    if power.on_battery:
        cautions.append(Caution("on-battery", "the machine runs on battery", "Plug it in"))
    return tuple(cautions)


def judge_load(before: Conditions, after: Conditions) -> tuple[Caution, ...]:
    """Other programs and other virtual machines take time that a measurement then seems to need."""
    elapsed_s = max(after.at_s - before.at_s, 1e-9)
    cautions = []
    other = _growth(before.other_cpu_s, after.other_cpu_s) / elapsed_s
    if other > _BUSY_SHARE * after.capacity:
        cause = f"other programs use {other:.1f} of the {after.capacity:g} cores"
        cautions.append(Caution("busy", cause, "Close them, or measure when they are done"))
    steal = _growth(before.steal_s, after.steal_s) / elapsed_s / after.capacity
    if steal > _STEAL_SHARE:
        cause = f"the hypervisor gives {steal:.0%} of this machine's time to others"
        cautions.append(Caution("steal", cause, "Use a machine with cores of its own"))
    return tuple(cautions)


def _growth(before: float | None, after: float | None) -> float:
    return 0.0 if before is None or after is None else after - before
