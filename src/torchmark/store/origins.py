"""Which model files this user started a run with: a run file may come from anybody, so it alone makes nothing run.

One note per run, never exported: it holds paths.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from torchmark.store.notes import keep_note, read_note


def keep_origin(run: str, files: Mapping[str, Path]) -> None:
    """Remember where a run found its model files; without the note, resuming it has to ask."""
    if files:
        with contextlib.suppress(OSError):
            content = {name: os.fspath(path) for name, path in files.items()}
            keep_note("origins", run, msgspec.json.encode(content))


def find_origin(run: str) -> dict[str, Path]:
    """The model files that this user started a run with, by name; empty where that is not known for sure."""
    with contextlib.suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(read_note("origins", run) or b"{}", type=dict[str, str])
        return {name: Path(path) for name, path in found.items()}
    return {}
