"""Records extracted from every run file of a folder, and an index that remembers them, in the user's own folder."""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar
from zlib import compress, decompress

import msgspec
from msgspec import Struct

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Run
from torchmark.store.files import os_errors
from torchmark.store.reader import load
from torchmark.store.runs import keep_note, read_note

BATCH = 1000  # files between two writes of the index, the most that a kill loses
_PARTS = 16
SETTLED_NS = 2_000_000_000  # the coarsest clock that a file system has


class Extract(Protocol):
    """A record extracted from runs; those of one group are returned one after the other."""

    edition: ClassVar[int]  # rises when it is extracted differently
    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def group(self) -> object: ...

    @classmethod
    def of_run(cls, run: Run, file: str) -> Iterable[Self]: ...


Kind = TypeVar("Kind", bound=Extract)
Check = Callable[[Path], str]  # why a file may not be used; empty if it may
Progress = Callable[[int, int], object]  # called with the numbers of files read, and to be read


class Folder(Struct, frozen=True):
    files: int
    extracts: int
    problems: tuple[str, ...]


class _File(Struct, array_like=True):
    stamp: str | None  # differs whenever the content does; None: to be read again
    problem: str | None
    count: int = 0
    parts: tuple[bytes, ...] = (b"",) * _PARTS  # by the hashes of groups, compressed: one is in memory at a time


def read_folder(
    folder: str | Path, kind: type[Kind], progress: Progress = lambda *_: None, check: Check | None = None
) -> tuple[Iterator[Kind], Folder]:
    """The extracts of all run files; only new or changed files are read and checked."""
    version = blake2b(repr((SCHEMA_VERSION, bool(check), kind.edition, kind.__struct_fields__)).encode()).digest()
    name = blake2b(os.fsencode(os.path.realpath(folder)), digest_size=12).hexdigest()
    stamps, known = _scan(Path(folder)), _remembered(name, version)
    files = {file: known[file] for file, stamp in stamps.items() if file in known and known[file].stamp == stamp}
    changed = [file for file, stamp in stamps.items() if not stamp or file not in files]
    for number, file in enumerate(changed):
        if not number % 100:
            progress(number, len(changed))
        files[file] = _read(Path(folder) / os.fsdecode(file), stamps[file], kind, check)
        if number % BATCH == BATCH - 1:
            _remember(name, version, files)
    if changed or len(files) < len(known):
        _remember(name, version, files)
    ordered = [files[file] for file in sorted(files)]
    problems = tuple(file.problem for file in ordered if file.problem)
    return _extracts(ordered, kind), Folder(len(files), sum(file.count for file in ordered), problems)


def _extracts(files: list[_File], kind: type[Kind]) -> Iterator[Kind]:
    decode = msgspec.msgpack.Decoder(list[tuple[bytes, kind]]).decode  # type: ignore[valid-type]
    for part in range(_PARTS):
        found = [each for file in files if file.parts[part] for each in decode(decompress(file.parts[part]))]
        yield from (extract for _, extract in sorted(found, key=itemgetter(0)))


def _remembered(name: str, version: bytes) -> dict[bytes, _File]:
    content = memoryview(read_note("index", name, most=-1) or b"")
    with suppress(msgspec.MsgspecError):
        if content[:32] == blake2b(content[32:], digest_size=32, key=version).digest():
            return msgspec.msgpack.decode(content[32:], type=dict[bytes, _File])
    return {}


def _remember(name: str, version: bytes, files: dict[bytes, _File]) -> None:
    content = msgspec.msgpack.encode(files)
    with suppress(OSError):  # then all files are read again next time
        keep_note("index", name, blake2b(content, digest_size=32, key=version).digest(), content)


def _scan(folder: Path) -> dict[bytes, str | None]:
    """The run files with their stamps; None for a file that may change again within a tick of its clock."""
    now, found = time.time_ns(), dict[bytes, str | None]()
    with os_errors("read", folder, "Name a folder of run files"):
        for path in folder.iterdir():
            with suppress(OSError):  # it was just deleted, or is a broken link
                about = path.stat()
                if path.suffix == ".jsonl" and stat.S_ISREG(about.st_mode):
                    settled = max(about.st_mtime_ns, about.st_ctime_ns) < now - SETTLED_NS
                    stamp = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
                    found[os.fsencode(path.name)] = stamp if settled else None
    return found


def _read(path: Path, stamp: str | None, kind: type[Extract], check: Check | None) -> _File:
    """The extracts of one file. An unreadable one is tried again next time, one that fails the check is not."""
    name, encode = path.name.encode(errors="backslashreplace").decode(), msgspec.msgpack.encode
    try:
        extracts = [*kind.of_run(load(path), name)]
        if check and (failed := check(path)):
            return _File(stamp, f"{name}: {failed}")
    except StoreError as error:
        problem = str(error).replace(str(path), path.name)
        return _File(None, problem.encode(errors="backslashreplace").decode())
    parts: list[list[tuple[bytes, Extract]]] = [[] for _ in range(_PARTS)]
    for each in extracts:
        group = blake2b(encode(each.group), digest_size=8).digest()
        parts[group[0] * _PARTS >> 8].append((group, each))
    return _File(stamp, None, len(extracts), tuple(compress(encode(part), 1) if part else b"" for part in parts))
