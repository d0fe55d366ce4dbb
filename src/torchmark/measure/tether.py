"""Imported first by the server that forks workers: ties it to the run, before the imports that take seconds.

Without this, a run that is killed while its server is still importing would leave the server behind until it is done,
and the folder of the server's socket for good.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal

from torchmark.measure.lifeline import SOCKET_FOLDER, STARTER, ask_for_death_signal


def tether() -> None:
    """End with the process that started this one, even if it ends at this very moment, or has ended already."""
    starter, folder = int(os.environ.get(STARTER) or os.getppid()), os.environ.pop(SOCKET_FOLDER, None)
    server = os.getpid()

    def remove() -> None:
        if folder and os.getpid() == server:  # and not a worker, which was forked from it
            shutil.rmtree(folder, ignore_errors=True)

    def end(*_: object) -> None:
        if os.getppid() != starter:  # else the run goes on, and needs the folder for another server
            remove()
        os._exit(1)

    atexit.register(remove)  # a server that sees the pipe to its run closed ends in order
    signal.signal(signal.SIGTERM, end)
    ask_for_death_signal(signal.SIGTERM)
    if os.getppid() != starter:
        end()


tether()
