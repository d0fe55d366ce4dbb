"""Jobs in processes of this machine, one after the other: to try a fleet where there is no cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchmark.errors import FleetError, UsageError
from torchmark.fleet.contract import Engine, Fate, Job, Node, Request


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
        begun = job.log.with_suffix(".begun")
        limit = str(job.time_s or 0)
        command = [sys.executable, "-m", "torchmark.fleet.attendant", str(job.script), str(len(job.nodes)), limit]
        try:
            with job.log.open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise FleetError(f"no job could be started: {error.strerror}", "Free some memory or disk") from error
        return f"{process.pid} {begun}"

    def fates(self, jobs: Mapping[str, str]) -> dict[str, Fate]:
        """Attendants write the end down themselves; one that is gone without doing so was killed."""
        found = {}
        for task, job in jobs.items():
            number, _, begun = job.partition(" ")
            if _lives(int(number)):
                found[task] = Fate("running" if Path(begun).exists() else "waiting", "")
            else:
                found[task] = Fate("killed", "the process that looked after it is gone")
        return found

    def cancel(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            number = int(job.partition(" ")[0])
            if _lives(number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGTERM)

    def try_out(self, script: str, node: str, options: tuple[str, ...]) -> str:
        del options, node
        process = subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._tried[str(process.pid)] = process
        return str(process.pid)

    def exit_code(self, job: str) -> int | None:
        return self._tried[job].poll()


def _lives(number: int) -> bool:
    """Whether this is an attendant that still works: numbers of processes are used again."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(number)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        command = process.cmdline()  # empty for the moment in which a process becomes another program, or ends
        return not command or "torchmark.fleet.attendant" in command
    return False
