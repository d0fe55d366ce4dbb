"""What came of some injected faults, and the table of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Tally(NamedTuple):
    """Counts of what went wrong, with a note for each."""

    injected: int = 0
    lost: int = 0  # results that were announced and are not in the file
    mislabelled: int = 0  # cases with a wrong status, or with a reason that lacks the cause or the phase
    orphans: int = 0  # processes that outlived their command
    leftovers: int = 0  # temporary files
    unhandled: int = 0  # tracebacks, wrong exit codes, files that cannot be read, runs that cannot be resumed
    longest_s: float = 0.0
    peak_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not any(self[1:COUNTS])


COUNTS = 6


def together(tallies: Sequence[Tally]) -> Tally:
    sums = [sum(values) for values in zip(*(tally[:COUNTS] for tally in tallies), strict=True)]
    notes = tuple(note for tally in tallies for note in tally.notes)
    most = max((tally.longest_s for tally in tallies), default=0.0), max((t.peak_bytes for t in tallies), default=0)
    return Tally(*(sums or [0] * COUNTS), *most, notes)


def report_progress(name: str, tallies: Iterable[Tally], total: int) -> list[Tally]:
    """All of them; failures and every twentieth of the way are printed meanwhile."""
    seen: list[Tally] = []
    injected = 0
    for tally in tallies:
        seen.append(tally)
        if not tally.held:
            print(f"{name}: {tally}", file=sys.stderr, flush=True)
        before, injected = injected, injected + tally.injected
        if injected * 20 // total > before * 20 // total:
            print(f"{name}: {injected:,} of {total:,}", file=sys.stderr, flush=True)
    return seen


def table(rows: Sequence[tuple[str, Tally]]) -> str:
    heads = ("fault", "injected", "lost", "mislabelled", "orphans", "files left", "unhandled", "longest", "peak memory")
    cells = [heads] + [
        (
            name,
            *(f"{value:,}" for value in tally[:COUNTS]),
            f"{tally.longest_s:.2f} s",
            f"{tally.peak_bytes / 1e6:.0f} MB" if tally.peak_bytes else "-",
        )
        for name, tally in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
