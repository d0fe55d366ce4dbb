"""Signals that end a run: the first one ends it in order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The user, the terminal or the system wants the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted` once."""
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    kept = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}

    def once(number: int, frame: FrameType | None) -> None:
        del frame
        for each in kept:
            signal.signal(each, lambda again, _: os._exit(128 + again))
        raise Interrupted(number)

    for number in kept:
        signal.signal(number, once)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
