"""Whole jobs: how long all epochs, loops and stages take, run whole or extrapolated from their steps."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from torchmark.devices.contract import Device
from torchmark.measure.sampling import Settings
from torchmark.measure.timing import time_on
from torchmark.records import STEP, Estimate, JobEstimate, StageEstimate
from torchmark.workloads.contract import Stage, Step

STAGE_SHARE = 0.15  # of the case's budget, for each stage beside the main one
LEAST_STAGE_S = 0.3
STAGE_SAMPLES = 8
OFTEN = 50


def measure_job(step: Step, main: Estimate, device: Device, settings: Settings) -> JobEstimate | None:
    """The job's wall time from the main step's estimate and a short look at each other stage; None: there is no job."""
    if not step.job_steps and not step.stages:
        return None
    stages = [_stage_of(main, step.job_steps)] if step.job_steps else []
    stages += [_time_stage(stage, device, settings) for stage in step.stages]
    return JobEstimate(
        seconds=sum(stage.steps * stage.center_s for stage in stages),
        low_s=sum(stage.steps * stage.low_s for stage in stages),
        high_s=sum(stage.steps * stage.high_s for stage in stages),
        whole=False,
        stages=tuple(stages),
        epochs=step.epochs,
    )


def run_whole(
    step: Step, device: Device, expected: JobEstimate, time_left_s: float, listen: Callable[[float], None]
) -> JobEstimate | None:
    """Every step of the job, one after another; `listen` hears the share that is done. None where it is not done in
    the time that is left: it is not even begun if that is known before."""
    started = device.clock()
    total = max(expected.seconds, 1e-9)
    if total > time_left_s:
        return None
    last_s = 0.0
    for run, estimate in zip((step.run, *(stage.run for stage in step.stages)), expected.stages, strict=True):
        time_block, left = device.timer(run), estimate.steps  # a timer, because with several ranks all must run it
        most = max(1, int(total / 20 / max(estimate.center_s, 1e-9)))
        while left:
            count = min(most, left)
            if device.clock() - started + max(count * estimate.center_s, last_s) > time_left_s:
                return None
            last_s = time_block(count).total_s
            left -= count
            listen((device.clock() - started) / total)
    seconds = device.clock() - started
    return replace(expected, seconds=seconds, low_s=seconds, high_s=seconds, whole=True)


def _stage_of(main: Estimate, steps: int) -> StageEstimate:
    """A sum of many steps follows their mean, not their median."""
    return StageEstimate(STEP, steps, main.mean_s, max(main.mean_low_s, 0.0), main.mean_high_s)


def _time_stage(stage: Stage, device: Device, settings: Settings) -> StageEstimate:
    budget_s = max(STAGE_SHARE * settings.budget_s, LEAST_STAGE_S)
    time_block = device.timer(stage.run)
    once_s = time_block(1).total_s
    if once_s > budget_s and stage.steps >= OFTEN:  # the first time may have started what all the others use
        once_s = time_block(1).total_s
    if once_s > budget_s:  # once is all there is time for: right within a factor of two, and said so
        return StageEstimate(stage.name, stage.steps, once_s, once_s / 2, once_s * 2)
    brief = replace(
        settings,
        budget_s=budget_s,
        steps=None,
        min_samples=STAGE_SAMPLES,
        min_time_s=min(settings.min_time_s, LEAST_STAGE_S),
    )
    found = time_on(device, stage.run, brief)
    return StageEstimate(stage.name, stage.steps, found.mean_s, max(found.mean_low_s, 0.0), found.mean_high_s)
