"""Messages behind failures: in the log next to a run file, and in tables that are printed for the user of this machine.

They hold paths, host names and whatever else a program knows, so they are no part of the run.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from msgspec.structs import replace

from torchmark.local_log import log_path, open_log, read_tail
from torchmark.records import Run

_LONGEST = 1000  # characters of a message
_TAIL_BYTES = 1 << 20
_ENTRY = re.compile(rb"^torchmark: (?P<case>\S+) failed: (?P<detail>.+)$", re.MULTILINE)


def keep_detail(path: Path, case: str, detail: str) -> None:
    """Add the message behind a failure to the log of the run file at `path`. A log that cannot be written is no fault
    of the run."""
    entry = f"\ntorchmark: {case} failed: {' '.join(detail.split())[:_LONGEST]}\n"
    with contextlib.suppress(OSError), open(open_log(log_path(path)), "wb") as log:  # noqa: PTH123 -- a descriptor
        log.write(entry.encode(errors="replace"))


def with_details(run: Run, path: Path) -> Run:
    """The run with the messages that are in its log: for the terminal of this user, never for what is shared."""
    found = _details(path) if any(result.status != "ok" or result.reason for result in run.results) else {}
    results = (replace(each, detail=found.get(each.case.text, each.detail)) for each in run.results)
    return replace(run, results=tuple(results)) if found else run


def _details(path: Path) -> dict[str, str]:
    """By case, the last message of each."""
    found = _ENTRY.finditer(read_tail(log_path(path), _TAIL_BYTES))
    return {each["case"].decode(errors="replace"): each["detail"].decode(errors="replace")[:_LONGEST] for each in found}
