"""The small files of a fleet's folder: read with care, written whole, trusted where nobody else can change them.

The folder is shared. Anybody who may write into it can leave a pipe, a loop of links or a gigabyte in place of a file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from torchmark.errors import StoreError

MOST_BYTES = 64 << 10
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

Record = TypeVar("Record")


def read(path: Path, most: int = MOST_BYTES, tail: bool = False) -> bytes | None:
    """A regular file, at most so many bytes of it; None if there is none. `tail` reads the end of a longer one."""
    try:
        with open(os.open(path, _READ), "rb") as file:  # noqa: PTH123 -- opening a pipe by its name would block
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise StoreError(f"cannot read {path}: it is not a file", "Remove it")
            if found.st_size > most and not tail:
                raise StoreError(f"cannot read {path}: it has more than {most >> 10} KiB", "Remove it")
            file.seek(max(found.st_size - most, 0) if tail else 0)
            return file.read(most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", "Check its permissions and the disk") from error


def decode(content: bytes, kind: type[Record], path: Path) -> Record:
    """JSON as a record; every fault of it is a StoreError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}", "Start the fleet anew in another folder") from error


def write(path: Path, content: bytes) -> None:
    """Whole or not at all, even if another process reads it meanwhile; a link in its place is not followed."""
    part = temporary(path)
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, _CREATE, 0o644), "wb") as file:  # noqa: PTH123 -- nobody else may be able to change it
            file.write(content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}", "Free some space, or check permissions") from error


def temporary(path: Path) -> Path:
    """A name next to `path` that tells which process of which machine uses it."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}")


def sweep(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that were killed."""
    import psutil

    with contextlib.suppress(OSError):
        for path in folder.glob(f".*.{_machine()}-*"):
            number = path.name.rpartition("-")[2]
            if number.isdecimal() and not psutil.pid_exists(int(number[:9])):
                path.unlink(missing_ok=True)


def distrust(path: Path) -> str | None:
    """Why other users than this one and root may have changed what is here, if so. A missing file is no reason."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}", "Check its permissions and the disk") from error
    if os.name == "nt":
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link, and may lead to a file of other users"
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return f"{path} can be changed by other users" if found.st_mode & _OTHERS_WRITE and not sticky else None


def set_aside(path: Path, to: Path | None = None) -> Path:
    """Move a file to the first free name `…-1`, `…-2`; nothing is overwritten."""
    stem = to or path.with_name(f"{path.name}.aside")
    names = (stem.with_name(f"{stem.name}-{number}") for number in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(name))
    try:
        os.close(os.open(free, _CREATE, 0o600))  # takes the name
        try:
            return path.replace(free)
        except OSError:
            free.unlink()
            raise
    except OSError as error:
        raise StoreError(f"cannot move {path} aside: {error.strerror}", "Check permissions and the disk") from error


def _machine() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"
