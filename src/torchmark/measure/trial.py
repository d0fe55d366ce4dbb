"""Tries something in one number format after another in a process of its own, where a crash is an answer too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

Task = Callable[[str, Sequence[str]], Iterator[Struct]]
_TIMEOUT_S = 30.0


class Death(Struct, frozen=True):
    """The process that tried this number format did not live to tell."""

    dtype: str
    cause: str


def try_each(task: str, device: str, dtypes: Sequence[str], kind: type[Any]) -> Iterator[Any]:
    """What the task gave for each number format, in order; a `Death` where it killed its process.

    A task is written `module:function`; the function yields one record for each number format that it is given.
    """
    remaining = list(dtypes)
    while remaining:
        lines, cause = _run_child(task, device, remaining)
        for line in lines[: len(remaining)]:
            yield msgspec.json.decode(line, type=kind)
        remaining = remaining[len(lines) :]
        if remaining:
            yield Death(remaining.pop(0), cause)


def _run_child(task: str, device: str, dtypes: Sequence[str]) -> tuple[list[bytes], str]:
    command = [sys.executable, "-P", "-m", "torchmark.measure.trial", task, device, *dtypes]
    # The child must find the same torchmark, however this process came by it.
    path = os.pathsep.join(filter(None, sys.path))
    try:
        child = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").splitlines(), f"it took more than {_TIMEOUT_S:.0f} s"
    return child.stdout.splitlines(), f"the process died of {_death(child.returncode)}"


def _death(code: int) -> str:
    if code >= 0:
        return f"an error (exit code {code})"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _serve(task: str, device: str, dtypes: Sequence[str]) -> None:
    module, _, function = task.partition(":")
    import importlib

    chosen: Task = getattr(importlib.import_module(f"torchmark.measure.{module}"), function)
    for record in chosen(device, dtypes):
        sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
