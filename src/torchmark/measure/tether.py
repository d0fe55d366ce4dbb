"""Imported first by the server that forks workers: ties it to the run, before the imports that take seconds.

Without this, a run that is killed while its server is still importing would leave the server behind until it is done,
and the folder of the server's socket for good.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import shutil
import signal
import time

from torchmark.measure.lifeline import SOCKET_FOLDER, STARTER, ask_for_death_signal

GOING_S = 1.0  # for a run that is killed to be gone
HUNG_S = 600.0  # an import that takes longer never ends; while it runs in C, no signal handler of Python gets its turn


def tether() -> None:
    """End with the process that started this one, even if it ends at this very moment, or has ended already."""
    starter, folder = int(os.environ.get(STARTER) or os.getppid()), os.environ.pop(SOCKET_FOLDER, None)
    server = os.getpid()

    def remove() -> None:
        """Not while the run goes on: it needs the folder for another server. The signal and the end of the pipe come a
        moment before the run is gone."""
        deadline = time.monotonic() + GOING_S
        while os.getppid() == starter and time.monotonic() < deadline:
            time.sleep(0.01)
        if folder and os.getpid() == server and os.getppid() != starter:  # a worker, forked from it, is not the server
            shutil.rmtree(folder, ignore_errors=True)

    def end(*_: object) -> None:
        remove()
        os._exit(1)

    atexit.register(remove)  # a server whose run closes the pipe to it ends in order
    signal.signal(signal.SIGTERM, end)
    ask_for_death_signal(signal.SIGTERM)
    if os.getppid() != starter:
        end()
    faulthandler.dump_traceback_later(HUNG_S, exit=True)  # until `preload` is done


tether()
