"""What all the clocks say at one moment, and how often this process was stopped: a pause shows where they disagree."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from torchmark.records import Moment

AT_ONCE_S = 0.01  # far below what two clocks may differ by before a pause is told
_PATIENCE = 10
_stops = 0


def read_moment() -> Moment:
    """Now, in about a microsecond, so that it can be read around every block of steps. Clocks that were not read at
    once would seem to disagree, so where something came between them they are read again."""
    for _ in range(_PATIENCE):
        moment = Moment(time.perf_counter(), time.time(), _boot(), _stops)
        if time.perf_counter() - moment.steady_s < AT_ONCE_S:
            break
    return moment


def count_stops() -> None:
    """From now on every stop of this process is counted, when it goes on. Only for processes that are all ours."""
    if hasattr(signal, "SIGCONT"):
        signal.signal(signal.SIGCONT, _went_on)


def _went_on(*_: object) -> None:
    global _stops
    _stops += 1


def _boot_clock() -> Callable[[], float | None]:
    """The clock that goes on while the machine sleeps; `time.perf_counter` does not."""
    names = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}
    number: int | None = getattr(time, names.get(sys.platform, ""), None)
    return (lambda: None) if number is None else lambda: time.clock_gettime(number)


_boot = _boot_clock()
