"""One lock per machine, so that two runs never disturb each other unintentionally; and a lock on each open run file.

The machine's lock is outside the folder of runs, which the machines of a cluster share. The operating system releases
it when its holder ends in any way, so there are no stale locks. Shared runs are allowed next to other shared runs only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from torchmark.errors import LockedError, StoreError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 1 << 30  # Windows locks are mandatory: a byte far behind the text keeps the text readable
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # file systems that cannot lock
_held: set[int] = set()  # descriptors with a lock


class Holder(Struct, frozen=True, forbid_unknown_fields=True):
    """The process that measures, as recorded in the lock file."""

    pid: int
    since: str

    @property
    def text(self) -> str:
        return f"process {self.pid}, since {self.since}" if self.pid else "a process that left no name"


def lock_path() -> Path:
    """The lock file: $TORCHMARK_LOCK, else one fixed place per machine; TMPDIR differs between users and jobs."""
    if chosen := os.environ.get("TORCHMARK_LOCK"):
        return Path(chosen)
    fixed = Path("/tmp")
    folder = fixed if os.name == "posix" and os.access(fixed, os.W_OK) else Path(tempfile.gettempdir())
    return folder / "torchmark.lock"


@contextlib.contextmanager
def machine_lock(
    wait: bool = False,
    share: bool = False,
    path: Path | None = None,
    on_wait: Callable[[Holder], object] | None = None,
) -> Iterator[None]:
    """Hold the machine for one run. If another holds it: wait for its end, or raise LockedError.

    `on_wait` is called once with the holder, just before the waiting begins.
    """
    path = path or lock_path()
    with contextlib.ExitStack() as stack:
        try:
            descriptor = _open(path)
            stack.callback(let_go, descriptor)
            _held.add(descriptor)
            if not _take(descriptor, share, wait=False):
                holder = _read_holder(descriptor)
                if not wait:
                    raise LockedError(
                        f"another run is measuring on this machine ({holder.text})",
                        "Wait for it with --wait, or start both with --share and read the figures with care",
                    )
                if on_wait:
                    on_wait(holder)
                _take(descriptor, share, wait=True)
        except OSError as error:
            raise StoreError(
                f"cannot use the lock file {path}: {error.strerror or error}",
                "Delete it, or name another with TORCHMARK_LOCK",
            ) from error
        _write_holder(descriptor)
        yield


def claim(descriptor: int, path: Path) -> None:
    """Keep other writers off an open file until `let_go`; StoreError if another process writes to it."""
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
    with contextlib.suppress(OSError):  # only Linux lists locks
        found = re.search(rf"FLOCK .* WRITE ([1-9]\d*) {place} ", Path("/proc/locks").read_text())
        writer = f"process {found[1]}" if found else writer
    raise StoreError(f"{path} is being written by {writer}", "Wait until that run has ended")


def let_go(descriptor: int) -> None:
    """Unlock and close a file."""
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            # Closing releases the lock only if no child that was just forked still has a copy.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _forget_in_child() -> None:
    """A forked child must not keep its parent's lock alive after the parent has died."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _open(path: Path) -> int:
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    for _ in range(3):
        # Without O_CREAT first: Linux may forbid even root to open another user's file in /tmp with it.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError, AttributeError):  # Windows has no fchmod
                os.fchmod(descriptor, 0o666)  # every user of the machine must be able to lock it
            return descriptor
    raise FileNotFoundError("it appears and disappears")


def _read_holder(descriptor: int) -> Holder:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return msgspec.json.decode(os.read(descriptor, 4096), type=Holder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Holder(0, "")


def _write_holder(descriptor: int) -> None:
    """The lock holds without this note, on a full disk or in a file that contains something else."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_size and not _read_holder(descriptor).pid:
            return
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, msgspec.json.encode(Holder(os.getpid(), since)))


if sys.platform == "win32":

    def _take(descriptor: int, share: bool, wait: bool) -> bool:
        """Windows has no shared lock here: a shared run checks that the lock is free, and takes none."""
        while True:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
                time.sleep(1.0)
                continue
            if share:
                os.lseek(descriptor, _FAR, os.SEEK_SET)
                msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
            return True

else:

    def _take(descriptor: int, share: bool, wait: bool) -> bool:
        kind = fcntl.LOCK_SH if share else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
