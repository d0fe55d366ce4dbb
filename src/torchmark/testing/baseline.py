"""Which stored run a pytest session is compared with."""

from __future__ import annotations

from pathlib import Path

from torchmark.errors import UnknownName, UsageError
from torchmark.store import find_run, scan_runs


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
