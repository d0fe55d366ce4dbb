"""Runs `torchmark run` on a node as its order says, and records the exit code."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from torchmark.errors import FleetError, StoreError, TorchmarkError
from torchmark.fleet.folder import Order, read, read_record, write
from torchmark.store import load
from torchmark.store.files import CHECK, distrust, os_errors, set_aside
from torchmark.store.lines import NewerFileError

MEETING_PATIENCE_S = 300.0
LOOK_S = 0.2


def main() -> int:
    """Started by a job's script, once on each of its nodes."""
    path = Path(sys.argv[1])
    index = int(os.environ.get("SLURM_NODEID") or os.environ.get("TORCHMARK_NODE") or 0)
    try:
        code = _execute(path, index)
    except TorchmarkError as error:
        _note(f"error: {error}")
        code = error.exit_code
    if index == 0:
        with suppress(StoreError):  # only needed if the scheduler forgets the job
            write(path.with_suffix(".end"), str(code).encode())
    return 128 - code if code < 0 else code


def _execute(path: Path, index: int) -> int:
    again = "Submit the job again with `torchmark fleet run --resume`"
    if why := distrust(path):
        raise FleetError(f"{why}, and jobs do what it says", again)
    if (order := read_record(path, Order)) is None:
        raise StoreError(f"{path} is missing", again)
    command = [sys.executable, "-P", "-m", "torchmark", "run", *arguments(order, path, index)]
    # Schedulers signal every process of a job; this one has to outlive the run.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    code = subprocess.Popen(command).wait()
    printed = Path(order.run_file + ".log")
    if index == 0 and printed.is_file():  # it may hold paths and names, and run files are shared
        with suppress(StoreError):
            _note(f"what the workers printed is in {set_aside(printed, path.with_suffix('.workers.log'))}")
    return code


def arguments(order: Order, path: Path, index: int) -> list[str]:
    """The arguments of `torchmark run`. Nodes of a team write a file each, with equal results."""
    run_file = Path(order.run_file)
    if order.nodes == 1:
        if _can_resume(run_file):
            return ["--resume", str(run_file), *order.resuming]
        return [*order.arguments, "--out", str(run_file)]
    own = run_file if index == 0 else path.with_suffix(f".node{index}.jsonl")
    if _has_content(own):
        _note(f"nodes that work together start from the beginning: the earlier run is kept as {set_aside(own)}")
    meeting = meet(path.with_suffix(".meeting"), index)
    return [*order.arguments, "--nodes", str(order.nodes), "--rendezvous", meeting, "--out", str(own)]


def meet(path: Path, index: int) -> str:
    """The rendezvous: a free port of the first node, which the others read in the folder."""
    if index == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            place = f"{socket.gethostname()}:{free.getsockname()[1]}"
        write(path, place.encode())
        return place
    end = time.monotonic() + MEETING_PATIENCE_S
    while time.monotonic() < end:
        with suppress(StoreError):
            place = (read(path) or b"").decode(errors="replace")
            if re.fullmatch(r"[\w.-]+:[0-9]{1,5}", place):
                return place
        time.sleep(LOOK_S)
    raise FleetError("the first node never wrote the address of the rendezvous", "See its log")


def _can_resume(run_file: Path) -> bool:
    """Whether an earlier job began to measure. A damaged file is renamed; an unreadable one is an error."""
    if not _has_content(run_file):
        return False
    if why := distrust(run_file):
        raise FleetError(f"{why}, and a resumed run does what it says", "Move it away")
    try:
        load(run_file)
    except StoreError as error:
        if isinstance(error, NewerFileError) or isinstance(error.__cause__, OSError):
            raise
        _note(f"{error.cause}. It is kept as {set_aside(run_file)}, and the run starts from the beginning")
        return False
    return True


def _has_content(run_file: Path) -> bool:
    """An empty file is removed: it would be in the way."""
    with os_errors("use", run_file, CHECK), suppress(FileNotFoundError):
        found = run_file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"cannot use {run_file}: it is not a file", "Move it away")
        if not found.st_size:
            run_file.unlink()
        return bool(found.st_size)
    return False


def _note(text: str) -> None:
    sys.stderr.write(f"torchmark: {text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
