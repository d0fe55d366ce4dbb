"""Signals that end a run: the first one ends it in order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchmark.measure.signals import ending_handlers, set_handlers


class Interrupted(BaseException):
    """The user, the terminal or the system wants the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted` once; what is ignored, as under nohup, stays ignored."""
    kept = ending_handlers()

    def once(number: int, frame: FrameType | None) -> None:
        del frame
        for each in kept:
            signal.signal(each, lambda again, _: os._exit(128 + again))
        raise Interrupted(number)

    set_handlers(dict.fromkeys(kept, once))
    try:
        yield
    except Interrupted:
        raise  # while what there is is being saved and shown, too, the next signal ends the program at once
    except BaseException:
        set_handlers(kept)
        raise
    set_handlers(kept)
