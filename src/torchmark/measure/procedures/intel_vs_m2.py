"""intel-vs-m2: whole training programs, from starting the interpreter to its end, timed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from torchmark.analyze.extrapolation import later_step
from torchmark.analyze.laps import Laps
from torchmark.devices.contract import Device
from torchmark.errors import CaseError, DoesNotFitError
from torchmark.measure.procedures.contract import Played, Procedure, Task
from torchmark.measure.ranks import threads_per_rank
from torchmark.measure.stopwatch import Stopwatch
from torchmark.measure.training_script import STEP, Job, Report
from torchmark.records import Case

SCRIPT = "torchmark.measure.training_script"
MOST_SHARE = 3.0  # the script is run again only where there is time to run it this many times
START = "process start, imports and data"


class _Run(NamedTuple):
    seconds: float
    report: Report


class IntelVsM2(Procedure):
    """The scripts use no GPU. Those with several workers leave each of them as many threads as there are cores."""

    whole_process = True

    def runs_on(self, case: Case, kind: str) -> bool:
        del case
        return kind == "cpu"

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        del place
        run = _run_script(task, watch.time_left_s, os.environ)
        inside_s = sum(sum(laps.seconds) for laps in run.report.stages)
        watch.stages = {laps.stage: laps for laps in (Laps(START, [run.seconds - inside_s]), *run.report.stages)}
        return Played(settings={"data": run.report.data, "script_threads": run.report.threads})

    def faults(self, task: Task, played: Played, device: Device, watch: Stopwatch) -> dict[str, float]:
        """What more threads than cores cost: the same script once more, with the cores shared out among its workers."""
        del played, device
        if task.case.workers == 1 or watch.time_left_s < MOST_SHARE * watch.seconds:
            return {}
        fair = {**os.environ, "OMP_NUM_THREADS": str(threads_per_rank(None, task.case.workers))}
        mended = _run_script(task, watch.time_left_s, fair)
        steps = next(laps for laps in mended.report.stages if laps.stage == STEP)
        return {"too many threads": later_step(watch.stages[STEP]).center_s / later_step(steps).center_s - 1}


def _run_script(task: Task, time_left_s: float, environment: os._Environ[str] | dict[str, str]) -> _Run:
    """The script in an interpreter of its own; what it prints at its end is what it timed inside."""
    job = Job(task.case.workload, asdict(task.params), task.case.workers, task.scale, time_left_s, task.seed, task.data)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", SCRIPT],
        input=msgspec.json.encode(job),
        stdout=subprocess.PIPE,
        env=dict(environment),
        check=False,
    )
    seconds = time.perf_counter() - started
    lines = done.stdout.splitlines()
    if not lines:
        raise CaseError(f"the script ended with code {done.returncode} and said nothing", "See the log of the run")
    report = msgspec.json.decode(lines[-1], type=Report)
    if report.trouble:
        raise DoesNotFitError(report.trouble)
    if done.returncode:
        raise CaseError(f"the script ended with code {done.returncode}", "See the log of the run")
    return _Run(seconds, report)


PROCEDURE = IntelVsM2
