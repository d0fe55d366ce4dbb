"""What a worker does to its own process before a case: threads and other settings, a memory limit, preheating."""

from __future__ import annotations

import os
import time

from torchmark.devices.contract import Device
from torchmark.measure.ways import follow
from torchmark.records import Case, Value
from torchmark.settings import PLUGIN, VARIABLES, key_of, told_of
from torchmark.workloads import brought_by

PREHEAT_SIZE = 512


def prepare_torch(case: Case) -> dict[str, Value | None]:
    """Set what the case asks of the process, and note every setting that changes the speed."""
    follow(case.ways)
    import torch

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "onednn": bool(torch.backends.mkldnn.enabled),
        **{key_of(name): told_of(name, os.environ.get(name)) for name in VARIABLES},
    }


def note_plugin(case: Case) -> dict[str, Value | None]:
    """A plug-in is somebody else's code: its results say whose."""
    package = brought_by(case.workload)
    return {PLUGIN: package} if package else {}


def limit_memory(sharers: int, most_bytes: int | None = None) -> None:
    """Refuse this process more memory than is free, or its share where ranks divide it, or more than it may have: then
    too large a case ends as `oom`, not the whole machine."""
    try:
        import resource

        import psutil
    except ImportError:  # Windows has no such limit
        return
    if not hasattr(resource, "RLIMIT_DATA"):
        return
    own = psutil.Process().memory_info()
    held = getattr(own, "data", own.rss)
    free = psutil.virtual_memory().available // sharers + held
    if most_bytes is not None:  # of which this process has some already, and not all of that is counted as data
        free = min(free, held + max(most_bytes - own.rss, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (free if hard < 0 else min(free, hard), hard))


def preheat(device: Device, seconds: float) -> None:
    """Clocks rise with time, not with counts: give the device some work before the first case."""
    import torch

    matrix = torch.ones(PREHEAT_SIZE, PREHEAT_SIZE, device=device.place)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.mm(matrix, matrix)
        device.synchronize()
