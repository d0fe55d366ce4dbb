"""What a worker does: prepare a case, check its numbers, time it; alone, or in turns with others."""

import contextlib
import importlib
import importlib.metadata
import math
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

import psutil
from msgspec import Raw
from msgspec.json import decode
from msgspec.structs import asdict, replace

from torchmark.analyze.jobs import sustained_of
from torchmark.analyze.verdict import combine, most_memory, was_paused
from torchmark.devices import forbid_fallback, open_device
from torchmark.devices.contract import Device
from torchmark.errors import DoesNotFitError, TorchmarkError
from torchmark.measure import messages, timing
from torchmark.measure.cases import follow, full_params, setting_of
from torchmark.measure.check import check_device, check_step
from torchmark.measure.engine import FEWEST_SAMPLES, SLOW_STEP_S, Progress, Run, Settings, choose_block_size
from torchmark.measure.machine import describe_machine
from torchmark.measure.messages import START, Measured, MeasureJob, Message, Order, Phase, Say
from torchmark.measure.outcomes import failure_of, is_operator
from torchmark.measure.process import end_group, lead_own_group
from torchmark.meters.process import allowed_cores, count_stops, forget_peak, read_host_memory, read_moment
from torchmark.records import START_UP, Case, Estimate, JobEstimate, Memory, NumericCheck, Result, StageEstimate, Value
from torchmark.settings import PLUGIN, VARIABLES, key_of, redacted
from torchmark.workloads import brought_by, find_workload
from torchmark.workloads.contract import Step

ENDING_S = 2.0  # for a worker to sum up its result
# How torch reports an operator that runs on the CPU instead.
_FALLBACK = re.compile(r"fall(s|ing)? ?back.*\bCPU\b", re.IGNORECASE | re.DOTALL)
_OPERATOR = re.compile(r"operator 'aten::(\w{1,80})")


class PreparedCase:
    """One case in this process; ranks override what they do together."""

    device: Device
    step: Step
    rank, world_size, local_size = 0, 1, 1  # the local size is that on this machine

    def __init__(self, job: MeasureJob, say: Say) -> None:
        self.job, self.say, self.began = job, say, read_moment()
        self.team_settings: dict[str, Value | None] = {}  # what about the team changes the speed
        self.fallen_back: list[str] = []
        self.common: dict[str, Any] = {"case": job.case}
        self.phase, self._seconds, self._since = START, dict[str, float](), time.monotonic()

    def enter(self, phase: str) -> None:
        """Report that a phase begins; with no name, only end the last one."""
        self._seconds, self._since, self.phase = self.phases_s, time.monotonic(), phase
        if phase:
            self.say(Phase(phase))

    @property
    def phases_s(self) -> dict[str, float]:
        spent_s = self._seconds.get(self.phase, 0.0) + time.monotonic() - self._since
        return self._seconds | ({self.phase: spent_s} if self.phase else {})

    def open_device(self) -> Device:
        return open_device(self.job.case.device)

    def prepare(self) -> None:
        job, case = self.job, self.job.case
        own = {"rank": self.rank, "world_size": self.world_size, "device": self.device.place}
        setting = setting_of(case, seed=job.seed, data=job.data, **own)
        self.step = find_workload(case.workload).prepare(full_params(case), setting)

    def check_numbers(self, dtype: str) -> NumericCheck | None:
        step, device, outputs = self.step, self.device, self.step.outputs
        if outputs:
            step = replace(step, outputs=lambda: [device.observe(tensor) for tensor in outputs()])
        return check_step(step, dtype)

    def memory(self) -> Memory:
        return read_memory(self.device)

    def team_metrics(self, _: Estimate) -> dict[str, float]:
        return {}  # comes last, as it may leave the ranks with different weights

    def run(self, drive: "Callable[[PreparedCase], Result]") -> Result:
        """Open the device and call a driver; an exception becomes a status."""
        try:
            job, case = self.job, self.job.case
            self.workload, params = find_workload(case.workload), full_params(case)  # its file may have changed
            self.common |= {"version": self.workload.version, "params": asdict(params), "seed": job.seed}
            self.common["budget_s"] = job.settings.budget_s if job.turns is None else None
            self.enter("import")
            self.device = self.open_device()
            self.uses_torch = self.device.needs_torch or self.workload.needs_torch
            self.settings = prepare_torch(case) if self.uses_torch else {}
            # Few samples are no fault if so many steps were asked for.
            more = {PLUGIN: brought_by(case.workload) or None, "steps": job.settings.steps}
            self.settings |= {name: value for name, value in more.items() if value is not None} | self.team_settings
            return drive(self)
        except Exception as error:
            if not (self.job.turns and isinstance(error, TorchmarkError)):  # there the message is shown with the output
                log_traceback()
            failure = failure_of(error, self.phase)._asdict()
            self.enter("")
            return Result(**self.common, **failure, phases_s=self.phases_s)

    def build(self, sharers: int) -> None:
        """Build the model and run its first step; `sharers` processes divide the memory."""
        job, device = self.job, self.device
        limit_memory(device, sharers, job.memory_bytes)
        if job.preheat_s > 0 and device.needs_torch:  # clocks rise with time, not with counts
            import torch

            self.enter("preheat")
            matrix, end = torch.ones(512, 512, device=device.place), time.monotonic() + job.preheat_s
            while time.monotonic() < end:
                torch.mm(matrix, matrix)
                device.synchronize()
        self.enter("build")
        self.prepare()
        self.enter("first step" if job.case.compile == "off" else "compile")
        with watch_fallback(device.kind) as self.fallen_back:
            self.first_s = device.timer(self.step.run)(1).total_s

    def check(self) -> NumericCheck | None:
        """Raise where numbers or times are wrong; in the first process of a case only."""
        self.enter("check")
        if self.job.process > 0:
            return None
        numeric = self.check_numbers(self.job.case.dtype) if self.uses_torch else None
        check_device(self.device, self.step.run, self.job.case.dtype if self.uses_torch else None)
        return numeric

    def result(self, estimate: Estimate, **found: Any) -> Result:
        settings = self.settings | dict(self.step.notes)
        if self.fallen_back:
            estimate = timing.with_flag(estimate, "cpu-fallback")
            settings["ran_on_cpu"] = ", ".join(sorted({*self.fallen_back}))
        found["sustained"] = sustained_of(estimate) if self.job.settings.sustain else None
        found |= {"work": self.step.work, "phases_s": self.phases_s, "settings": settings}
        return Result(**self.common, status="ok", estimate=combine([estimate]), processes=(estimate,), **found)


