"""Looks after one job on this machine as a scheduler would: waits for its turn, ends it in time, tells how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from torchmark.errors import TorchmarkError
from torchmark.fleet.contract import Fate, fate_of
from torchmark.fleet.files import write
from torchmark.store import machine_lock

GRACE_S = 10.0  # for a job that was asked to end
LEAVING_S = 2.0  # for what it started, such as the server that forks workers, to clean up after it


class _Cancelled(BaseException):
    """Somebody wants the job to end."""


def attend(script: Path, nodes: int, limit_s: float) -> Fate:
    """Run the script once for each node, all at the same time, when no other job of this folder runs."""
    try:
        with machine_lock(wait=True, path=script.parent / "queue.lock"):
            script.with_suffix(".begun").touch()
            return _run(script, nodes, limit_s)
    except _Cancelled:
        return Fate("cancelled")
    except TorchmarkError as error:
        return Fate("failed", f"it could not be started: {error.cause}")


def _run(script: Path, nodes: int, limit_s: float) -> Fate:
    processes = [
        subprocess.Popen(
            ["bash", str(script)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"TORCHMARK_NODE": str(number)},
        )
        for number in range(nodes)
    ]
    deadline = time.monotonic() + limit_s if limit_s else None
    try:
        for process in processes:
            process.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        _end(processes)
        return Fate("time-limit", f"after {limit_s:g} s")
    except _Cancelled:
        _end(processes)
        raise
    return fate_of(processes[0].returncode)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """As schedulers do: everything is asked to end, and killed if it does not."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(end - time.monotonic(), 0.0))
    end = time.monotonic() + LEAVING_S
    for process in processes:
        while _signal(process, 0) and time.monotonic() < end:
            time.sleep(0.01)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal its whole group; 0 only asks whether any process of it is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _cancel(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Cancelled


def main() -> None:
    """Started by the local engine, for one job."""
    signal.signal(signal.SIGTERM, _cancel)
    script, nodes, limit_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    fate = attend(script, nodes, limit_s)
    write(script.with_suffix(".fate"), msgspec.json.encode(fate))


if __name__ == "__main__":
    main()
