"""What is known about the best that this machine can do, from the runs that `torchmark limits` has kept."""

from __future__ import annotations

import contextlib

from torchmark.analyze.roofline import NONE, Ceilings, ceilings_of, merge, split_disturbed
from torchmark.cli.output import hint
from torchmark.errors import StoreError
from torchmark.records import Machine, Run
from torchmark.store import find_limits, load


def stored_ceilings(machine: Machine) -> Ceilings:
    """The ceilings of the machine's devices, as far as they were measured with the same hardware and torch."""
    found = NONE
    for device in machine.devices:
        for path in find_limits(machine, device):
            with contextlib.suppress(StoreError):  # a file that went or was spoilt says nothing, and harms nobody
                run = load(path)
                own = [result for result in run.results if result.case.device == device.name]
                results, _ = split_disturbed(own)  # a run of an older version may hold some
                found = merge(found, ceilings_of(results, run.header.id))
    return found


def tell_of_limits(run: Run) -> None:
    """On stderr, where there is work that could be held against the machine's best, and none of that is known."""
    counted = [result for result in run.results if result.status == "ok" and result.work and result.work.flops]
    real = [result for result in counted if not result.case.device.startswith("fake")]
    if real and not any(result.peak for result in run.results):
        hint("To see what share of this machine's peak this is, measure the peak once: torchmark limits")