def measure(job: MeasureJob, say: Say, case: PreparedCase | None = None) -> Result:
    return (case or PreparedCase(job, say)).run(_measure_alone)


def measure_in_turns(job: MeasureJob, receive: Callable[[], Order], say: Say) -> None:
    say(Measured(PreparedCase(job, say).run(partial(_take_part, receive=receive))))


def _measure_alone(case: PreparedCase) -> Result:
    """Time the steps, then check: a check before the steps made those of resnet50 28% faster in some runs."""
    job, say = case.job, case.say
    case.build(case.local_size)
    device, step, (settings, step_s) = case.device, case.step, _plan_steps(case)
    case.enter("steps")
    if job.watch:
        watch(device, step, say)
    estimate = timing.time_on(device, step.run, settings, say)
    estimate = replace(estimate, first_step_s=case.first_s)  # the engine's own first step came later
    # Whether this device's meters see all that the ranks use.
    all_seen = case.world_size == 1 or (case.local_size == case.world_size and device.kind == "cpu")
    estimate, provenance = timing.complete_power(estimate, device, step.run, all_seen)
    memory = case.memory()
    case.enter("job")
    whole_job = _measure_job(case, estimate)
    limit_memory(device, case.local_size)  # what follows is not the case's own need
    numeric = case.check()
    found = step.metrics() if step.metrics else {}
    metrics = {name: float(value) for name, value in found.items() if math.isfinite(value)}
    # Without a queue, launching operators takes part of a short step. A compiled one hides them; ranks would join in.
    countable = case.uses_torch and not device.queues and job.case.compile == "off" and job.case.workers == 1
    metrics |= {"operators": float(count_operators(step.run))} if countable and 0 < step_s <= 0.05 else {}
    if was_paused(case.began, read_moment()):
        estimate = timing.with_flag(estimate, timing.PAUSED)
    metrics |= case.team_metrics(estimate)
    case.enter("")
    return case.result(estimate, memory=memory, job=whole_job, metrics=metrics, numeric=numeric, provenance=provenance)


