"""The lines of a run file: what kinds there are, how one is written, and how one is read from a stranger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from torchmark.errors import StoreError
from torchmark.records import (
    SCHEMA_VERSION,
    Fitting,
    Limiting,
    Live,
    Name,
    Real,
    Result,
    RunHeader,
    Text,
    Tuning,
    Whole,
)
from torchmark.store.shareable import shareable
from torchmark.store.upgrade import upgrade_line

HEADER_BYTES = 4 << 20  # all cases that one may have, twice
LINE_BYTES = 512 << 10  # a result of sixty processes is shorter
MOST_SAMPLES = 1_000_000  # of one process
SAMPLES_BYTES = 32 << 20  # that many, each with all its digits

# What a whole file may hold; reading one never takes more memory or time than these leave room for.
FILE_BYTES = 1 << 30
RESULTS_BYTES = 250 << 20  # in memory
MOST_SAMPLES_AT_ONCE = 5_000_000


class Header(Struct, frozen=True, tag_field="kind", tag="header"):
    """The first line, and the only one of its kind."""

    schema: int
    header: RunHeader


class Started(Struct, frozen=True, tag_field="kind", tag="started"):
    """A fresh process is about to measure a case."""

    case: Text
    process: Whole


class Samples(Struct, frozen=True, tag_field="kind", tag="samples"):
    """Seconds per step that one process saw, in order, nothing deleted."""

    case: Text
    process: Whole
    samples_s: Annotated[tuple[Real, ...], Meta(max_length=MOST_SAMPLES)]


class Finished(Struct, frozen=True, tag_field="kind", tag="finished"):
    """What a case gave so far; a later line for the same case replaces it."""

    result: Result


class Spread(Struct, frozen=True, tag_field="kind", tag="spread"):
    """How far fresh processes of this machine differ, from the reference case."""

    process_spread: Annotated[float, Meta(ge=0, le=1e100)]


class Concluded(Struct, frozen=True, tag_field="kind", tag="concluded"):
    """What a search came to, once it has ended."""

    tuning: Tuning | None = None
    fitting: Fitting | None = None
    limiting: Limiting | None = None
    live: Live | None = None


class Ended(Struct, frozen=True, tag_field="kind", tag="ended"):
    """The run ended in order, so nothing is left to be measured unless more is asked for."""


class Checksum(Struct, frozen=True, tag_field="kind", tag="checksum"):
    """Of all bytes before this line, written when a run ends in order: it tells accidents, not liars."""

    sha256: Name


Line = Header | Started | Samples | Finished | Spread | Concluded | Ended | Checksum


class RunName(Struct, frozen=True):
    """What a person calls a run by."""

    id: Name
    created: Name
    label: Name | None = None


class _NamedHeader(Struct, frozen=True, tag_field="kind", tag="header"):
    schema: int
    header: RunName


_NAME_DECODER = msgspec.json.Decoder(_NamedHeader)
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_SAMPLES_PREFIX = b'{"kind":"samples"'


class _Version(Struct):
    schema: int
    kind: str = ""


def encode_line(line: Line) -> bytes:
    """One line, newline included: only what may be shared, and nothing that no reader could take back."""
    plain: Any = line if isinstance(line, Samples) else shareable(msgspec.to_builtins(line))
    odd = _odd_number(plain)
    if odd:
        raise StoreError(
            f"{odd} is not a finite number that a run file can hold",
            "This is a fault of the measurement: please report it",
        )
    try:
        data = msgspec.json.encode(plain) + b"\n"
        _DECODER.decode(data)
        return data
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise StoreError(f"a line of the run file cannot be written: {error}", "Please report it") from error


def as_shared(result: Result) -> Result:
    """The result as it would be in a run file: only what may be shared."""
    line = _DECODER.decode(encode_line(Finished(result)))
    assert isinstance(line, Finished)
    return line.result


def is_samples(raw: bytes) -> bool:
    """Whether a line holds samples, told by its beginning: such a line is long, and rarely wanted."""
    return raw.startswith(_SAMPLES_PREFIX)


def decode_line(raw: bytes, schema: int, path: Path, number: int) -> Line:
    """One line as a record, upgraded where it was written by an earlier version; every fault is a StoreError."""
    try:
        if schema == SCHEMA_VERSION or (schema == 1 and is_samples(raw)):  # those are as they were, and long
            return _DECODER.decode(raw)
        upgraded: Line = msgspec.convert(upgrade_line(msgspec.json.decode(raw), schema), Line)
        return upgraded
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(path, number, str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # an upgrade met what it did not expect
        raise damaged(path, number, f"not a line of schema {schema}: {error!r}") from error


def decode_name(raw: bytes) -> RunName | None:
    """The name in a header, quicker than the whole of it; None where this is not a header of the present version."""
    try:
        header = _NAME_DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return header.header if header.schema == SCHEMA_VERSION else None


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
    if len(raw) > (SAMPLES_BYTES if is_samples(raw) else HEADER_BYTES if number == 1 else LINE_BYTES):
        raise damaged(path, number, "the line is longer than any that torchmark writes")


def too_large(path: Path, what: str) -> StoreError:
    """The one form of error for a file that would take more memory than any run file needs."""
    return StoreError(f"{path}: {what}, more than any run file", "Use another copy of the file")


def damaged(path: Path, number: int, what: str) -> StoreError:
    """The one form of error for a file whose content is wrong: file, line, and the field where it is known."""
    return StoreError(f"{path}, line {number}: {what}", "The file is damaged or was edited: use another copy of it")


def _odd_number(line: Any) -> str | None:
    """Where the first value stands that JSON has no number for, or None: it would come back as nothing."""
    if isinstance(line, Samples):
        return None if all(map(math.isfinite, line.samples_s)) else "a sample in samples_s"
    return next(_odd_numbers(line, ""), None)


def _odd_numbers(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place} = {value}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _odd_numbers(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _odd_numbers(inner, f"{place}[{index}]")
