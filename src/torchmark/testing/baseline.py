"""Which stored run a pytest session is compared with."""

from __future__ import annotations

from pathlib import Path

from torchmark.errors import UnknownName, UsageError
from torchmark.records import Run
from torchmark.store import find_run, load, scan_runs


def load_baseline(against: str | None, label: str) -> Run | None:
    """The run that was asked for; None where none was, or where it does not exist yet."""
    path = find_baseline(against, label) if against is not None else None
    return load(path) if path else None


def find_baseline(against: str, label: str) -> Path | None:
    """The file of a run; None where `last` or the session's own label is meant and there is no such run yet."""
    try:
        return find_run(against)
    except UnknownName:
        if against != label:
            raise
    except UsageError:
        if against != "last" or any(scan_runs()):
            raise
    return None
