"""Writing run files: each line whole, in one write, and safe on the disk before anything else happens."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from itertools import count
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from torchmark.errors import StoreError
from torchmark.local_log import keep_detail
from torchmark.records import SCHEMA_VERSION, Conclusion, Result, Run, RunHeader
from torchmark.store.files import explained, make_folder, sync_folder, write_all
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
from torchmark.store.lock import claim, let_go
from torchmark.store.reader import load, read_header, sound_bytes

FREE_BYTES = 16 << 20  # a long run with all its samples


class RunWriter:
    """Appends to one run file. What a method has written survives whatever happens next.

    The file is locked while it is open: a second writer is refused. Its content is also kept in memory. If sync tools,
    editors or people replace, cut, move or delete the file, the next line restores all of it. A line that could not be
    written raises StoreError and stays in memory, so that it can be shown.
    """

    def __init__(self, path: Path, descriptor: int, content: bytes = b"") -> None:
        self.path = path
        self.notes: list[str] = []  # what happened to the file, for the user
        self.seconds = 0.0  # spent on writing, so far
        self._descriptor = descriptor
        self._content = bytearray(content)  # that the file has or should have
        self._stamp = os.fstat(descriptor).st_mtime_ns  # of this writer's last change
        self._details: set[str] = set()  # that are in the log
        self._sealed = True  # nothing was written since the last checksum, if there is one

    @classmethod
    def create(cls, path: str | Path, header: RunHeader) -> RunWriter:
        """Start a new file with its header; an existing file is never touched."""
        path = Path(path)
        first = encode_line(Header(SCHEMA_VERSION, header))
        try:
            make_folder(path.parent)
            writer = cls(path, os.open(path, _flags() | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as error:
            raise explained(path, error) from error
        try:
            claim(writer._descriptor, path)
            writer._append(first)
            sync_folder(path.parent)
        except BaseException as error:
            writer.close()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise explained(path, error) from error
            raise
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> RunWriter:
        """Open an existing file to append to; an incomplete last line is cut off first."""
        path = Path(path)
        read_header(path)
        try:
            _check_space(path)
            writer = cls(path, os.open(path, _flags()))
        except OSError as error:
            raise explained(path, error, "Make it writable, or start a new run without --resume") from error
        try:
            claim(writer._descriptor, path)
            sound = sound_bytes(path)
            if not os.path.samestat(path.stat(), os.fstat(writer._descriptor)):
                raise StoreError(f"{path} was replaced by another program just now", "Try again")
            writer._take_over(*sound)
        except OSError as error:
            writer.close()
            raise explained(path, error) from error
        except BaseException:
            writer.close()
            raise
        return writer

    def _take_over(self, length: int, lacks_newline: bool, schema: int) -> None:
        if schema != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was begun by an older torchmark (schema {schema}, now {SCHEMA_VERSION})",
                "Start a new run without --resume",
            )
        os.ftruncate(self._descriptor, length)
        self._stamp = os.fstat(self._descriptor).st_mtime_ns
        self._content += _read(self._descriptor, length)
        self._append(b"\n" if lacks_newline else b"")

    @property
    def run(self) -> Run:
        """The run as it was measured, even if the file was changed."""
        return load(self.path, content=bytes(self._content))

    @property
    def local_run(self) -> Run:
        """The same with the messages behind failures, to be shown on this terminal and nowhere else."""
        return load(self.path, content=bytes(self._content), local=True)

    def started(self, case: str, process: int = 0) -> None:
        """A fresh process is about to measure the case."""
        self._write(Started(case, process))

    def samples(self, case: str, process: int, samples_s: tuple[float, ...]) -> None:
        """The raw samples of one process."""
        self._write(Samples(case, process, samples_s))

    def measured(self, process: int, newest: Result, result: Result) -> None:
        """A process that has just ended, with its samples, and the result of its case including it."""
        text = result.case.text
        samples = (Samples(text, process, estimate.samples_s) for estimate in newest.processes)
        self.finished(result, Started(text, process), *samples)

    def finished(self, result: Result, *before: Line) -> None:
        """The result of a case with all its processes so far; raw samples have a line of their own."""
        estimate = result.estimate and replace(result.estimate, samples_s=())
        processes = tuple(replace(process, samples_s=()) for process in result.processes)
        self._write(*before, Finished(replace(result, estimate=estimate, processes=processes)))
        if result.detail and result.detail not in self._details:
            self._details.add(result.detail)
            keep_detail(self.path, result.case.text, result.detail)

    def spread(self, process_spread: float) -> None:
        """How much fresh processes of this machine differ."""
        self._write(Spread(process_spread))

    def concluded(self, conclusion: Conclusion) -> None:
        """The conclusion of a study."""
        self._write(Concluded(**{type(conclusion).__name__.lower(): conclusion}))  # type: ignore[arg-type]

    def ended(self) -> None:
        """Everything that the run was to measure is there."""
        self._write(Ended())

    def seal(self) -> None:
        """Add a checksum of everything so far, so that damage on the file's way to somebody can be detected."""
        if self._sealed or self._descriptor < 0:
            return
        self._stamp = -1  # compare the whole file once: a change within one tick of the clock does not show in its time
        self._write(Checksum(hashlib.sha256(self._content).hexdigest()))
        self._sealed = True

    def close(self) -> None:
        """Close the file; everything is on the disk already, so nothing is lost if this fails."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            let_go(descriptor)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            with contextlib.suppress(StoreError, OSError):  # every result is on the disk without it
                self.seal()
        self.close()

    def _write(self, *lines: Line) -> None:
        self._append(b"".join(map(encode_line, lines)))

    def _append(self, data: bytes) -> None:
        """Append to the file, or restore it with the new lines.

        `_content` comes first and keeps what could not be written: after a signal or an error, the next line completes
        the file.
        """
        began = time.monotonic()
        before = len(self._content)
        self._content += data
        self._sealed = False
        try:
            if self._is_in_place(before):
                self._extend(self._descriptor, data)
            else:
                self._restore()
        except OSError as error:
            raise explained(self.path, error) from error
        self.seconds += time.monotonic() - began

    def _extend(self, descriptor: int, data: bytes) -> None:
        """Append all of it or nothing: half a line in the middle of a file would ruin every line after it."""
        length = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, data)
            self._stamp = os.fstat(descriptor).st_mtime_ns  # now: fsync takes long enough for another change
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):  # an incomplete last line is the one fault that readers accept
                if os.fstat(descriptor).st_size > length:
                    os.ftruncate(descriptor, length)
            raise

    def _is_in_place(self, length: int) -> bool:
        """Whether the file at the path is still ours, and no other program has written to it."""
        try:
            own = os.fstat(self._descriptor)
            return os.path.samestat(self.path.stat(), own) and (own.st_size, own.st_mtime_ns) == (length, self._stamp)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _restore(self) -> None:
        """Make the file at the path hold all content. A file with other content is kept under another name.

        If that fails, the path holds what it held before.
        """
        make_folder(self.path.parent)
        descriptor = self._reopen()
        if descriptor is None:
            descriptor = self._create()
            self.notes.append(f"{self.path} was moved or deleted, and has been written again")
        else:
            try:
                held = _read(descriptor, len(self._content) + 1)
                if self._content.startswith(held):
                    self._extend(descriptor, bytes(self._content[len(held) :]))
                else:
                    found, descriptor = descriptor, self._replace()
                    self._drop(found)
            except BaseException:
                self._drop(descriptor)
                raise
        former, self._descriptor = self._descriptor, descriptor
        self._drop(former)
        sync_folder(self.path.parent)

    def _replace(self) -> int:
        """Rename the file at the path, and write another one."""
        aside = _free_name(self.path)
        self.path.rename(aside)
        try:
            descriptor = self._create()
        except BaseException:
            if not os.path.lexists(self.path):
                aside.rename(self.path)
            raise
        self.notes.append(f"{self.path} was changed by another program; that version is now {aside}")
        return descriptor

    def _drop(self, descriptor: int) -> None:
        if descriptor != self._descriptor:
            let_go(descriptor)

    def _reopen(self) -> int | None:
        """The file that is at the path now; None if there is nothing."""
        try:
            about = self.path.stat()
            if os.path.samestat(about, os.fstat(self._descriptor)):
                return self._descriptor
            if stat.S_ISREG(about.st_mode):
                return self._open(_flags())
        except FileNotFoundError:
            if not os.path.lexists(self.path):
                return None
        raise OSError(errno.EEXIST, "it is no longer a file")

    def _create(self) -> int:
        """A new file with all content; none where that fails."""
        descriptor = self._open(_flags() | os.O_CREAT | os.O_EXCL)
        try:
            self._extend(descriptor, bytes(self._content))
        except BaseException:
            with contextlib.suppress(OSError):
                self.path.unlink()
            let_go(descriptor)
            raise
        return descriptor

    def _open(self, flags: int) -> int:
        descriptor = os.open(self.path, flags, 0o644)
        try:
            claim(descriptor, self.path)
        except BaseException:
            let_go(descriptor)
            raise
        return descriptor


def _read(descriptor: int, most: int) -> bytes:
    with open(os.dup(descriptor), "rb") as file:  # noqa: PTH123 -- this very file, whatever its name is now
        file.seek(0)
        return file.read(most)


def _free_name(path: Path) -> Path:
    """Not `.jsonl`: what is set aside is not one of the runs."""
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in count())
    return next(name for name in names if not os.path.lexists(name))


def check_writable(path: str | Path) -> None:
    """Check before measuring, not after, that a new run file can be written here."""
    path = Path(path)
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        make_folder(path.parent)
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
        raise StoreError(
            f"only {free >> 20} MiB are free for {path}", "Free some space, or choose another place with --out"
        )


def _flags() -> int:
    return os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
