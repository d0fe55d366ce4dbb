"""Files written safely: errors with cause and fix, folders that are on the disk, files that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from torchmark.errors import StoreError

_ELSEWHERE = "Choose another place with --out, or set TORCHMARK_HOME to a folder that you can write to"
_FIXES = {
    errno.ENOSPC: "Free some space, or choose another place with --out",
    errno.EDQUOT: "Free some of your quota, or choose another place with --out",
    errno.EFBIG: "Lift the limit on file sizes (ulimit -f), or choose another place with --out",
    errno.EMFILE: "Close some programs, or allow more open files (ulimit -n)",
    errno.ENFILE: "Close some programs: the system has too many open files",
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOENT: _ELSEWHERE,
    errno.EEXIST: "Choose another name with --out, or continue that run with --resume",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: f"A part of the path is a file. {_ELSEWHERE}",
}
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # some network file systems


def explained(path: Path, error: OSError, fix: str | None = None) -> StoreError:
    """Why a file cannot be written, and what to do about it."""
    usual = _FIXES.get(error.errno or 0, "Check the disk, or choose another place with --out")
    return StoreError(f"cannot write {path}: {error.strerror or error}", fix or usual)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # the folder's name is that of a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def is_own(path: Path, private: bool = False) -> bool:
    """Whether this user owns a file or folder that no other user can write to, or even read if it is `private`."""
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        return False
    forbidden = stat.S_IRWXG | stat.S_IRWXO if private else stat.S_IWGRP | stat.S_IWOTH
    return os.name == "nt" or (about.st_uid == os.geteuid() and not about.st_mode & forbidden)


def sync_folder(folder: Path) -> None:
    """Flush the folder: a new file's name is on the disk only when its folder is."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def write_whole(path: Path, chunks: Iterable[bytes], replace: bool = True, mode: int = 0o666) -> int:
    """Write a file whole or not at all, and return its size; a kill leaves neither a part nor a temporary file.

    Raises:
        FileExistsError: there is such a file, and it is not to be replaced.
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file() and replace:  # a pipe or a device cannot be replaced
        return path.open("wb").write(b"".join(chunks))
    if os.path.lexists(path) and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    descriptor, temporary = _open_temporary(path, mode)
    try:
        size = sum(write_all(descriptor, chunk) for chunk in chunks)
        os.fsync(descriptor)
        if temporary is None and (replace and path.exists()):
            temporary = _hidden(path)
            _name(descriptor, temporary)
        if temporary is None:
            _name(descriptor, path)
        elif replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return size


def write_all(descriptor: int, data: bytes) -> int:
    """Write all of it at once; a disk that takes only a part is full."""
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return len(data)


def _open_temporary(path: Path, mode: int) -> tuple[int, Path | None]:
    """A new file in the folder of `path`, without a name where the system has such files."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux, and not every file system
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode), None
    temporary = _hidden(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, mode), temporary


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _name(descriptor: int, path: Path) -> None:
    """Give a name to a file that has none."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # with folders: else Python would not follow the link in /proc
        os.link(f"/proc/self/fd/{descriptor}", path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
