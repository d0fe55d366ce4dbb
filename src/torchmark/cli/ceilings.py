"""What is known about the best that this machine can do, from the runs that `torchmark limits` has kept."""

from __future__ import annotations

import contextlib

from torchmark.analyze.roofline import NONE, Ceilings, ceilings_of, merge
from torchmark.errors import StoreError
from torchmark.records import Machine, Run
from torchmark.store import find_limits, load


def stored_ceilings(machine: Machine) -> Ceilings:
    """The ceilings of the machine's devices, as far as they were measured with the same hardware and torch."""
    found = NONE
    for device in machine.devices:
        path = find_limits(machine, device)
        with contextlib.suppress(StoreError):  # a file that went or was spoilt says nothing, and harms nobody
            run = load(path) if path else None
            results = [result for result in run.results if result.case.device == device.name] if run else []
            found = merge(found, ceilings_of(results, run.header.id if run else None))
    return found


def lacks_ceilings(run: Run) -> bool:
    """Whether there is work that could be held against the machine's best, and none of that is known."""
    counted = [result for result in run.results if result.status == "ok" and result.work and result.work.flops]
    real = [result for result in counted if not result.case.device.startswith("fake")]
    return bool(real) and not any(result.peak for result in run.results)
