"""Jobs in processes of this machine, one after the other: to try a fleet where there is no cluster."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from torchmark.errors import FleetError, UsageError
from torchmark.fleet.contract import Engine, Fate, Job, Node, Request, Submitted

if TYPE_CHECKING:
    import psutil

_ATTENDANT = "torchmark.fleet.attendant"
_START_S = 10.0


class Local(Engine):
    """This machine, playing as many nodes as are asked for. Every job is a process that outlives this one."""

    name = "local"
    team_options = ("--share",)  # such nodes are one machine here

    def __init__(self) -> None:
        self._tried: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self, request: Request) -> tuple[Node, ...]:
        for name in ("partition", "constraint", "nodelist"):
            if getattr(request, name) is not None:
                raise UsageError(f"--{name} is for a cluster", "Leave it out with --engine local")
        cores = os.cpu_count() or 1
        return tuple(Node(f"local{number}", "this machine", cores) for number in range(request.count or 1))

    def submit(self, job: Job) -> str:
        if job.options:
            raise UsageError("--sbatch is for a cluster", "Leave it out with --engine local")
        limit = str(job.time_s or 0)
        command = [sys.executable, "-P", "-m", _ATTENDANT, str(job.script), str(len(job.nodes)), limit]
        with _explained(), job.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        submitted = Submitted(job.name, str(process.pid), job.script)
        end = time.monotonic() + _START_S
        # For a moment the kernel reports no command line of a new process, and it could not be recognised.
        while not _attendant(submitted) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        return submitted.number

    def fates(self, jobs: Sequence[Submitted]) -> dict[str, Fate]:
        """Attendants write the end down themselves; one that is gone without doing so was killed."""
        found = {}
        for job in jobs:
            if _attendant(job):
                found[job.task] = Fate("running" if job.script.with_suffix(".begun").exists() else "waiting")
            else:
                found[job.task] = Fate("killed", "the process that looked after it is gone")
        return found

    def cancel(self, jobs: Sequence[Submitted]) -> None:
        for job in jobs:
            if trial := self._tried.get(job.number):
                trial.terminate()
            elif attendant := _attendant(job):
                _terminate(attendant)

    def try_out(self, script: str, node: str, options: tuple[str, ...]) -> str:
        del options, node
        null = subprocess.DEVNULL
        with _explained():
            process = subprocess.Popen(["bash", "-c", script], stdin=null, stdout=null, stderr=null)
        self._tried[str(process.pid)] = process
        return str(process.pid)

    def exit_code(self, job: str) -> int | None:
        return self._tried[job].poll()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FleetError(f"no job could be started: {error.strerror}", "Check its plan, memory and disk") from error


def _attendant(job: Submitted) -> psutil.Process | None:
    """The process that looks after a job. Any number may be in the job's file, and numbers of processes are used again:
    it is the one whose command line names the attendant and the script of this very task."""
    import psutil

    number = re.match(r"[0-9]{1,9}(?![0-9])", job.number)
    if not number or int(number[0]) <= 1:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int(number[0]))
        script = next((argument for name, argument in pairwise(process.cmdline()) if name == _ATTENDANT), None)
        if script and _place(Path(script)) == _place(job.script):
            return process
    return None


def _place(script: Path) -> Path:
    """Folders may be links; a script that is a link may lead to the job of another fleet."""
    return script.parent.resolve() / script.name


def _terminate(process: psutil.Process) -> None:
    """End a process of this user, unless its number belongs to another process by now."""
    import psutil

    with contextlib.suppress(psutil.Error):
        if os.name == "nt" or process.uids().real == os.getuid():
            process.terminate()
