"""Safe reading and writing of files, and locks: one per machine, and one on each run file that is being written.

The machine's lock is outside the folder of runs, which a cluster may share. The system releases it with its holder.
"""

import errno
import os
import re
import secrets
import socket
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from torchmark.errors import LockedError, StoreError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

CHECK = "Check its permissions and the disk"
_ELSEWHERE = "Choose another place with --out, or set TORCHMARK_HOME to a folder that you can write to"
_FIXES = {
    errno.ENOSPC: "Free some space, or choose another place with --out",
    errno.EDQUOT: "Free some of your quota, or choose another place with --out",
    errno.EFBIG: "Lift the limit on file sizes (ulimit -f), or choose another place with --out",
    errno.EMFILE: "Close some programs, or allow more open files (ulimit -n)",
    errno.ENFILE: "Close some programs: the system has too many open files",
    errno.EEXIST: "Choose another name with --out, or continue that run with --resume",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: f"A part of the path is a file. {_ELSEWHERE}",
} | dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT), _ELSEWHERE)
_BUFFER = 16 << 10  # more than most headers: lists of runs read no further
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_FAR = 1 << 30  # Windows locks are mandatory: this leaves the text readable
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # file systems that cannot lock
_MACHINE = f"{zlib.crc32(socket.gethostname().encode()):08x}"  # in names of temporary files
_held: set[int] = set()  # descriptors with a lock


@contextmanager
def os_errors(action: str, path: Path | str, fix: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        usual = _FIXES.get(error.errno or 0, "Check the disk, or choose another place with --out")
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}", fix or usual) from error


def plain(text: str) -> str:
    """The text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", text)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # it is a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def sync_folder(folder: Path) -> None:
    """Flush the folder, which holds the name of a new file."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        with suppress(OSError):
            os.close(descriptor)


def distrust(path: Path, private: bool = False) -> str | None:
    """How other users, except root, may have changed a file, or read a `private` one; None if they cannot."""
    found = None
    with os_errors("use", path, CHECK), suppress(FileNotFoundError):
        found = path.lstat()
    if found is None or os.name == "nt":
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link, and may lead to a file of other users"
    if private:
        return f"{path} is open to other users" if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) else None
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX  # only owners can replace its files
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return f"{path} can be changed by other users" if others_write and not is_sticky else None


@contextmanager
def open_regular(path: Path, fix: str) -> Iterator[BinaryIO]:
    """Open a file to read; anything else is an error, as a pipe would wait for a writer."""
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
    file = open(os.open(path, flags), "rb", _BUFFER)  # noqa: PTH123, SIM115 -- a failing close must not matter
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"cannot read {path}: it is not a file", fix)
        yield file
    finally:
        with suppress(OSError):  # everything needed has been read
            file.close()


