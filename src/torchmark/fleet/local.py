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

SAME_START_S = 2.0  # what a system's idea of when it was started may be off from look to look


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
        return f"{process.pid}@{_started(process.pid):.2f} {begun}"

    def fates(self, jobs: Mapping[str, str]) -> dict[str, Fate]:
        """Attendants write the end down themselves; one that is gone without doing so was killed."""
        found = {}
        for task, job in jobs.items():
            attendant, _, begun = job.partition(" ")
            if _living(attendant):
                found[task] = Fate("running" if Path(begun).exists() else "waiting", "")
            else:
                found[task] = Fate("killed", "the process that looked after it is gone")
        return found

    def cancel(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            if number := _living(job.partition(" ")[0]):
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


def _living(attendant: str) -> int | None:
    """The number of an attendant that still works. Numbers of processes are used again: it is the one that began when
    it was started, or says what it is. In the moment in which it becomes that program, it says nothing."""
    import psutil

    number, _, start = attendant.partition("@")
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int(number))
        if process.status() != psutil.STATUS_ZOMBIE and (
            abs(process.create_time() - float(start or 0)) < SAME_START_S
            or "torchmark.fleet.attendant" in process.cmdline()
        ):
            return int(number)
    return None


def _started(number: int) -> float:
    import psutil

    with contextlib.suppress(psutil.Error):
        return float(psutil.Process(number).create_time())
    return 0.0
