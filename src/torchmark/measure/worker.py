"""The worker: one fresh process that measures one case, says what it does, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from msgspec.structs import asdict, replace

from torchmark.analyze.pauses import was_paused
from torchmark.analyze.summary import combine
from torchmark.analyze.sustain import sustained_of
from torchmark.devices import diagnose, find_devices, open_device
from torchmark.devices.contract import Device
from torchmark.errors import DoesNotFitError, TorchmarkError
from torchmark.local_log import open_log, redirect_output
from torchmark.measure.cases import full_params
from torchmark.measure.jobs import measure_job, run_whole
from torchmark.measure.lifeline import end_with, lead_own_group
from torchmark.measure.machine import describe_machine
from torchmark.measure.messages import (
    START,
    Measured,
    MeasureJob,
    Message,
    Phase,
    Refused,
    Sampled,
    Surveyed,
    SurveyJob,
    decode_job,
    encode,
)
from torchmark.measure.operators import LONGEST_S, count_operators, watch_fallback
from torchmark.measure.outcomes import failure_of
from torchmark.measure.power import complete_power
from torchmark.measure.process import limit_memory, note_plugin, preheat, prepare_torch
from torchmark.measure.sampling import FEWEST_SAMPLES, Progress, Settings, choose_block_size
from torchmark.measure.team import ALONE, Team
from torchmark.measure.timing import PAUSED, quiet_interpreter, time_on
from torchmark.measure.trust import check_device
from torchmark.meters.memory import HostMemoryMeter
from torchmark.meters.pauses import count_stops, read_moment
from torchmark.records import (
    START_UP,
    Caution,
    Estimate,
    JobEstimate,
    Memory,
    NumericCheck,
    Result,
    StageEstimate,
    Value,
)
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Step, Workload

WATCH_WINDOW_S = 1.0
CPU_FALLBACK = "cpu-fallback"
PREPARED_SHARE = 0.3  # of the time that preparing took: steps get at least that, or preparing would not be worth it
SLOW_STEP_S, SLOW_SAMPLES = 1.0, 1.9  # two steps of a slow case are enough: what matters is the next process
DEAR_STEP_S = 2.0
ENDING_S = 2.0  # for a worker to sum up and say what it has found

Say = Callable[[Message], None]


def serve(pipe: Connection, lifeline: Connection, log: str | None) -> None:
    """Do the one job that comes over the pipe. Runs in a process of its own."""
    lead_own_group()
    count_stops()
    end_with(lifeline)
    if log:
        redirect_output(open_log(log))
    job = decode_job(pipe.recv_bytes())

    def say(message: Message) -> None:
        pipe.send_bytes(encode(message))

    if isinstance(job, SurveyJob):
        say(survey(job))
    elif job.case.workers > 1:
        from torchmark.measure.ranks import measure_ranks

        say(Measured(measure_ranks(job, say)))
    else:
        say(Measured(measure(job, say)))
    pipe.close()


def survey(job: SurveyJob) -> Message:
    """The machine with its devices. One that was named must work; one that was only found may fail, with a caution."""
    infos, cautions = [], list(diagnose() if job.devices is None else ())
    for name in find_devices() if job.devices is None else job.devices:
        try:
            infos.append(open_device(name).info())
        except TorchmarkError as error:
            if job.devices is not None:
                return Refused(error.cause, error.cure, error.detail)
            cautions.append(Caution("device-broken", ": ".join(filter(None, (error.cause, error.detail))), error.cure))
    return Surveyed(describe_machine(infos), tuple(cautions))


class Phases:
    """How long each phase took; says each one as it begins."""

    def __init__(self, say: Say) -> None:
        self.seconds: dict[str, float] = {}
        self.current = START
        self._say, self._since = say, time.monotonic()

    def enter(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self._since
        self.current, self._since = name, now
        if name:
            self._say(Phase(name))

    @property
    def spent_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def elapsed_s(self) -> float:
        """With the current phase, as far as it is."""
        return sum(self.so_far_s.values())

    @property
    def so_far_s(self) -> dict[str, float]:
        """Each phase, the current one as far as it is."""
        current_s = self.seconds.get(self.current, 0.0) + time.monotonic() - self._since
        return self.seconds | {self.current: current_s}


def measure(job: MeasureJob, say: Say, team: Team = ALONE) -> Result:
    """The result of a case in this process: every failure that can be caught becomes a status."""
    phases = Phases(say)
    try:
        workload, params = find_workload(job.case.workload), full_params(job.case)
    except TorchmarkError as error:  # a file of the user's may have changed or gone meanwhile
        return Result(case=job.case, **failure_of(error, phases.current)._asdict())
    common: dict[str, Any] = {
        "case": job.case,
        "version": workload.version,
        "params": asdict(params),
        "budget_s": job.settings.budget_s,
        "seed": job.seed,
    }
    try:
        found = _measure(job, workload, params, phases, say, team)
    except Exception as error:
        failure = failure_of(error, phases.current)
        log_traceback()
        phases.enter("")
        return Result(**common, **failure._asdict(), phases_s=phases.seconds)
    phases.enter("")
    return Result(**common, **found, status="ok", phases_s=phases.seconds)


def _measure(job: MeasureJob, workload: Workload, params: Any, phases: Phases, say: Say, team: Team) -> dict[str, Any]:
    case, began = job.case, read_moment()
    phases.enter("import")
    device = team.open(case.device)
    uses_torch = device.needs_torch or workload.needs_torch
    settings = (prepare_torch(case) if uses_torch else {}) | note_plugin(case) | team.settings() | _fixed_steps(job)
    _limit_memory(device, team, job.memory_bytes)
    if job.preheat_s > 0 and device.needs_torch:
        phases.enter("preheat")
        preheat(device, job.preheat_s)
    phases.enter("build")
    host = HostMemoryMeter()
    step = workload.prepare(params, setting_of(job, device.place, team.rank, team.world_size))
    team.take(step)
    phases.enter("first step" if case.compile == "off" else "compile")
    first_s, fallen_back = _first_step(device, step)
    step_s = _check_fits(job, device, step, first_s, phases)
    phases.enter("steps")
    estimate = _time(job, device, step, first_s, _steps_settings(job, phases.spent_s, step_s), say)
    estimate, provenance = complete_power(estimate, device, step.run, team.is_seen_by(device))
    memory = team.memory(read_memory(device, host))
    phases.enter("job")
    whole_job = _with_start_up(_measure_job(job, step, estimate, device, say), phases)
    _limit_memory(device, team, None)  # what follows is not the case's own need
    phases.enter("check")  # after the steps: before them, it made those of resnet50 28% faster in some runs
    dtype = case.dtype if uses_torch else None
    numeric = _check(team, step, device, dtype) if job.process == 0 else None  # the other processes compute the same
    operators = _operators(job, device, step, step_s) if uses_torch else {}
    estimate = _flagged(estimate, {PAUSED: was_paused(began, read_moment()), CPU_FALLBACK: bool(fallen_back)})
    return {
        "estimate": combine([estimate]),
        "processes": (estimate,),
        "work": step.work,
        "memory": memory,
        "job": whole_job,
        "metrics": _metrics(step) | operators | team.metrics(step, device, estimate),
        "numeric": numeric,
        "settings": settings | step.notes | ({"ran_on_cpu": ", ".join(sorted({*fallen_back}))} if fallen_back else {}),
        "sustained": sustained_of(estimate) if job.settings.sustain else None,
        "provenance": provenance,
    }


def _fixed_steps(job: MeasureJob) -> dict[str, Value | None]:
    """Few samples are no fault where so many were asked for."""
    return {} if job.settings.steps is None else {"steps": job.settings.steps}


def _limit_memory(device: Device, team: Team, most_bytes: int | None) -> None:
    if device.kind == "cpu":
        limit_memory(team.local_size, most_bytes)


def _check(team: Team, step: Step, device: Device, dtype: str | None) -> NumericCheck | None:
    """Whether the numbers and the times can be believed; raises where they cannot."""
    numeric = team.check(step, device, dtype) if dtype else None
    check_device(device, step.run, dtype)
    return numeric


def _time(job: MeasureJob, device: Device, step: Step, first_s: float, settings: Settings, say: Say) -> Estimate:
    if job.watch:
        watch(device, step, say)
    estimate = time_on(device, step.run, settings, lambda progress: say(Sampled(progress)))
    return replace(estimate, first_step_s=first_s)  # the engine's own first step came after the check


def _measure_job(job: MeasureJob, step: Step, estimate: Estimate, device: Device, say: Say) -> JobEstimate | None:
    """Run whole where that was asked for and fits; to be ended in the middle would cost the steps, too. Later processes
    time the main step only: the other stages are the same."""
    if job.process > 0:
        return None
    expected = measure_job(step, estimate, device, job.settings)
    if not expected or not job.whole:
        return expected
    left_s = math.inf if job.deadline_s is None else job.deadline_s - time.monotonic() - ENDING_S
    whole = run_whole(step, device, expected, left_s, lambda share: say(Phase(f"the whole job, {share:.0%}")))
    return whole or replace(expected, note="not run whole, for which --timeout left too little time")


def _with_start_up(job: JobEstimate | None, phases: Phases) -> JobEstimate | None:
    """A job begins with building its model and data, and with a first step."""
    if job is None or not any(stage.steps for stage in job.stages):
        return job
    seconds = sum(phases.seconds.get(name, 0.0) for name in ("ranks", "build", "first step", "compile"))
    start = StageEstimate(START_UP, 1, seconds, seconds, seconds)
    whole = replace(job, seconds=job.seconds + seconds, low_s=job.low_s + seconds, high_s=job.high_s + seconds)
    return replace(whole, stages=(*job.stages, start))


def setting_of(job: MeasureJob, place: str, rank: int, world_size: int) -> Setting:
    """What a rank of this case must follow."""
    case = job.case
    return Setting(
        mode=case.mode,
        device=place,
        dtype=case.dtype,
        compile=case.compile,
        transfer=case.transfer,
        seed=job.seed,
        rank=rank,
        world_size=world_size,
        data=job.data,
        ways=case.ways,
    )


def _metrics(step: Step) -> dict[str, float]:
    found = step.metrics() if step.metrics else {}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _flagged(estimate: Estimate, seen: dict[str, bool]) -> Estimate:
    flags = dict.fromkeys((*estimate.flags, *(flag for flag, is_seen in seen.items() if is_seen)))
    return replace(estimate, flags=tuple(flags))


def _operators(job: MeasureJob, device: Device, step: Step, step_s: float) -> dict[str, float]:
    """Where a step that returns is done, handing its operators over is a part of its time: how many there are says how
    large a part. A compiled one hides them, and ranks would have to run it together."""
    countable = not device.queues and job.case.compile == "off" and job.case.workers == 1
    if not countable or not 0 < step_s <= LONGEST_S:
        return {}
    return {"operators": float(count_operators(step.run))}


def _steps_settings(job: MeasureJob, spent_s: float, step_s: float) -> Settings:
    """The budget is for the steps; slow ones get enough for a figure, and an expensive start is made use of."""
    if job.settings.sustain:
        return replace(job.settings, warm=True)
    enough_s = _enough(step_s) * step_s
    left_s = math.inf if job.time_left_s is None else job.time_left_s - spent_s
    seconds = min(max(job.settings.budget_s, PREPARED_SHARE * spent_s), left_s)
    return replace(job.settings, warm=True, budget_s=max(seconds, enough_s))


def _first_step(device: Device, step: Step) -> tuple[float, list[str]]:
    """Its seconds, and the operators that torch said it ran on the CPU instead."""
    with watch_fallback(device.kind) as fallen_back:
        first_s = device.timer(step.run)(1).total_s
    return first_s, fallen_back


def _check_fits(job: MeasureJob, device: Device, step: Step, first_s: float, phases: Phases) -> float:
    """About how long a step takes. A case that cannot give a figure in its time says how long it would need."""
    left_s = job.time_left_s
    if job.settings.steps is not None:
        return 0.0
    if job.case.compile == "off" and first_s > DEAR_STEP_S and (left_s is None or _needed_s(first_s, phases) < left_s):
        return first_s  # a second one could only be faster, and would cost as much again
    step_s = device.timer(step.run)(1).total_s
    if left_s is not None and _needed_s(step_s, phases) > left_s:
        raise DoesNotFitError(
            f"a process needs about {_needed_s(step_s, phases):.3g} s (a step takes {step_s:.3g} s) "
            f"where {max(left_s, 0.0):.3g} s are left",
            "Give it more time with --budget",
        )
    return step_s


def _needed_s(step_s: float, phases: Phases) -> float:
    """Seconds for a whole process with steps of this length, from its beginning."""
    return phases.elapsed_s + _enough(step_s) * step_s


def _enough(step_s: float) -> float:
    """Steps that give a figure."""
    return SLOW_SAMPLES if step_s >= SLOW_STEP_S else FEWEST_SAMPLES


def read_memory(device: Device, host: HostMemoryMeter) -> Memory:
    own = device.memory()
    return Memory(host.read().peak_bytes, own.device_peak_bytes, own.device_reserved_bytes, own.provenance)


def watch(device: Device, step: Step, say: Say) -> None:
    """Keep going and tell the step time of every second, until the session is stopped."""
    time_block, sync_s = device.timer(step.run), device.calibrate().sync_s
    size = choose_block_size(time_block, sync_s)
    with quiet_interpreter():
        began, total = device.clock(), 0
        while True:
            since, count = device.clock(), 0
            while device.clock() - since < WATCH_WINDOW_S:
                time_block(size)
                count += size
            total += count
            step_s = (device.clock() - since) / count
            say(Sampled(Progress(total, device.clock() - began, 0.0, step_s, step_s, step_s)))


def log_traceback() -> None:
    """For the local log."""
    import traceback

    with contextlib.suppress(OSError):  # a log that cannot be written must not hide what went wrong
        traceback.print_exc()
