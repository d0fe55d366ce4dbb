"""Which model files this user started a run with: a run file may come from anybody, so it alone makes nothing run.

One note per run in the user's own folder, never exported: it holds paths.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from torchmark.store.files import is_own, make_folder, write_whole
from torchmark.store.places import home

_LARGEST_BYTES = 1 << 20


def keep_origin(run: str, files: Mapping[str, Path]) -> None:
    """Remember where a run found its model files; without the note, resuming it has to ask."""
    if files:
        with contextlib.suppress(OSError):
            make_folder(_note(run).parent)
            write_whole(_note(run), [msgspec.json.encode({name: os.fspath(path) for name, path in files.items()})])


def find_origin(run: str) -> dict[str, Path]:
    """The model files that this user started a run with, by name; empty where that is not known for sure."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        if is_own(_note(run)):
            found = msgspec.json.decode(_note(run).read_bytes()[:_LARGEST_BYTES], type=dict[str, str])
            return {name: Path(path) for name, path in found.items()}
    return {}


def _note(run: str) -> Path:
    return home() / "origins" / re.sub(r"[^A-Za-z0-9-]", "-", run)[:80]
