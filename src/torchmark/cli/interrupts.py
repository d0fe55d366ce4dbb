"""Signals that end a run: the first one ends it in order, the second one at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchmark.measure.signals import ending_handlers, set_handlers

AGAIN_S = 0.1  # until a finalizer has ended


class Interrupted(BaseException):
    """The user, the terminal or the system wants the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted` once; what is ignored, as under nohup, stays ignored."""
    kept, report_unraisable = ending_handlers(), sys.unraisablehook

    def once(number: int, frame: FrameType | None) -> None:
        del frame
        for each in kept:
            signal.signal(each, lambda again, _: os._exit(128 + again))
        raise Interrupted(number)

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        """A signal that arrives while Python runs a finalizer raises in vain: Python drops exceptions there."""
        error = unraisable.exc_value
        if not isinstance(error, Interrupted):
            report_unraisable(unraisable)
            return
        set_handlers(dict.fromkeys(kept, once))
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), error.number)).start()

    set_handlers(dict.fromkeys(kept, once))
    sys.unraisablehook = send_again
    try:
        yield
    except Interrupted:
        raise  # while what there is is being saved and shown, too, the next signal ends the program at once
    except BaseException:
        set_handlers(kept)
        raise
    finally:
        sys.unraisablehook = report_unraisable
    set_handlers(kept)
