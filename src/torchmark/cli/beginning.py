"""How every command that measures begins: it takes the machine for itself, looks around, and tells what it sees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from textwrap import fill

from torchmark.cli.output import say, terminal_width
from torchmark.cli.progress import ProgressLine
from torchmark.measure.instructions import SAFE, VARIABLE, announced_amx, lacks_amx
from torchmark.measure.preflight import look_around
from torchmark.records import Case, Machine
from torchmark.store import Holder, keep_note, machine_lock, read_note


def hold_machine(wait: bool, share: bool) -> AbstractContextManager[None]:
    """The machine's lock, as --wait and --share say; who has to wait is told for whom."""
    return machine_lock(wait, share, on_wait=_waiting)


def look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    """The machine with these devices, or all; what would spoil the figures of these cases is told on the way."""
    avoid_missing_instructions(devices)
    progress = ProgressLine()
    progress.note("looking at the machine …")
    try:
        machine, cautions = look_around(devices, cases)
    finally:
        progress.clear()
    for caution in cautions:
        say(fill(f"! {caution.cause}. {caution.cure}.", terminal_width(), subsequent_indent="  "))
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


def _waiting(holder: Holder) -> None:
    say(f"Waiting for another run on this machine: {holder.text}")
