"""The process that replays cases of one publication: times them as they were timed there, and leaves nothing behind."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from torchmark.analyze.jobs import COST, MADE, OVERHEAD, UNDONE, UNTRIED, extrapolate, later_step, overheads
from torchmark.analyze.verdict import contended, contention_of, taken_by_others, was_paused
from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.measure.messages import Phase, Say
from torchmark.measure.outcomes import failure_of
from torchmark.measure.pipeline import limit_memory, prepare_torch, read_memory
from torchmark.measure.procedures import PROCEDURES, Played, Procedure, Task
from torchmark.measure.stopwatch import Stopwatch
from torchmark.measure.timing import PAUSED
from torchmark.meters import open_conditions
from torchmark.meters.process import read_moment
from torchmark.records import Estimate, JobEstimate, Laps, Remark, Result, Trend

_PAUSE = Remark(
    "paused", "the machine slept, its clock was set, or the process was stopped in the middle", "Replay it once more"
)


class ReplayJob(Struct, frozen=True):
    """Cases that a publication timed in one process, in their order."""

    tasks: tuple[Task, ...]
    time_left_s: float
    take_apart: bool = False  # also find out what each fault of the procedure costs


def replay_all(say: Say, described: object) -> Iterator[Result]:
    """The results of a ReplayJob, in this process, which was started for it."""
    job = msgspec.convert(described, ReplayJob)
    procedure, deadline = PROCEDURES[job.tasks[0].publication](), time.monotonic() + job.time_left_s
    for task in job.tasks:
        yield replay(procedure, task, deadline - time.monotonic(), job.take_apart, say)


def replay(procedure: Procedure, task: Task, time_left_s: float, take_apart: bool, say: Say) -> Result:
    """The result of a case in this process: every failure that can be caught becomes a status."""
    common: dict[str, Any] = {
        "case": task.case,
        "version": task.workload.version,
        "params": asdict(task.params),
        "seed": task.seed,
    }
    try:
        return Result(**common, **_replay(procedure, task, time_left_s, take_apart, say), status="ok")
    except Exception as error:
        traceback.print_exc()
        return Result(**common, **failure_of(error, "replay")._asdict())


def _replay(procedure: Procedure, task: Task, time_left_s: float, take_apart: bool, say: Say) -> dict[str, Any]:
    started = time.perf_counter()
    say(Phase("build"))
    device = open_device(task.case.device)
    settings = {} if procedure.whole_process else prepare_torch(task.case)
    limit_memory(device, task.case.workers)
    device.reset_peak_memory()
    watch = Stopwatch(time_left_s - (time.perf_counter() - started), lambda text: say(Phase(text)))
    read = open_conditions()
    before, began = read(), read_moment()
    played = procedure.play(task, device.place, watch)
    watch.finish(device.synchronize)
    paused = was_paused(began, read_moment())
    contention = contention_of((before, read()), None, None)
    disturbed = "; ".join(taken_by_others(contention))
    played_s = time.perf_counter() - started
    memory = read_memory(device)
    faults = _faults(procedure, task, played, device, watch, say) if take_apart else {}
    untried = [fault for fault in played.corrected if COST + fault not in faults]
    stages = tuple(watch.stages.values())
    part = not all(laps.whole for laps in stages)
    if part and device.queues:
        stages = paced(stages, watch.unfinished_s)
    job = extrapolate(stages)
    flags = (PAUSED,) if paused else ()
    return {
        "estimate": replace(estimate_of(procedure, task, stages, job), contention=contention, flags=flags),
        "cautions": (*[contended(disturbed)] * bool(disturbed), *[_PAUSE] * paused),
        "job": None if procedure.endless else job,
        "memory": memory,
        "work": task.workload.work(task.params, task.setting(device.place)),
        "metrics": played.metrics
        | faults
        | _beside(procedure, task, stages)
        | (_undone(watch) if device.queues and not part else {}),
        "settings": settings | played.settings | ({UNTRIED: ", ".join(untried)} if take_apart and untried else {}),
        "phases_s": {"replay": watch.seconds, "around it": max(played_s - watch.seconds, 0.0)},
    }


def _faults(
    procedure: Procedure, task: Task, played: Played, device: Device, watch: Stopwatch, say: Say
) -> dict[str, float]:
    say(Phase("taking the procedure apart"))
    found = procedure.faults(task, played, device, watch)
    return {COST + fault: share for fault, share in found.items()}


def _beside(procedure: Procedure, task: Task, stages: Sequence[Laps]) -> dict[str, float]:
    """What the published figure includes in addition to the work."""
    if procedure.endless:
        return {}
    found = {OVERHEAD + name: seconds for name, seconds in overheads(stages).items()}
    made = procedure.made(task)
    return found | ({MADE: float(made)} if made != task.steps else {})


def _undone(watch: Stopwatch) -> dict[str, float]:
    """Only of a whole loop, whose clock the device has outrun by no more than its queue holds."""
    return {UNDONE: watch.unfinished_s / watch.seconds}


def paced(stages: Sequence[Laps], unfinished_s: float) -> tuple[Laps, ...]:
    """A short loop hands its steps over before the device's queue is full; a long one goes at the device's own pace.

    So where steps stand for many more, they are given what the device still had to do for them.
    """
    count = sum(len(laps.seconds) for laps in stages if laps.is_work)
    return tuple(
        replace(laps, seconds=[each + unfinished_s / count for each in laps.seconds]) if laps.is_work else laps
        for laps in stages
    )


def estimate_of(procedure: Procedure, task: Task, stages: Sequence[Laps], job: JobEstimate) -> Estimate:
    """The figure that the publication would have printed, for one step; such a procedure knows no interval."""
    work = next(laps for laps in stages if laps.is_work)
    center_s = later_step(work).center_s if procedure.endless else job.seconds / task.steps
    steps = work.seconds
    ordered = sorted(steps)
    return Estimate(
        center_s=center_s,
        low_s=center_s,
        high_s=center_s,
        estimand="mean",
        verdict="as-published",
        first_step_s=steps[0],
        effective_samples=float(len(steps)),
        warmup_cut=0,
        trend=Trend(0.0, 0.0),
        samples_s=tuple(steps),
        sample_count=len(steps),
        median_s=ordered[len(ordered) // 2],
        mean_s=center_s,
        mean_low_s=center_s,
        mean_high_s=center_s,
        min_s=ordered[0],
        duration_s=sum(sum(laps.seconds) for laps in stages),
    )
