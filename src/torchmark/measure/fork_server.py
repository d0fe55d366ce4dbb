"""Imported by the server that forks workers, before anything else: ties it to the run, then imports slow libraries.

Without the tie, a run that is killed while its server is still importing would leave the server behind until it is
done, and the folder of its socket for good.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import shutil
import signal
import time

from torchmark.measure.lifecycle import request_death_signal

STARTER = "TORCHMARK_STARTER"  # the process that starts the server
SOCKET_FOLDER = "TORCHMARK_SOCKET_FOLDER"  # for the server to remove
MODULES = "TORCHMARK_PRELOAD"  # separated by commas: imported once, shared by all workers
GOING_S = 1.0  # for a run that is killed to be gone
HUNG_S = 600.0  # an import that takes longer never ends; while it runs in C, no Python signal handler gets its turn


def tie_to(starter: int, folder: str | None) -> None:
    """End with the process that started this one, even if it ends at this very moment, or has ended already."""
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
    request_death_signal(signal.SIGTERM)
    if os.getppid() != starter:
        end()


def import_modules(names: str) -> None:
    """Import what the workers share. A library that cannot be imported fails only the cases that need it."""
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    for name in ("torchmark.measure.worker", *filter(None, names.split(","))):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    faulthandler.cancel_dump_traceback_later()


if STARTER in os.environ:  # set for the server alone
    tie_to(int(os.environ[STARTER]), os.environ.pop(SOCKET_FOLDER, None))
    import_modules(os.environ.pop(MODULES, ""))
    del os.environ[STARTER]
