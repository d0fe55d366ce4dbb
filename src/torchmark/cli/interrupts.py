"""Signals that end a run: the first one ends it in order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """The user, the terminal or the system wants the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted` once; what is ignored, as under nohup, stays ignored."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    kept = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def once(number: int, frame: FrameType | None) -> None:
        del frame
        for each in kept:
            signal.signal(each, lambda again, _: os._exit(128 + again))
        raise Interrupted(number)

    for number in kept:
        signal.signal(number, once)
    try:
        yield
    except Interrupted:
        raise  # while what there is is being saved and shown, too, the next signal ends the program at once
    except BaseException:
        _restore(kept)
        raise
    _restore(kept)


def _restore(kept: dict[signal.Signals, Any]) -> None:
    for number, handler in kept.items():
        signal.signal(number, handler)
