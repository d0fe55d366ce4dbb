"""Where the files are that cases name: known to this process and handed on to its workers, never written into a run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct

from torchmark.errors import CaseError, UsageError

# Each file by the name that cases use, with its path and version. An environment variable, because ranks, data loaders
# and other interpreters are started in ways of their own, and all of them inherit it.
VARIABLE = "TORCHMARK_FILES"
LARGEST_BYTES = 4 << 20
_NAME = re.compile(r"(?P<file>.*\.(?:py|json))(?::(?P<member>[\w.-]+))?", re.ASCII | re.DOTALL)


class OwnFile(Struct, frozen=True):
    """A file of the user: the name that stands in cases, what it holds, and a number that changes when that does."""

    name: str
    path: Path
    text: str
    version: int


def split_name(text: str) -> tuple[str, str] | None:
    """The file and the part of it that a text names, as in `my_model.py:build`; None where it names no file."""
    found = _NAME.fullmatch(text)
    return (found["file"], found["member"] or "") if found else None


def find_file(text: str) -> OwnFile:
    """The file at a path, or the known one of that name; from now on it is known."""
    file = _read(Path(str(_known().get(text, {}).get("path", text))).absolute())
    before = _known().get(file.name)
    if before and before["path"] != str(file.path):
        raise UsageError(f"two files are called {file.name}", "Rename one of them, or measure them one after the other")
    if before and before["version"] != file.version:
        raise CaseError(f"{file.name} has changed since the run began", "Start the run again")
    entry = {file.name: {"path": str(file.path), "version": file.version}}
    os.environ[VARIABLE] = json.dumps(_known() | entry)
    return file


def known_files() -> str:
    """What a worker must be told to find the same files."""
    return os.environ.get(VARIABLE, "")


def file_paths() -> dict[str, Path]:
    """Where the files are that cases of this process name."""
    return {name: Path(str(entry["path"])) for name, entry in _known().items()}


def serve_knowing(files: str, serve: Callable[..., None], *arguments: object) -> None:
    """Runs in a worker: it may have been forked from a process that began before the files were known."""
    os.environ[VARIABLE] = files
    serve(*arguments)


def forget_files() -> None:
    """Begin anew, as in a new process."""
    _read.cache_clear()
    os.environ.pop(VARIABLE, None)


def _known() -> dict[str, dict[str, str | int]]:
    try:
        found: dict[str, dict[str, str | int]] = json.loads(known_files() or "{}")
    except ValueError:  # nobody but us should set it
        return {}
    return found


@cache
def _read(path: Path) -> OwnFile:
    """Once in a process: whoever edits a file while it is being measured must not change what is said of it."""
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST_BYTES else None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "Name a file that is there, or go to the folder that it is in"
        ) from error
    if data is None:
        raise UsageError(f"{path} is too large for a file of a model", "Name the Python file, not its weights")
    try:
        text = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text", "Save it as UTF-8") from error
    version = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) or 1
    return OwnFile(re.sub(r"[^A-Za-z0-9_.-]", "-", path.name), path, text, version)
