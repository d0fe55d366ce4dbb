"""Keeps the machine awake while something is measured, with whatever the system offers for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_awake() -> Iterator[None]:
    """No sleep inside; where the system offers nothing, measuring goes on all the same."""
    helper = _start_helper()
    _tell_windows(awake=True)
    try:
        yield
    finally:
        _tell_windows(awake=False)
        if helper:
            helper.terminate()
            helper.wait()


def _start_helper() -> subprocess.Popen[bytes] | None:
    """A helper that ends with this process by itself, should this process be killed."""
    command = _command()
    if not command or not shutil.which(command[0]):
        return None
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _command() -> list[str]:
    own = str(os.getpid())
    if sys.platform == "darwin":
        return ["caffeinate", "-i", "-w", own]
    if sys.platform == "linux" and os.path.isdir("/run/systemd/system"):  # noqa: PTH112 -- one look, no path handling
        inhibit = ["systemd-inhibit", "--what=sleep:idle", "--who=torchmark", "--why=measuring"]
        return [*inhibit, "tail", f"--pid={own}", "-f", "/dev/null"]
    return []


def _tell_windows(awake: bool) -> None:
    if sys.platform == "win32":
        import ctypes

        continuous, system_required = 0x80000000, 0x00000001
        ctypes.windll.kernel32.SetThreadExecutionState(continuous | (system_required if awake else 0))
