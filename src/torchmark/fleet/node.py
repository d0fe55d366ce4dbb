"""The program of a job on its node: runs `torchmark run` as ordered, and writes down how that ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from torchmark.errors import StoreError
from torchmark.fleet.plan import Order, write
from torchmark.store import read_header

MEETING_PATIENCE_S = 300.0
LOOK_S = 0.2


def main() -> int:
    """Started by the script of a job, once on each of its nodes."""
    path = Path(sys.argv[1])
    order = msgspec.json.decode(path.read_bytes(), type=Order)
    index = int(os.environ.get("SLURM_NODEID") or os.environ.get("TORCHMARK_NODE") or 0)
    command = [sys.executable, "-P", "-m", "torchmark", "run", *arguments(order, path, index)]
    # Schedulers signal every process of a job. The run ends in order by itself; this one only has to outlive it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    code = subprocess.Popen(command).wait()
    if index == 0:
        with contextlib.suppress(StoreError):  # it is a help for when the scheduler has forgotten the job
            write(path.with_suffix(".end"), str(code).encode())
    return 128 - code if code < 0 else code


def arguments(order: Order, path: Path, index: int) -> list[str]:
    """What `torchmark run` is told on this node. Together, nodes keep a file each: all have the same results."""
    run_file = Path(order.run_file)
    if order.nodes == 1:
        if _can_go_on(run_file):
            return ["--resume", str(run_file), *order.resuming]
        return [*order.arguments, "--out", str(run_file)]
    own = run_file if index == 0 else path.with_suffix(f".node{index}.jsonl")
    own.unlink(missing_ok=True)  # nodes that had got to different points would wait for each other in vain
    meeting = meet(path.with_suffix(".meeting"), index)
    return [*order.arguments, "--nodes", str(order.nodes), "--rendezvous", meeting, "--out", str(own)]


def meet(path: Path, index: int) -> str:
    """Where the nodes meet: on the first of them, at a port that is free there. The others read it in the folder."""
    if index == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            place = f"{socket.gethostname()}:{free.getsockname()[1]}"
        write(path, place.encode())
        return place
    end = time.monotonic() + MEETING_PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            return path.read_text()
        time.sleep(LOOK_S)
    raise SystemExit("torchmark: error: the first node never said where to meet")


def _can_go_on(run_file: Path) -> bool:
    """Whether an earlier job of this task has begun to measure; a file without a whole header tells nothing."""
    try:
        read_header(run_file)
    except StoreError:
        run_file.unlink(missing_ok=True)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
