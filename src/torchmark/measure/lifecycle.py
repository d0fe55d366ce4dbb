"""How processes end together: a child ends with its parent, a group as a whole, a temporary folder with its run."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Waits for its parent to end, then removes a folder; repeatedly, as the parent's workers may end a moment later.
_REMOVE = """
import shutil, sys, time
sys.stdin.read()
for _ in range(3):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(1)
"""


def lead_own_group() -> None:
    """Start a session whose whole group SIGTERM ends."""
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: end_group())
        request_death_signal("SIGTERM")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with(lifeline: Connection) -> None:
    def watch() -> None:  # until the other end closes
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        end_group()

    threading.Thread(target=watch, daemon=True).start()


def end_group() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def request_death_signal(name: str) -> None:
    """On Linux, receive this signal when the parent dies: a watching thread may come too late in a busy process."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.Signals[name])  # PR_SET_PDEATHSIG


def ending_handlers() -> dict[signal.Signals, Any]:
    """The handlers of the signals that end a run, except ignored ones and those not installed from Python."""
    numbers = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]
    handlers = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


def set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Hold back the signals that end a run: a half-started worker would print a traceback. Handlers are exchanged
    instead of blocking signals, as a new process or another thread would still get those."""
    arrived: list[int] = []
    kept = ending_handlers() if threading.current_thread() is threading.main_thread() else {}
    set_handlers(dict.fromkeys(kept, lambda number, _: arrived.append(number)))
    try:
        yield
    finally:
        set_handlers(kept)
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A folder that is removed afterwards, by another process even if this one is killed."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    command = [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder)]
    null = subprocess.DEVNULL  # a remover that held our output open would keep its reader waiting
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True) as remover:
        try:
            folder.mkdir(mode=0o700)
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            remover.kill()
