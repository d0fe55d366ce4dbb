"""A run file as it may be sent around: read as strangers' files are, and written again field by field."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION
from torchmark.store.files import explained, write_whole
from torchmark.store.lines import Checksum, Header, decode_line, decode_schema, encode_line
from torchmark.store.reader import load, raw_lines
from torchmark.store.upgrade import check_schema


def shareable_lines(path: str | Path) -> Iterator[bytes]:
    """Every line that can leave this machine, the last one a checksum of the others. What is damaged is an error."""
    path = Path(path)
    load(path)  # all of it is sound, or nothing leaves
    digest, schema = hashlib.sha256(), 0
    for number, raw in raw_lines(path):
        if number == 1:
            schema = decode_schema(raw, path)
            check_schema(schema, path)
        try:
            line = decode_line(raw, schema, path, number)
        except StoreError:
            if raw.endswith(b"\n"):
                raise
            break  # torn off when its run was killed
        if isinstance(line, Checksum):
            continue
        written = encode_line(Header(SCHEMA_VERSION, line.header) if isinstance(line, Header) else line)
        digest.update(written)
        yield written
    yield encode_line(Checksum(digest.hexdigest()))


def write_export(path: str | Path, target: str | Path) -> int:
    """Write what can leave this machine into a new file, whole or not at all; how many bytes that are."""
    target = Path(target)
    try:
        return write_whole(target, shareable_lines(path), replace=False)
    except FileExistsError as error:
        raise StoreError(f"{target} already exists", "Choose another name with -o") from error
    except OSError as error:
        raise explained(target, error, "Choose another place with -o") from error
