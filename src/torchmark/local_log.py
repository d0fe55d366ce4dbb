"""The log next to a run file: what workers print, and the messages behind failures.

It may name hosts, people and paths. So only its owner can read it, and nothing in it is ever exported.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

LARGEST_BYTES = 16 << 20


def log_path(path: Path) -> Path:
    """Next to the run file, and never the run file itself, whatever that is called."""
    return path.with_name(path.name + ".log")


def open_log(path: str | Path) -> int:
    """A descriptor that appends to the log; to nothing if there is no file and none can be created."""
    descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if descriptor is None:
        return os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, AttributeError):  # Windows has no fchmod; the file may be another user's
        os.fchmod(descriptor, 0o600)
    return descriptor


def read_tail(path: str | Path, most_bytes: int) -> bytes:
    """The end of the log; nothing where it cannot be read."""
    descriptor = _open(path, os.O_RDONLY)
    if descriptor is None:
        return b""
    with contextlib.suppress(OSError), open(descriptor, "rb") as log:  # noqa: PTH123 -- the file that was examined
        log.seek(max(os.fstat(log.fileno()).st_size - most_bytes, 0))
        return log.read(most_bytes)
    return b""


def size_of(descriptor: int) -> int:
    with contextlib.suppress(OSError):
        return os.fstat(descriptor).st_size
    return 0


def trim(descriptor: int, before: int = 0) -> None:
    """Drop what is beyond the size that a log may have; not what was there before this process."""
    most = max(LARGEST_BYTES, before)
    if size_of(descriptor) > most:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, most)


def redirect_output(descriptor: int) -> None:
    """From now on, send what this process and its libraries print there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _open(path: str | Path, flags: int) -> int | None:
    """Only a regular file: a pipe in its place must not block, and a link must not lead elsewhere."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except (OSError, ValueError):
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:  # else it is a file of another name, too
        return descriptor
    os.close(descriptor)
    return None
