"""Jobs in processes of this machine, one after the other: to try a fleet without a cluster.

A supervisor outlives the command that submitted its job: `python -m torchmark.fleet.local` waits for the job's turn,
ends it in time, and records how it ended.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil

from torchmark.errors import FleetError, TorchmarkError, UsageError
from torchmark.fleet.folder import JobOutcome, Node, Submitted, Task, Terms, write
from torchmark.store import machine_lock

_SUPERVISOR = "torchmark.fleet.local"
_START_S = 10.0
GRACE_S = 10.0  # for a job that was asked to end
LEAVING_S = 2.0  # for its own processes to clean up


class Local:
    """This machine as any number of nodes, with the methods of `Slurm`."""

    team_options = ("--share",)  # such nodes are one machine here

    def __init__(self) -> None:
        self._tried: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self, count: int | None, **filters: str | None) -> tuple[Node, ...]:
        for name in (name for name, value in filters.items() if value is not None):
            raise UsageError(f"--{name} is for a cluster", "Leave it out with --engine local")
        return tuple(Node(f"local{number}", "this machine", os.cpu_count() or 1) for number in range(count or 1))

    def submit(self, task: Task, terms: Terms, script: Path) -> str:
        if terms.scheduling:
            raise UsageError("--sbatch is for a cluster", "Leave it out with --engine local")
        command = [sys.executable, "-P", "-m", _SUPERVISOR, str(script), str(len(task.nodes)), str(terms.time_s or 0)]
        process = _start(command, script.with_suffix(".log"))
        submitted = Submitted(task.name, str(process.pid), script)
        end = time.monotonic() + _START_S
        # For a moment the kernel reports no command line of a new process.
        while not _supervisor(submitted) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        return submitted.number

    def outcomes(self, jobs: Sequence[Submitted]) -> dict[str, JobOutcome]:
        """Supervisors record the end; one that is gone without doing so was killed."""
        found = dict.fromkeys((job.task for job in jobs), JobOutcome("killed", "its supervisor is gone"))
        for job in filter(_supervisor, jobs):
            found[job.task] = JobOutcome("running" if job.script.with_suffix(".begun").exists() else "waiting")
        return found

    def cancel(self, jobs: Sequence[Submitted]) -> None:
        for job in jobs:
            if trial := self._tried.get(job.number):
                trial.terminate()
            elif supervisor := _supervisor(job):
                with suppress(psutil.Error):  # it may be another user's by now
                    if os.name == "nt" or supervisor.uids().real == os.getuid():
                        supervisor.terminate()

    def try_out(self, script: str, *_: object) -> str:
        process = _start(["bash", "-c", script], Path(os.devnull))
        self._tried[str(process.pid)] = process
        return str(process.pid)

    def exit_code(self, job: str) -> int | None:
        return self._tried[job].poll()


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with log.open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    except OSError as error:
        raise FleetError(f"no job could be started: {error.strerror}", "Check its plan, memory and disk") from error


def _supervisor(job: Submitted) -> psutil.Process | None:
    """The process of the job's number, which may be anything, if its command line names this script."""

    def place(script: Path) -> Path:
        """Folders may be links; a script that is one may lead to another fleet."""
        return script.parent.resolve() / script.name

    number = re.match(r"[0-9]{1,9}(?![0-9])", job.number)
    if number and int(number[0]) > 1:
        with suppress(psutil.Error):
            process = psutil.Process(int(number[0]))
            scripts = (Path(argument) for name, argument in pairwise(process.cmdline()) if name == _SUPERVISOR)
            return process if place(job.script) in map(place, scripts) else None
    return None


def supervise(script: Path, nodes: int, limit_s: float) -> JobOutcome:
    """Run the script for each node at once, when no other job of this folder runs."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with machine_lock(wait=True, path=script.parent / "queue.lock"):
            script.with_suffix(".begun").touch()
            try:
                with _deferred_cancel():
                    for number in range(nodes):
                        environment, null = os.environ | {"TORCHMARK_NODE": str(number)}, subprocess.DEVNULL
                        command = ["bash", str(script)]
                        processes.append(subprocess.Popen(command, stdin=null, start_new_session=True, env=environment))
                deadline = time.monotonic() + limit_s if limit_s else None
                for process in processes:
                    process.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            except (subprocess.TimeoutExpired, SystemExit):
                _end(processes)
                raise
            return JobOutcome.of_exit(processes[0].returncode)
    except subprocess.TimeoutExpired:
        return JobOutcome("time-limit", f"after {limit_s:g} s")
    except SystemExit:
        return JobOutcome("cancelled")
    except TorchmarkError as error:
        return JobOutcome("failed", "it could not be started", error.cause)


@contextmanager
def _deferred_cancel() -> Iterator[None]:
    """Cancel after the block: an exception while a process is being started would leave it running."""
    asked = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    yield
    signal.signal(signal.SIGTERM, before)
    if asked:
        signal.raise_signal(signal.SIGTERM)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """As schedulers do: ask all to end, then kill."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(end - time.monotonic(), 0.0))
    end = time.monotonic() + LEAVING_S
    for process in processes:
        while _signal(process, 0) and time.monotonic() < end:
            time.sleep(0.01)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal its group; 0 asks whether any process is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False


def _cancel(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _cancel)
    _script = Path(sys.argv[1])
    write(_script.with_suffix(".fate"), msgspec.json.encode(supervise(_script, int(sys.argv[2]), float(sys.argv[3]))))
