"""Temporary folders that a kill does not leave behind."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Waits for the end of its parent, then removes a folder; again, because the parent's workers may end a moment later.
_REMOVE = """
import shutil, sys, time
sys.stdin.read()
for _ in range(3):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(1)
"""


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A new folder that is removed afterwards, by another process even if this one is killed."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    command = [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder)]
    null = subprocess.DEVNULL  # it must not keep a reader of our output waiting
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True) as remover:
        try:
            folder.mkdir(mode=0o700)
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            remover.kill()
