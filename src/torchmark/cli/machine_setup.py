"""Prepares the machine for a command that measures: its lock, its description, its known limits, and warnings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from textwrap import fill

from torchmark.cli.output import hint, say, terminal_width
from torchmark.cli.progress import ProgressLine
from torchmark.measure.machine import announced_amx, lacks_amx, look_around
from torchmark.measure.outcomes import SAFE, VARIABLE
from torchmark.records import Case, Machine, Run
from torchmark.store import Holder, keep_note, machine_lock, read_note


def hold_machine(wait: bool, share: bool) -> AbstractContextManager[None]:
    """The machine's lock, as --wait and --share say."""

    def waiting(holder: Holder) -> None:
        say(f"Waiting for another run on this machine: {holder.text}")

    return machine_lock(wait, share, on_wait=waiting)


def look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    """The machine with these devices, or all. Prints what would spoil the figures of these cases."""
    avoid_missing_instructions(devices)
    progress = ProgressLine()
    progress.note("looking at the machine …")
    try:
        machine, cautions = look_around(devices, cases)
    finally:
        progress.clear()
    for caution in cautions:
        say(fill(f"! {caution.cause}. {caution.fix}.", terminal_width(), subsequent_indent="  "))
    return machine


def avoid_missing_instructions(devices: Sequence[str] | None) -> None:
    """Keep oneDNN from AMX where the CPU announces it without having it. The user's own choice stays."""
    amx = announced_amx() if devices is None or "cpu" in devices else None
    if amx is None or os.environ.get(VARIABLE):
        return
    known = read_note("instructions", amx)
    if known is None:
        progress = ProgressLine()
        progress.note("trying the AMX instructions of this CPU …")
        lacks = lacks_amx()
        progress.clear()
        if lacks is not None:
            known = b"missing" if lacks else b"present"
            with contextlib.suppress(OSError):  # then it is tried again the next time
                keep_note("instructions", amx, known)
    if known == b"missing":
        os.environ[VARIABLE] = SAFE
        text = f"! This CPU announces AMX but does not have it: oneDNN uses {SAFE} instead ({VARIABLE})."
        say(fill(text, terminal_width(), subsequent_indent="  "))


def hint_at_limits(run: Run) -> None:
    """Advise to measure the machine's limits where results could be compared with them and none are known."""
    counted = [result for result in run.results if result.status == "ok" and result.work and result.work.flops]
    real = [result for result in counted if not result.case.device.startswith("fake")]
    if real and not any(result.peak for result in run.results):
        hint("To see what share of this machine's peak this is, measure the peak once: torchmark limits")