def _take_part(case: PreparedCase, receive: Callable[[], Order]) -> NoReturn:
    """Check first, then sleep while another process has its turn. Ends with the pipe."""
    job, say, device, versions = case.job, case.say, case.device, dict[str, str]()
    for module in case.workload.imports:
        importlib.import_module(module)
        name = module.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions |= {} if module.startswith("torch.") else {name: importlib.metadata.version(name)}
    say(messages.Opened(describe_machine([device.info()]), versions))
    receive()  # the order to prepare, as another process may prepare now
    if job.compile_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.compile_cache
    case.build(2)  # both sides of a comparison share the memory
    step, items, since = case.step, case.step.work.items, device.clock()
    time_block = device.timer(step.run)
    steps_s = [time_block(1).total_s]  # short ones may be disturbed as a whole
    while len(steps_s) < 5 and device.clock() - since < 0.2:
        steps_s.append(time_block(1).total_s)
    step_s = min(steps_s)
    say(messages.Stepped(case.first_s, step_s, items))
    before_check, numeric = case.memory(), case.check()
    device.reset_peak_memory()
    forget_peak()
    turns = timing.Turns(device, step.run, step_s, job.settings, job.turns or 0)
    case.enter("steps")
    with timing.quiet_interpreter():
        say(messages.Prepared(step_s, turns.block_size, items))
        while True:
            match receive():
                case messages.SumUp():
                    estimate, provenance = timing.complete_power(turns.estimate(case.first_s), device)
                    memory = most_memory([before_check, case.memory()])
                    say(Measured(case.result(estimate, memory=memory, numeric=numeric, provenance=provenance)))
                case messages.TakeTurn(seconds, block_size, timed=True):
                    say(messages.Turned(turns.take(seconds, block_size)))
                case messages.TakeTurn(seconds, block_size):
                    turns.warm_up(seconds, block_size)
                    say(messages.Turned())


def _plan_steps(case: PreparedCase) -> tuple[Settings, float]:
    """How long to time steps, at least 30% of preparing, and how long one takes. Raise where that does not fit."""
    job, settings, step_s = case.job, case.job.settings, 0.0
    left_s = math.inf if job.time_left_s is None else job.time_left_s

    def enough_s(step_s: float) -> float:
        return step_s * (1.9 if step_s >= SLOW_STEP_S else FEWEST_SAMPLES)  # two steps of a slow case are enough

    if settings.steps is None:
        step_s, fits = case.first_s, sum(case.phases_s.values()) + enough_s(case.first_s) < left_s
        # Take a second step only where it can be much faster, or decides whether the case fits.
        if job.case.compile != "off" or step_s <= 2.0 or not fits:
            step_s = case.device.timer(case.step.run)(1).total_s
        needed_s = sum(case.phases_s.values()) + enough_s(step_s)
        if needed_s > left_s:
            needs = f"a process needs about {needed_s:.3g} s (a step takes {step_s:.3g} s)"
            raise DoesNotFitError(f"{needs} where {max(left_s, 0.0):.3g} s are left", "Give it more time with --budget")
    if settings.sustain:
        return replace(settings, warm=True), step_s
    spent_s = sum(case.phases_s.values())
    seconds = min(max(settings.budget_s, 0.3 * spent_s), left_s - spent_s)
    return replace(settings, warm=True, budget_s=max(seconds, enough_s(step_s))), step_s


def _measure_job(case: PreparedCase, estimate: Estimate) -> JobEstimate | None:
    """The time of the job, run whole on request if it fits; in the first process only."""
    job, step, device, say = case.job, case.step, case.device, case.say
    expected = None if job.process > 0 else timing.measure_job(step, estimate, device, job.settings)
    if expected and job.whole:
        left_s = math.inf if job.deadline_s is None else job.deadline_s - time.monotonic() - ENDING_S
        whole = timing.run_whole(step, device, expected, left_s, lambda done: say(Phase(f"the whole job, {done:.0%}")))
        expected = whole or replace(expected, note="not run whole, for which --timeout left too little time")
    if not expected or not any(stage.steps for stage in expected.stages):
        return expected
    start_s = sum(case.phases_s.get(name, 0.0) for name in ("ranks", "build", "first step", "compile"))
    times_s = {name: getattr(expected, name) + start_s for name in ("seconds", "low_s", "high_s")}
    start = StageEstimate(START_UP, 1, start_s, start_s, start_s)
    return replace(expected, **times_s, stages=(*expected.stages, start))


