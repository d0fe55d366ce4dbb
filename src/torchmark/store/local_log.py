"""The log next to a run file: what workers print, and what other programs said about failures. It stays local.

Nothing here is ever exported: such messages hold paths, host names and whatever else a program knows. Only tables that
are printed for the user of this machine show them.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from msgspec.structs import replace

from torchmark.records import Run

_LONGEST = 1000  # characters of a message
_TAIL_BYTES = 1 << 20
_ENTRY = re.compile(rb"^torchmark: (?P<case>\S+) failed: (?P<detail>.+)$", re.MULTILINE)


def log_path(path: Path) -> Path:
    """Next to the run file, and never the run file itself, whatever that is called."""
    return path.with_name(path.name + ".log")


def keep_detail(path: Path, case: str, detail: str) -> None:
    """Add the message behind a failure to the log of the run file at `path`. A log that cannot be written is no fault
    of the run."""
    entry = f"\ntorchmark: {case} failed: {' '.join(detail.split())[:_LONGEST]}\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(log_path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "wb") as log:  # noqa: PTH123 -- for its owner only, from the beginning
            log.write(entry.encode(errors="replace"))


def with_details(run: Run, path: Path) -> Run:
    """The run with the messages that are in its log: for the terminal of this user, never for what is shared."""
    found = _details(path) if any(result.status != "ok" or result.reason for result in run.results) else {}
    results = (replace(each, detail=found.get(each.case.text, each.detail)) for each in run.results)
    return replace(run, results=tuple(results)) if found else run


def _details(path: Path) -> dict[str, str]:
    """By case, the last message of each."""
    try:
        with log_path(path).open("rb") as log:
            log.seek(max(os.fstat(log.fileno()).st_size - _TAIL_BYTES, 0))
            text = log.read(_TAIL_BYTES)
    except OSError:
        return {}
    found = _ENTRY.finditer(text)
    return {each["case"].decode(errors="replace"): each["detail"].decode(errors="replace")[:_LONGEST] for each in found}
