"""The local log: what workers and their libraries print. It may name hosts, people and paths, and is never exported."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

LARGEST_BYTES = 16 << 20


def open_log(path: str | Path) -> int:
    """A descriptor that appends to the log, for this user alone; to nothing if the path is no file or not writable."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):  # a pipe in its place must not block, nor a link lead away
        flags |= getattr(os, name, 0)
    with contextlib.suppress(OSError):
        descriptor = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with contextlib.suppress(OSError, AttributeError):  # Windows has no fchmod; the file may be another user's
                os.fchmod(descriptor, 0o600)
            return descriptor
        os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY)


def set_append(descriptor: int) -> None:
    """Make every write go to the end, as it must where the file is trimmed meanwhile."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)


def trim(descriptor: int) -> None:
    """Drop what is beyond the size that a log may have."""
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_size > LARGEST_BYTES:
            os.ftruncate(descriptor, LARGEST_BYTES)


def redirect_output(descriptor: int) -> None:
    """From now on, send what this process and its libraries print there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
