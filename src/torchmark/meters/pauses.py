"""What all the clocks say at one moment, and how often this process was stopped: a pause shows where they disagree."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from torchmark.records import Moment

_stops = 0


def read_moment() -> Moment:
    """Now, in about a microsecond, so that it can be read around every block of steps."""
    return Moment(time.perf_counter(), time.time(), _boot(), _stops)


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
