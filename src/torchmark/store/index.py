"""Records extracted from every run file of a folder. An index caches them; the files are what counts.

The index is an SQLite file in the user's own folder and not next to the run files, which may come from strangers: a
stranger's database is never opened. Everything in it can be read again, so an index that is broken, foreign or of
another version is deleted; if none can be kept, a temporary one is used.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Run
from torchmark.store.reader import load
from torchmark.store.runs import home

BATCH = 128  # files per commit, the most that a kill loses
WAIT_S = 30.0  # for another process that writes to the same index
SETTLED_NS = 2_000_000_000  # the coarsest clock that a file system has

_TABLES = """
CREATE TABLE file (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, stamp TEXT, problem TEXT);
CREATE TABLE extract (
  place INTEGER NOT NULL, file INTEGER NOT NULL REFERENCES file ON DELETE CASCADE, number INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY (place, file, number)
) WITHOUT ROWID;
CREATE INDEX extract_file ON extract (file);
"""
_TEMPORARY = ""  # SQLite's name for a private database that is deleted when it is closed
_ENCODER = msgspec.msgpack.Encoder()


class Extract(Protocol):
    """A record extracted from runs."""

    edition: ClassVar[int]  # rises when it is extracted in another way
    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def group(self) -> object:
        """Extracts that are equal in this are returned one after the other."""

    @classmethod
    def of_run(cls, run: Run, file: str) -> Iterable[Self]:
        """All extracts of a run from the file of this name."""


Kind = TypeVar("Kind", bound=Extract)
Answer = TypeVar("Answer")
Check = Callable[[Path], str]  # why nothing of a file may be used; empty if it may
Progress = Callable[[int, int], object]  # called with the files read so far, and the files to read


class Folder(Struct, frozen=True):
    """The contents of a folder, and why some of its files could not be read."""

    files: int
    extracts: int
    problems: tuple[str, ...]


def ask_folder(
    folder: str | Path,
    kind: type[Kind],
    question: Callable[[Iterator[Kind]], Answer],
    progress: Progress | None = None,
    check: Check | None = None,
) -> tuple[Answer, Folder]:
    """The result of `question` for the extracts of all run files in a folder.

    Only files that are new or changed are read and checked. If the index turns out to be broken half-way, the question
    is asked again.
    """
    name = blake2b(os.fsencode(os.path.realpath(folder)), digest_size=12).hexdigest()
    kept = str(home() / "index" / f"{name}.sqlite")
    reason: Exception | None = None
    for place in (kept, kept, _TEMPORARY):
        try:
            with contextlib.closing(_open(place, kind, check is not None)) as index:
                _synchronise(index, Path(folder), kind, progress, check)
                return question(_extracts(index, kind)), _summary(index)
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            reason = error
            if not isinstance(error, sqlite3.OperationalError | OSError):  # those are locks, permissions, full disks
                for ending in ("", "-journal"):
                    with contextlib.suppress(OSError):
                        Path(place + ending).unlink()
    raise StoreError(f"what is in {folder} cannot be sorted: {reason}", "Free some space for temporary files")


def _open(place: str, kind: type[Extract], checked: bool) -> sqlite3.Connection:
    """An index of this version, empty if there was none; a transaction takes its lock at once or waits."""
    if place != _TEMPORARY:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    index = sqlite3.connect(place, timeout=WAIT_S, isolation_level="IMMEDIATE")
    try:
        index.execute("PRAGMA foreign_keys = ON")
        index.execute("PRAGMA cache_size = -65536")  # KiB
        version = crc32(repr((SCHEMA_VERSION, checked, kind.edition, kind.__struct_fields__, _TABLES)).encode()) >> 1
        if _version(index) != version:
            with index:
                index.execute("BEGIN IMMEDIATE")
                _prepare(index, version)
    except BaseException:
        index.close()
        raise
    return index


def _version(index: sqlite3.Connection) -> int:
    return int(index.execute("PRAGMA user_version").fetchone()[0])


def _prepare(index: sqlite3.Connection, version: int) -> None:
    if _version(index) == version:  # another process was faster
        return
    if index.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError("an index of another version")
    for table in filter(str.strip, _TABLES.split(";")):
        index.execute(table)
    index.execute(f"PRAGMA user_version = {version}")


def _synchronise(
    index: sqlite3.Connection, folder: Path, kind: type[Extract], progress: Progress | None, check: Check | None
) -> None:
    """Update the index from the files."""
    found = _scan(folder)
    known = dict(index.execute("SELECT name, stamp FROM file"))
    gone = [(name,) for name in known if name not in found]
    if gone:
        with index:
            index.executemany("DELETE FROM file WHERE name = ?", gone)
    changed = [name for name, stamp in found.items() if stamp is None or known.get(name) != stamp]
    for start in range(0, len(changed), BATCH):
        if progress:
            progress(start, len(changed))
        with index:
            for name in changed[start : start + BATCH]:
                _take_in(index, folder, name, found[name], kind, check)
    if progress and changed:
        progress(len(changed), len(changed))


def _scan(folder: Path) -> dict[bytes, str | None]:
    """The run files of a folder, each with a stamp that differs whenever its content does.

    A file that was written a moment ago may be written again within the same tick of its clock: it gets no stamp, and
    is read again next time.
    """
    now, found = time.time_ns(), dict[bytes, str | None]()
    try:
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # it was just deleted, or is a broken link
                about = path.stat()
                if path.suffix == ".jsonl" and stat.S_ISREG(about.st_mode):
                    settled = max(about.st_mtime_ns, about.st_ctime_ns) < now - SETTLED_NS
                    stamp = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
                    found[os.fsencode(path.name)] = stamp if settled else None
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}", "Name a folder of run files") from error
    return found


def _take_in(
    index: sqlite3.Connection,
    folder: Path,
    name: bytes,
    stamp: str | None,
    kind: type[Extract],
    check: Check | None,
) -> None:
    """Replace the extracts of one file. A file that cannot be read is tried again next time; one that fails the check
    is not."""
    path, problem = folder / os.fsdecode(name), None
    extracts: list[Extract] = []
    try:
        extracts = list(kind.of_run(load(path), _readable(path.name)))
        failed = check(path) if check else ""
        extracts, problem = ([], f"{_readable(path.name)}: {failed}") if failed else (extracts, None)
    except StoreError as error:
        problem, stamp = _readable(str(error).replace(str(path), path.name)), None
    index.execute("DELETE FROM file WHERE name = ?", (name,))
    added = index.execute("INSERT INTO file (name, stamp, problem) VALUES (?, ?, ?)", (name, stamp, problem))
    index.executemany(
        "INSERT INTO extract VALUES (?, ?, ?, ?)",
        [(_place(each), added.lastrowid, number, _ENCODER.encode(each)) for number, each in enumerate(extracts)],
    )


def _readable(name: str) -> str:
    """The name of a file need not be valid text."""
    return name.encode(errors="backslashreplace").decode()


def _place(extract: Extract) -> int:
    """A number that extracts of one group share: the index keeps them in this order."""
    digest = blake2b(_ENCODER.encode(extract.group), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _extracts(index: sqlite3.Connection, kind: type[Kind]) -> Iterator[Kind]:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
    for (data,) in index.execute("SELECT data FROM extract ORDER BY place, file, number"):
        yield decoder.decode(data)


def _summary(index: sqlite3.Connection) -> Folder:
    files, extracts = (index.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("file", "extract"))
    problems = index.execute("SELECT problem FROM file WHERE problem IS NOT NULL ORDER BY name")
    return Folder(files, extracts, tuple(problem for (problem,) in problems))
