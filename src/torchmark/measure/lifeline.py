"""Ties a process to the one that started it: whatever ends that one ends this one too, with all that it started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

SOCKET_FOLDER = "TORCHMARK_SOCKET_FOLDER"  # of the server that forks workers, for it to remove
STARTER = "TORCHMARK_STARTER"  # the variable that says who started a process: its parent, as long as that one lives


def lead_own_group() -> None:
    """Own session, so that the whole group can be ended; SIGTERM ends all of it."""
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: end_group())
        ask_for_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with(lifeline: Connection) -> None:
    """From now on, end with whoever holds the other end of the lifeline."""
    threading.Thread(target=_sleep_on, args=(lifeline,), daemon=True).start()


def _sleep_on(lifeline: Connection) -> None:
    """Sleeps until the other end of the lifeline is gone."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        end_group()


def end_group() -> None:
    """End this process and everything in its group, at once."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def ask_for_death_signal(number: signal.Signals) -> None:
    """On Linux also by signal, should this process be too busy to run its watching thread."""
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, number)