def write_whole(path: Path, chunks: Iterable[bytes], replace: bool = True, mode: int = 0o666) -> int:
    """Write a file whole or not at all, and return its size; follows no link, and only `replace` replaces a file."""
    if os.path.lexists(path) and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = temporary(path)
    try:  # without a name, so that a kill leaves nothing behind: only on Linux, and not on every file system
        Path("/proc/self/fd").stat()  # needed to name it
        descriptor, is_nameless = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode), True
    except (AttributeError, OSError):
        descriptor, is_nameless = os.open(part, _CREATE, mode), False
    try:
        size = sum(write_all(descriptor, chunk) for chunk in chunks)
        os.fsync(descriptor)
        if is_nameless:
            target = part if replace and os.path.lexists(path) else path
            folder = os.open(path.parent, os.O_RDONLY)
            try:  # with folders: else Python does not follow the link in /proc
                own = f"/proc/self/fd/{descriptor}"
                os.link(own, target.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
        elif not replace:
            path.hardlink_to(part)
        if replace and part.exists():
            part.replace(path)
    finally:
        with suppress(OSError):
            os.close(descriptor)
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size


def write_all(descriptor: int, data: bytes) -> int:
    """Write it in one piece; a disk that takes only a part is full."""
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return len(data)


def temporary(path: Path) -> Path:
    """A new name next to `path`, with the machine and the process that use it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(2)}.{_MACHINE}-{os.getpid()}")


def sweep(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that were killed."""
    import psutil

    with suppress(OSError):
        for path in folder.glob(f".*.{_MACHINE}-*"):
            number = path.name.rpartition("-")[2]
            if number.isdecimal() and not psutil.pid_exists(int(number[:9])):
                path.unlink(missing_ok=True)


def set_aside(path: Path, to: Path | None = None) -> Path:
    """Rename a file to the first free one of `….aside-1`, `….aside-2`, or `to` with a number; overwrites nothing."""
    stem = to or path.with_name(f"{path.name}.aside")  # without `.jsonl` it is not one of the runs
    free = next(name for n in count(1) if not os.path.lexists(name := stem.with_name(f"{stem.name}-{n}")))
    with os_errors("rename", path, CHECK):
        os.close(os.open(free, _CREATE, 0o600))  # takes the name
        try:
            return path.replace(free)
        except OSError:
            free.unlink()
            raise


class _Holder(Struct, frozen=True, forbid_unknown_fields=True):
    pid: int  # of the process that measures
    since: str


def lock_path() -> Path:
    """$TORCHMARK_LOCK, else one fixed place per machine; TMPDIR differs between users and jobs."""
    if chosen := os.environ.get("TORCHMARK_LOCK"):
        return Path(chosen)
    has_fixed = os.name == "posix" and os.access("/tmp", os.W_OK)
    return Path("/tmp" if has_fixed else tempfile.gettempdir()) / "torchmark.lock"


@contextmanager
def machine_lock(
    wait: bool = False, share: bool = False, path: Path | None = None, on_wait: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Hold the machine alone, or with others that `share`; if it is held, raise LockedError, or `wait`."""
    path = path or lock_path()
    with ExitStack() as stack:
        with os_errors("use the lock file", path, "Delete it, or name another with TORCHMARK_LOCK"):
            descriptor = _open_lock(path)
            stack.callback(let_go, descriptor)
            _held.add(descriptor)
            if not _take(descriptor, share, wait=False):
                holder = _read_holder(descriptor) or "a process that left no name"
                if not wait:
                    fix = "Wait for it with --wait, or start both with --share and read the figures with care"
                    raise LockedError(f"another run is measuring on this machine ({holder})", fix)
                if on_wait:
                    on_wait(holder)
                _take(descriptor, share, wait=True)
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with suppress(OSError):  # the lock holds without it
            if not os.fstat(descriptor).st_size or _read_holder(descriptor):
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, msgspec.json.encode(_Holder(os.getpid(), since)))
        yield


def claim(descriptor: int, path: Path) -> None:
    """Lock an open file until `let_go`; StoreError if another process writes to it."""
    _held.add(descriptor)
    try:
        if _take(descriptor, share=False, wait=False):
            return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return
    file, writer = os.fstat(descriptor), "another process, perhaps on another machine"
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with suppress(OSError):  # only Linux lists locks
        found = re.search(rf"FLOCK .* WRITE ([1-9]\d*) {place} ", Path("/proc/locks").read_text())
        writer = f"process {found[1]}" if found else writer
    raise StoreError(f"{path} is being written by {writer}", "Wait until that run has ended")


def let_go(descriptor: int) -> None:
    _held.discard(descriptor)
    with suppress(OSError):
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a child that was just forked has a copy
    with suppress(OSError):
        os.close(descriptor)


def _forget_in_child() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # a forked child must not keep the lock of a dead parent
    os.register_at_fork(after_in_child=_forget_in_child)


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    for _ in range(3):
        # Without O_CREAT first: Linux may forbid even root to open another user's file in /tmp with it.
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            with suppress(OSError, AttributeError):  # Windows has no fchmod
                os.fchmod(descriptor, 0o666)  # every user of the machine must be able to lock it
            return descriptor
    raise FileNotFoundError("it appears and disappears")


def _read_holder(descriptor: int) -> str:
    """The holder that the lock file names; empty if it holds anything else."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = msgspec.json.decode(os.read(descriptor, 4096), type=_Holder)
        return f"process {holder.pid}, since {holder.since}"
    return ""


if sys.platform == "win32":

    def _take(descriptor: int, share: bool, wait: bool) -> bool:
        """Windows has no shared locks: a shared run checks that the lock is free, and takes none."""
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        while True:
            with suppress(OSError):
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                break
            if not wait:
                return False
            time.sleep(1.0)
        if share:
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        return True

else:

    def _take(descriptor: int, share: bool, wait: bool) -> bool:
        kind = fcntl.LOCK_SH if share else fcntl.LOCK_EX
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            return True
        return False
