"""This user's notes about runs and machines: small local files, never exported."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from torchmark.store.files import is_own, make_folder, write_whole
from torchmark.store.places import home

_LARGEST_BYTES = 1 << 20


def keep_note(kind: str, name: str, content: bytes) -> None:
    """Write a note, or raise OSError."""
    path = _path(kind, name)
    make_folder(path.parent)
    write_whole(path, [content], mode=0o600)


def read_note(kind: str, name: str) -> bytes | None:
    """What a note says; None where there is none that only this user can have written."""
    with contextlib.suppress(OSError, ValueError):
        path = _path(kind, name)
        if is_own(path):
            with path.open("rb") as file:
                return file.read(_LARGEST_BYTES)
    return None


def _path(kind: str, name: str) -> Path:
    return home() / kind / re.sub(r"[^A-Za-z0-9-]", "-", name)[:80]
