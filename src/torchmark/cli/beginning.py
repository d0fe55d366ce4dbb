"""How every command that measures begins: it takes the machine for itself, looks around, and tells what it sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from textwrap import fill

from torchmark.cli.output import say, terminal_width
from torchmark.cli.progress import ProgressLine
from torchmark.measure.preflight import look_around
from torchmark.records import Case, Machine
from torchmark.store import Holder, machine_lock


def hold_machine(wait: bool, share: bool) -> AbstractContextManager[None]:
    """The machine's lock, as --wait and --share say; who has to wait is told for whom."""
    return machine_lock(wait, share, on_wait=_waiting)


def look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    """The machine with these devices, or all; what would spoil the figures of these cases is told on the way."""
    progress = ProgressLine()
    progress.note("looking at the machine …")
    try:
        machine, cautions = look_around(devices, cases)
    finally:
        progress.clear()
    for caution in cautions:
        say(fill(f"! {caution.cause}. {caution.cure}.", terminal_width(), subsequent_indent="  "))
    return machine


def _waiting(holder: Holder) -> None:
    say(f"Waiting for another run on this machine: {holder.text}")
