"""Write run files: each line in one write, and safe on the disk before anything else happens."""

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from torchmark.errors import StoreError
from torchmark.local_log import keep_detail
from torchmark.records import SCHEMA_VERSION, Conclusion, Result, Run, RunHeader
from torchmark.store import lines
from torchmark.store.files import claim, let_go, make_folder, os_errors, set_aside, sync_folder, write_all, write_whole
from torchmark.store.reader import FILE_BYTES, load, read_header

FREE_BYTES = 16 << 20  # a long run with all its samples
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class RunWriter:
    """Appends to a run file, which is locked meanwhile.

    All content is also in memory. If another program replaces, cuts, moves or deletes the file, the next line restores
    it. A line that could not be written raises StoreError and stays in memory, so that it can be shown.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []  # what happened to the file
        self.seconds = 0.0  # spent on writing
        self._descriptor = -1
        self._content = bytearray()  # that the file should have
        self._stamp = -1  # the file's time after the last own change
        self._details: set[str] = set()  # that are in the log
        self._sealed = False  # nothing was written since the last checksum

    @classmethod
    def create(cls, path: str | Path, header: RunHeader) -> Self:
        """Start a new file with its header; an existing file is never touched."""
        writer, first = cls(Path(path)), lines.encode_line(lines.Header(SCHEMA_VERSION, header))
        with os_errors("write", path):
            make_folder(writer.path.parent)
            writer._adopt(os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644))
            try:
                claim(writer._descriptor, writer.path)
                writer._append(first)
                sync_folder(writer.path.parent)
            except BaseException:
                with suppress(OSError):
                    writer.path.unlink()
                writer.close()
                raise
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Open an existing file to append to; an incomplete last line is cut off first."""
        writer = cls(Path(path))
        read_header(path)
        with os_errors("write", path, "Make it writable, or start a new run without --resume"):
            _check_space(writer.path)
            writer._adopt(writer._open())
        try:
            with os_errors("write", path):
                writer._take_over()
        except BaseException:
            writer.close()
            raise
        return writer

    def _take_over(self) -> None:
        descriptor, ending = self._descriptor, b""
        if not os.path.samestat(self.path.stat(), os.fstat(descriptor)):
            raise StoreError(f"{self.path} was replaced by another program just now", "Try again")
        content = _read(descriptor, FILE_BYTES)
        schema = lines.decode_schema(content.partition(b"\n")[0], self.path)
        if schema != SCHEMA_VERSION:
            cause = f"{self.path} was begun by an older torchmark (schema {schema}, now {SCHEMA_VERSION})"
            raise StoreError(cause, "Start a new run without --resume")
        length = content.rfind(b"\n") + 1
        if length < len(content):
            with suppress(StoreError):
                lines.decode_line(content[length:], schema, self.path, 0)
                length, ending = len(content), b"\n"  # all but the newline was written
        os.ftruncate(descriptor, length)
        self._stamp = os.fstat(descriptor).st_mtime_ns
        self._content += content[:length]
        self._append(ending)

    def read(self, local: bool = False) -> Run:
        """The run as it was measured, even if the file was changed."""
        return load(self.path, content=bytes(self._content), local=local)

    def measured(self, process: int, newest: Result, result: Result) -> None:
        """A process that has ended, with its samples, and the result of its case including it."""
        text = result.case.text
        samples = (lines.Samples(text, process, estimate.samples_s) for estimate in newest.processes)
        self.finished(result, lines.Started(text, process), *samples)

    def finished(self, result: Result, *before: lines.Line) -> None:
        """The result of a case so far, without raw samples, which have lines of their own."""
        estimate = result.estimate and replace(result.estimate, samples_s=())
        processes = tuple(replace(process, samples_s=()) for process in result.processes)
        self.write(*before, lines.Finished(replace(result, estimate=estimate, processes=processes)))
        if result.detail and result.detail not in self._details:
            self._details.add(result.detail)
            keep_detail(self.path, result.case.text, result.detail)

    def concluded(self, conclusion: Conclusion) -> None:
        self.write(lines.Concluded(**{type(conclusion).__name__.lower(): conclusion}))  # type: ignore[arg-type]

    def seal(self) -> None:
        if not self._sealed and self._descriptor >= 0:
            self._stamp = -1  # compare the whole file: a change within one tick of the clock leaves its time
            self.write(lines.Checksum(hashlib.sha256(self._content).hexdigest()))
            self._sealed = True

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            let_go(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            with suppress(StoreError, OSError):  # every result is on the disk already
                self.seal()
        self.close()

    def write(self, *more: lines.Line) -> None:
        try:
            data = b"".join(map(lines.encode_line, more))
        except StoreError as error:
            number = self._content.count(b"\n") + 1
            raise StoreError(f"{self.path}, line {number} or later: {error.cause}", error.fix) from error
        self._append(data)

    def _append(self, data: bytes) -> None:
        """Append to the file, or restore it; after a failure the next line completes it."""
        began, before = time.monotonic(), len(self._content)
        self._content += data
        self._sealed = False
        with os_errors("write", self.path):
            own, found = os.fstat(self._descriptor), None
            with suppress(FileNotFoundError, NotADirectoryError):
                found = self.path.stat()
            is_in_place = found and os.path.samestat(found, own)
            if is_in_place and (own.st_size, own.st_mtime_ns) == (before, self._stamp):
                try:
                    write_all(self._descriptor, data)
                    self._stamp = os.fstat(self._descriptor).st_mtime_ns  # before fsync, which takes a while
                    os.fsync(self._descriptor)
                except OSError:  # half a line would ruin the next one
                    with suppress(OSError):
                        if os.fstat(self._descriptor).st_size > before:
                            os.ftruncate(self._descriptor, before)
                    raise
            else:  # another program has replaced, moved or changed it
                self._restore()
        self.seconds += time.monotonic() - began

    def _restore(self) -> None:
        """Write all content again, and keep a changed file; after a failure the path is unchanged."""
        make_folder(self.path.parent)
        former, found, aside = self._descriptor, None, None
        note = f"{self.path} was moved or deleted, and has been written again"
        if os.path.lexists(self.path):
            with suppress(FileNotFoundError):
                about, note = self.path.stat(), ""
                found = former if os.path.samestat(about, os.fstat(former)) else None
                found = self._open() if found is None and stat.S_ISREG(about.st_mode) else found
            if found is None:
                raise OSError(errno.EEXIST, "it is no longer a file")
        try:
            if found and not self._content.startswith(_read(found, len(self._content) + 1)):
                aside = set_aside(self.path)
                note = f"{self.path} was changed by another program; that version is now {aside}"
            write_whole(self.path, [bytes(self._content)], mode=0o644)
            self._adopt(self._open())
            sync_folder(self.path.parent)
        except BaseException:
            if aside and not os.path.lexists(self.path):
                aside.rename(self.path)
            raise
        finally:
            if found and found != former:
                let_go(found)
        self.notes += [note] if note else []

    def _adopt(self, descriptor: int) -> None:
        self.close()
        self._descriptor, self._stamp = descriptor, os.fstat(descriptor).st_mtime_ns

    def _open(self) -> int:
        descriptor = os.open(self.path, _FLAGS)
        try:
            claim(descriptor, self.path)
        except BaseException:
            let_go(descriptor)
            raise
        return descriptor


def check_writable(path: str | Path) -> None:
    """Check before measuring that a new run file can be written here."""
    path = Path(path)
    with os_errors("write", path):
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
        _check_space(path)


def _check_space(path: Path) -> None:
    if (free := shutil.disk_usage(path.parent).free) < FREE_BYTES:
        cause = f"only {free >> 20} MiB are free for {path}"
        raise StoreError(cause, "Free some space, or choose another place with --out")


def _read(descriptor: int, most: int) -> bytes:
    with open(os.dup(descriptor), "rb") as file:  # noqa: PTH123 -- this file, even if it was renamed
        file.seek(0)
        return file.read(most)