def read_memory(device: Device) -> Memory:
    own = device.memory()
    return Memory(read_host_memory().peak_bytes, own.device_peak_bytes, own.device_reserved_bytes, own.provenance)


def watch(device: Device, step: Step, say: Say) -> None:
    time_block = device.timer(step.run)
    size = choose_block_size(time_block, device.calibrate().sync_s)
    with timing.quiet_interpreter():
        began, total = device.clock(), 0
        while True:
            since, before = device.clock(), total
            while device.clock() - since < 1.0:
                time_block(size)
                total += size
            step_s = (device.clock() - since) / (total - before)
            say(Progress(total, device.clock() - began, step_s, step_s, step_s))


def log_traceback() -> None:
    with contextlib.suppress(OSError):  # a broken log must not hide what went wrong
        traceback.print_exc()


def prepare_torch(case: Case) -> dict[str, Value | None]:
    """Apply the case's settings to the process; return every setting that changes the speed."""
    follow(case.options)
    import torch

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores_allowed": len(allowed_cores()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "onednn": bool(torch.backends.mkldnn.enabled),
        **{key_of(name): redacted(name, os.environ.get(name)) for name in VARIABLES},
    }


def limit_memory(device: Device, sharers: int, most_bytes: int | None = None) -> None:
    """On the CPU, limit memory to a share of what is free, and to `most_bytes`, so that a large case ends as `oom`."""
    if device.kind != "cpu" or sys.platform == "win32":  # which has no such limit
        return
    import resource

    own = psutil.Process().memory_info()
    held = getattr(own, "data", own.rss)
    free = psutil.virtual_memory().available // sharers + held
    if most_bytes is not None:  # the process has some already, not all of it counted as data
        free = min(free, held + max(most_bytes - own.rss, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (free if hard < 0 else min(free, hard), hard))


def count_operators(run: Run) -> int:
    """How many operators one step hands to torch; runs it once more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called = 0

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # loading the compiler would take a second

        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal called
            called += 1
            return func(*args, **(kwargs or {}))

    with Counter():  # type: ignore[no-untyped-call]  # as above
        run()
    return called


@contextmanager
def watch_fallback(kind: str = "") -> Iterator[list[str]]:
    """Collect operators that torch reports, once per process, to run on the CPU instead of this kind of device. A model
    can warn in the same words: only operators of torch are named."""
    found = list[str]()
    if kind == "cpu":
        yield found
        return
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def listen(message: Warning | str, *others: Any, **more: Any) -> None:
            if _FALLBACK.search(text := str(message)):
                named = _OPERATOR.search(text)
                found.append(f"aten::{named[1]}" if named and is_operator(named[1]) else "an operator")
            show(message, *others, **more)

        warnings.showwarning = listen
        yield found


def serve(orders_from: int, replies_to: int) -> None:
    """Obey an order from one pipe and answer over the other; end when the first closes."""
    lead_own_group()
    forbid_fallback()
    count_stops()
    orders, replies = SimpleQueue[Order](), os.fdopen(replies_to, "wb")

    def listen() -> None:  # until the parent closes its end or is gone
        with os.fdopen(orders_from, "rb") as stream:
            for line in stream:
                orders.put(messages.decode_order(line))
        end_group()

    def say(message: Message) -> None:
        replies.write(messages.encode(message) + b"\n")
        replies.flush()

    threading.Thread(target=listen, daemon=True).start()
    match order := orders.get():
        case messages.Call(name, arguments):
            module, _, function = name.partition(":")
            for record in getattr(importlib.import_module(module), function)(say, *decode(arguments)):
                say(messages.Found(Raw(messages.encode(record))))
        case MeasureJob() if order.turns is not None:
            measure_in_turns(order, orders.get, say)
            orders.get()  # only the end is still to come
        case MeasureJob() if order.case.workers > 1:
            from torchmark.measure.ranks import measure_ranks

            say(Measured(measure_ranks(order, say)))
        case MeasureJob():
            say(Measured(measure(order, say)))
