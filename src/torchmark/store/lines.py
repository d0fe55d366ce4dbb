"""The lines of a run file: what kinds there are, how one is written, and how one is read from a stranger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Result, RunHeader
from torchmark.store.upgrade import upgrade_line

LINE_BYTES = 4 << 20  # a result of a thousand processes is smaller
SAMPLES_BYTES = 256 << 20  # ten million samples


class Header(Struct, frozen=True, tag_field="kind", tag="header"):
    """The first line, and the only one of its kind."""

    schema: int
    header: RunHeader


class Started(Struct, frozen=True, tag_field="kind", tag="started"):
    """A fresh process is about to measure a case."""

    case: str
    process: int


class Samples(Struct, frozen=True, tag_field="kind", tag="samples"):
    """Seconds per step that one process saw, in order, nothing deleted."""

    case: str
    process: int
    samples_s: tuple[float, ...]


class Finished(Struct, frozen=True, tag_field="kind", tag="finished"):
    """What a case gave so far; a later line for the same case replaces it."""

    result: Result


class Spread(Struct, frozen=True, tag_field="kind", tag="spread"):
    """How far fresh processes of this machine differ, from the reference case."""

    process_spread: float


Line = Header | Started | Samples | Finished | Spread

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_SAMPLES_PREFIX = b'{"kind":"samples"'


class _Version(Struct):
    schema: int
    kind: str = ""


def encode_line(line: Line) -> bytes:
    """One line, newline included; values that JSON cannot carry are refused."""
    odd = _odd_number(line)
    if odd:
        raise StoreError(
            f"{odd} is not a finite number that a run file can hold",
            "This is a fault of the measurement: please report it",
        )
    try:
        return msgspec.json.encode(line) + b"\n"
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise StoreError(f"a line of the run file cannot be written: {error}", "Please report it") from error


def is_samples(raw: bytes) -> bool:
    """Whether a line holds samples, told by its beginning: such a line is long, and rarely wanted."""
    return raw.startswith(_SAMPLES_PREFIX)


def decode_line(raw: bytes, schema: int, path: Path, number: int) -> Line:
    """One line as a record, upgraded where it was written by an earlier version; every fault is a StoreError."""
    try:
        if schema == SCHEMA_VERSION:
            return _DECODER.decode(raw)
        upgraded: Line = msgspec.convert(upgrade_line(msgspec.json.decode(raw), schema), Line)
        return upgraded
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(path, number, str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # an upgrade met what it did not expect
        raise damaged(path, number, f"not a line of schema {schema}: {error!r}") from error


def decode_schema(raw: bytes, path: Path) -> int:
    """The version in which a file was written, read before anything else is believed."""
    try:
        version = msgspec.json.decode(raw, type=_Version)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} is not a run file: line 1: {error}", "Run files are written by `torchmark run`"
        ) from error
    if version.kind != "header":
        raise StoreError(f"{path} is not a run file: line 1 is no header", "Run files are written by `torchmark run`")
    return version.schema


def check_size(raw: bytes, path: Path, number: int) -> None:
    """Nothing is parsed before its size is known to be sane."""
    if len(raw) > (SAMPLES_BYTES if is_samples(raw) else LINE_BYTES):
        raise damaged(path, number, "the line is longer than any that torchmark writes")


def damaged(path: Path, number: int, what: str) -> StoreError:
    """The one form of error for a file whose content is wrong: file, line, and the field where it is known."""
    return StoreError(f"{path}, line {number}: {what}", "The file is damaged or was edited: use another copy of it")


def _odd_number(line: Line) -> str | None:
    """Where the first value stands that no reader could take back, or None."""
    if isinstance(line, Samples):
        return None if all(map(math.isfinite, line.samples_s)) else "a sample in samples_s"
    return next(_odd_numbers(msgspec.to_builtins(line), ""), None)


def _odd_numbers(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place} = {value}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _odd_numbers(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _odd_numbers(inner, f"{place}[{index}]")
