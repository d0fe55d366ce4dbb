"""The log next to a run file: what workers print, and the messages behind failures.
It may name hosts, people and paths: only its owner can read it, and nothing in it is exported."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from torchmark.records import Run

LARGEST_BYTES = 16 << 20
_TAIL_BYTES = 1 << 20
_LONGEST = 1000  # characters of a message
_ENTRY = re.compile(rb"^torchmark: (\S+) failed: (.+)$", re.MULTILINE)


def log_path(path: Path) -> Path:
    """Next to the run file, and never the run file itself, even with an unusual name."""
    return path.with_name(path.name + ".log")


def keep_detail(path: Path, case: str, detail: str) -> None:
    """Add the message behind a failure to the log of a run file, if it can be written."""
    with suppress(OSError), open(open_log(log_path(path)), "wb") as log:
        log.write(f"\ntorchmark: {case} failed: {' '.join(detail.split())[:_LONGEST]}\n".encode(errors="replace"))


def with_details(run: Run, path: Path) -> Run:
    """The run with the last message about each case in its log, never to be shared."""
    if all(result.status == "ok" and not result.reason for result in run.results):
        return run
    if (descriptor := _open(log_path(path), os.O_RDONLY)) is None:
        return run
    tail = b""
    with suppress(OSError), open(descriptor, "rb") as log:  # noqa: PTH123 -- the file that was examined
        log.seek(max(size_of(descriptor) - _TAIL_BYTES, 0))
        tail = log.read(_TAIL_BYTES)
    found = {case.decode(errors="replace"): text.decode(errors="replace") for case, text in _ENTRY.findall(tail)}
    known = ((each, found.get(each.case.text, "")[:_LONGEST]) for each in run.results)
    return replace(run, results=tuple(replace(each, detail=detail or each.detail) for each, detail in known))


def open_log(path: str | Path) -> int:
    """A descriptor that appends to the log; to nothing if it cannot be opened."""
    if (descriptor := _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)) is None:
        return os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, AttributeError):  # Windows has no fchmod; the file may be another user's
        os.fchmod(descriptor, 0o600)
    return descriptor


def size_of(descriptor: int) -> int:
    with suppress(OSError):
        return os.fstat(descriptor).st_size
    return 0


def trim(descriptor: int, before: int) -> None:
    """Cut a log to its limit, but nothing from before this process."""
    with suppress(OSError):
        if size_of(descriptor) > (most := max(LARGEST_BYTES, before)):
            os.ftruncate(descriptor, most)


def redirect_output(descriptor: int) -> None:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _open(path: str | Path, flags: int) -> int | None:
    """Only a regular file: a pipe in its place must not block, and a link must not lead elsewhere."""
    flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    try:
        descriptor = os.open(path, flags, 0o600)
    except (OSError, ValueError):
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:  # else it is another file, too
        return descriptor
    os.close(descriptor)
    return None
