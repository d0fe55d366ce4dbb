"""One side of a live comparison: a fresh process that prepares a case and times it whenever its turn comes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

from msgspec.structs import asdict

from torchmark.analyze.summary import combine, most_memory
from torchmark.devices import forbid_fallback, open_device
from torchmark.devices.contract import Device
from torchmark.errors import TorchmarkError
from torchmark.measure.cases import full_params
from torchmark.measure.lifeline import end_group, lead_own_group
from torchmark.measure.machine import describe_machine
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Opened,
    Order,
    Prepared,
    Reply,
    Stepped,
    SumUp,
    SurveyJob,
    TakeTurn,
    Turned,
    decode_order,
    encode,
)
from torchmark.measure.outcomes import failure_of
from torchmark.measure.power import complete_power
from torchmark.measure.process import limit_memory, note_plugin, prepare_torch
from torchmark.measure.team import ALONE
from torchmark.measure.timing import quiet_interpreter
from torchmark.measure.trust import check_device
from torchmark.measure.turns import Turns
from torchmark.measure.worker import Phases, read_memory, setting_of, survey
from torchmark.meters.memory import HostMemoryMeter
from torchmark.meters.pauses import count_stops
from torchmark.records import NumericCheck, Result
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Step

WARM_STEPS, WARM_STEPS_S = 5, 0.2
SIDES = 2  # that are alive at the same time and share the memory

Say = Callable[[Reply], None]
Orders = SimpleQueue[Order]


def serve(orders_from: int, replies_to: int) -> None:
    """Do what comes over one pipe and answer over the other, until the first of them closes."""
    lead_own_group()
    count_stops()
    forbid_fallback()
    orders, stream = _listen(orders_from), os.fdopen(replies_to, "wb")

    def say(message: Reply) -> None:
        stream.write(encode(message) + b"\n")
        stream.flush()

    job = orders.get()
    if isinstance(job, SurveyJob):
        say(survey(job))
    elif isinstance(job, MeasureJob):
        _measure(job, orders, say)
    orders.get()  # nothing more will come but the end


def _listen(orders_from: int) -> Orders:
    """A thread that sleeps on the pipe hands the orders over; when the pipe closes, everything here ends at once."""
    orders: Orders = SimpleQueue()

    def hand_over() -> None:
        with os.fdopen(orders_from, "rb") as stream:
            for line in stream:
                orders.put(decode_order(line))
        end_group()

    threading.Thread(target=hand_over, daemon=True).start()
    return orders


def _measure(job: MeasureJob, orders: Orders, say: Say) -> None:
    """Report the result of all turns so far whenever asked; every failure that can be caught becomes a status."""
    phases = Phases(say)
    common: dict[str, Any] = {
        "case": job.case,
        "version": find_workload(job.case.workload).version,
        "params": asdict(full_params(job.case)),
        "seed": job.seed,
    }
    try:
        for found in _take_part(job, orders, say, phases):
            say(Measured(Result(**common, **found, status="ok", phases_s=phases.so_far_s)))
    except Exception as error:
        if not isinstance(error, TorchmarkError):  # ours say all there is to say
            traceback.print_exc()
        say(Measured(Result(**common, **failure_of(error, phases.current)._asdict())))


def _take_part(job: MeasureJob, orders: Orders, say: Say, phases: Phases) -> Iterator[dict[str, Any]]:
    case, workload = job.case, find_workload(job.case.workload)
    phases.enter("import")
    device = open_device(case.device)
    uses_torch = device.needs_torch or workload.needs_torch
    settings = (prepare_torch(case) if uses_torch else {}) | note_plugin(case)
    for name in workload.imports:
        importlib.import_module(name)
    say(Opened(describe_machine([device.info()]), _versions(workload.imports)))
    orders.get()  # to prepare: until then the other side prepares, or is not there yet
    if device.kind == "cpu":
        limit_memory(SIDES)
    if job.compile_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.compile_cache
    phases.enter("build")
    host = HostMemoryMeter()
    step = workload.prepare(full_params(case), setting_of(job, device.place, 0, 1))
    phases.enter("first step" if case.compile == "off" else "compile")
    first_s = device.timer(step.run)(1).total_s
    step_s = _warm_step(device, step)
    say(Stepped(first_s, step_s, step.work.items))
    before_check = read_memory(device, host)
    phases.enter("check")
    numeric = _check(device, step, case.dtype if uses_torch else None) if job.process == 0 else None
    device.reset_peak_memory()
    host.reset()
    turns = Turns(device, step.run, step_s, job.settings, job.turns)
    phases.enter("steps")
    for _ in _take_turns(turns, Prepared(step_s, turns.block_size, step.work.items), orders, say):
        estimate, provenance = complete_power(turns.estimate(first_s), device)
        yield {
            "estimate": combine([estimate]),
            "processes": (estimate,),
            "work": step.work,
            "memory": most_memory([before_check, read_memory(device, host)]),
            "numeric": numeric,
            "settings": settings | step.notes,
            "provenance": provenance,
        }


def _warm_step(device: Device, step: Step) -> float:
    """About how long a step takes: the quickest of a few, where they are short enough to be disturbed as a whole."""
    time_block, since = device.timer(step.run), device.clock()
    steps_s = [time_block(1).total_s]
    while len(steps_s) < WARM_STEPS and device.clock() - since < WARM_STEPS_S:
        steps_s.append(time_block(1).total_s)
    return min(steps_s)


def _check(device: Device, step: Step, dtype: str | None) -> NumericCheck | None:
    numeric = ALONE.check(step, device, dtype) if dtype else None
    check_device(device, step.run, dtype)
    return numeric


def _take_turns(turns: Turns, prepared: Prepared, orders: Orders, say: Say) -> Iterator[SumUp]:
    """Sleep between two turns: that is the other side's time. Yields whenever the turns so far are to be summed up."""
    with quiet_interpreter():
        say(prepared)
        while True:  # until the pipe closes
            order = orders.get()
            if isinstance(order, SumUp):
                yield order
                continue
            assert isinstance(order, TakeTurn)
            if order.timed:
                say(Turned(turns.take(order.seconds, order.block_size)))
            else:
                turns.warm_up(order.seconds, order.block_size)
                say(Turned())


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """Of the libraries beside torch that the workload is made of."""
    found = {}
    for name in dict.fromkeys(module.partition(".")[0] for module in modules if not module.startswith("torch.")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
