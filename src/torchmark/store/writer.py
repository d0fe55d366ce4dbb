"""Run files written: each line whole, at once, and safe on the disk before anything else happens."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Conclusion, Result, RunHeader
from torchmark.store.lines import (
    Checksum,
    Concluded,
    Ended,
    Finished,
    Header,
    Line,
    Samples,
    Spread,
    Started,
    encode_line,
)
from torchmark.store.reader import read_header, sound_bytes

FREE_BYTES = 16 << 20  # a long run with all its samples

_ELSEWHERE = "Choose another place with --out, or set TORCHMARK_HOME to a folder that you can write to"
_CURES = {
    errno.ENOSPC: "Free some space, or choose another place with --out",
    errno.EDQUOT: "Free some of your quota, or choose another place with --out",
    errno.EFBIG: "Lift the limit on file sizes (ulimit -f), or choose another place with --out",
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOENT: _ELSEWHERE,
    errno.EEXIST: "Choose another name with --out, or continue that run with --resume",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: f"A part of the path is a file. {_ELSEWHERE}",
}


class RunWriter:
    """Appends to one run file. What a method has written survives whatever happens next."""

    def __init__(self, path: Path, descriptor: int, length: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._length = length
        self._sealed = True  # nothing was written since the last checksum, if there is one
        self.seconds = 0.0  # spent on writing, so far

    @classmethod
    def create(cls, path: str | Path, header: RunHeader) -> RunWriter:
        """A new file with its header; one that is there already is never touched."""
        path = Path(path)
        first = encode_line(Header(SCHEMA_VERSION, header))
        try:
            _make_folder(path.parent)
            writer = cls(path, os.open(path, _flags() | os.O_CREAT | os.O_EXCL, 0o644), 0)
        except OSError as error:
            raise explained(path, error) from error
        try:
            writer._append(first)
            _sync_folder(path.parent)
        except BaseException:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> RunWriter:
        """An existing file, to be gone on with; a torn last line is cut off first."""
        path = Path(path)
        read_header(path)
        length, lacks_newline, schema = sound_bytes(path)
        if schema != SCHEMA_VERSION:
            raise StoreError(
                f"{path} was begun by an older torchmark (schema {schema}, now {SCHEMA_VERSION})",
                "Start a new run without --resume",
            )
        try:
            _check_space(path)
            descriptor = os.open(path, _flags())
        except OSError as error:
            raise explained(path, error, "Make it writable, or start a new run without --resume") from error
        writer = cls(path, descriptor, length)
        try:
            os.ftruncate(descriptor, length)
            writer._append(b"\n" if lacks_newline else b"")
        except OSError as error:
            writer.close()
            raise explained(path, error) from error
        return writer

    def started(self, case: str, process: int = 0) -> None:
        """A fresh process is about to measure the case."""
        self._write(Started(case, process))

    def samples(self, case: str, process: int, samples_s: tuple[float, ...]) -> None:
        """The raw samples of one process."""
        self._write(Samples(case, process, samples_s))

    def finished(self, result: Result) -> None:
        """What the case gave, with all processes so far; raw samples have a line of their own."""
        estimate = result.estimate and replace(result.estimate, samples_s=())
        processes = tuple(replace(process, samples_s=()) for process in result.processes)
        self._write(Finished(replace(result, estimate=estimate, processes=processes)))

    def spread(self, process_spread: float) -> None:
        """How far fresh processes of this machine differ."""
        self._write(Spread(process_spread))

    def concluded(self, conclusion: Conclusion) -> None:
        """What a study came to."""
        self._write(Concluded(**{type(conclusion).__name__.lower(): conclusion}))  # type: ignore[arg-type]

    def ended(self) -> None:
        """All that the run was to measure is there."""
        self._write(Ended())

    def seal(self) -> None:
        """A checksum of all that is there, so that an accident on the file's way to somebody can be told."""
        if self._sealed or self._descriptor < 0:
            return
        with open(os.dup(self._descriptor), "rb") as file:  # noqa: PTH123 -- this very file, whatever its name is now
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256")
        self._write(Checksum(digest.hexdigest()))
        self._sealed = True

    def close(self) -> None:
        """Let go of the file; everything is on the disk already."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            with contextlib.suppress(StoreError, OSError):  # every result is on the disk; a checksum is only a help
                self.seal()
        self.close()

    def _write(self, line: Line) -> None:
        self._append(encode_line(line))

    def _append(self, data: bytes) -> None:
        """All of it or nothing: half a line in the middle of a file would spoil every line after it."""
        began = time.monotonic()
        before = self._length
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._length += len(data)  # at once: a signal may end this function here, and more lines may follow
            os.fsync(self._descriptor)
        except OSError as error:
            self._take_back(before)
            raise explained(self.path, error) from error
        self._sealed = False
        self.seconds += time.monotonic() - began

    def _take_back(self, length: int) -> None:
        self._length = length
        try:
            os.ftruncate(self._descriptor, length)
        except OSError:
            return  # a torn last line is the one fault that every reader forgives


def check_writable(path: str | Path) -> None:
    """Find out before measuring, not after, whether a new run file can be written here."""
    path = Path(path)
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        _make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
        _check_space(path)
    except OSError as error:
        raise explained(path, error) from error


def _check_space(path: Path) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < FREE_BYTES:
        raise StoreError(f"only {free >> 20} MiB are free for {path}", _CURES[errno.ENOSPC])


def _flags() -> int:
    return os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise explained(folder, error) from error
    finally:
        os.close(descriptor)


def explained(path: Path, error: OSError, cure: str | None = None) -> StoreError:
    """Why a file cannot be written, and what to do about it."""
    usual = _CURES.get(error.errno or 0, "Check the disk, or choose another place with --out")
    return StoreError(f"cannot write {path}: {error.strerror or error}", cure or usual)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # the folder's name is that of a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
