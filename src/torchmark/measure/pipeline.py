"""The one pipeline of every measurement: prepare a case, check its numbers, time it; alone, or in turns with others."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import math
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from msgspec import convert
from msgspec.structs import asdict, replace

from torchmark.analyze.jobs import sustained_of
from torchmark.analyze.verdict import combine, most_memory, was_paused
from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.errors import DoesNotFitError, TorchmarkError
from torchmark.measure import messages
from torchmark.measure.audit import check_device
from torchmark.measure.case_options import follow
from torchmark.measure.cases import full_params
from torchmark.measure.engine import FEWEST_SAMPLES, SLOW_STEP_S, Progress, Settings, choose_block_size
from torchmark.measure.machine import describe_machine
from torchmark.measure.messages import START, Channel, Measured, MeasureJob, Phase, Sampled, Say, Turned
from torchmark.measure.outcomes import failure_of, is_operator
from torchmark.measure.timing import PAUSED, Turns, complete_power, measure_job, quiet_interpreter, run_whole, time_on
from torchmark.meters.process import forget_peak, read_host_memory, read_moment
from torchmark.records import START_UP, Case, Estimate, JobEstimate, Memory, NumericCheck, Result, StageEstimate, Value
from torchmark.settings import PLUGIN, VARIABLES, key_of, redacted
from torchmark.workloads import brought_by, find_workload
from torchmark.workloads.contract import Setting, Step

ENDING_S = 2.0  # for a worker to sum up its result
# How torch reports that a device lacks an operator, which runs on the CPU instead.
_FALLBACK = re.compile(r"fall(s|ing)? ?back.*\bCPU\b", re.IGNORECASE | re.DOTALL)
_OPERATOR = re.compile(r"operator 'aten::(\w{1,80})")


def check_numbers(step: Step, device: Device, dtype: str) -> NumericCheck | None:
    """Compare the step's numbers with another computation."""
    from torchmark.measure.check import check_step

    outputs = step.outputs
    if outputs:
        step = replace(step, outputs=lambda: [device.observe(tensor) for tensor in outputs()])
    return check_step(step, dtype)


class PreparedCase:
    """One case in this process, from its device to the checked step, with the time of each phase. Ranks override what
    the whole team does together."""

    device: Device
    step: Step
    first_s: float
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
        now = {self.phase: self._seconds.get(self.phase, 0.0) + time.monotonic() - self._since} if self.phase else {}
        return self._seconds | now

    @property
    def spent_s(self) -> float:
        return sum(self.phases_s.values())

    def open_device(self, name: str) -> Device:
        return open_device(name)

    def take(self, step: Step) -> None:
        self.step = step

    def check_numbers(self, dtype: str) -> NumericCheck | None:
        return check_numbers(self.step, self.device, dtype)

    def memory(self) -> Memory:
        return read_memory(self.device)

    def team_metrics(self, estimate: Estimate) -> dict[str, float]:
        """What working together costs; asked for last, as it may leave the members with different weights."""
        del estimate
        return {}

    def run(self, drive: Callable[[], Result]) -> Result:
        """The driver's result; a failure that can be caught becomes a status."""
        try:
            job, case = self.job, self.job.case
            self.workload, self.params = find_workload(case.workload), full_params(case)  # its file may have changed
            self.common |= {"version": self.workload.version, "params": asdict(self.params), "seed": job.seed}
            if job.turns is None:
                self.common["budget_s"] = job.settings.budget_s
            return drive()
        except Exception as error:
            if not (self.job.turns and isinstance(error, TorchmarkError)):  # there the message is shown with the output
                log_traceback()
            failure = failure_of(error, self.phase)._asdict()
            self.enter("")
            return Result(**self.common, **failure, phases_s=self.phases_s)

    def open(self) -> None:
        job, case = self.job, self.job.case
        self.enter("import")
        self.device = self.open_device(case.device)
        self.uses_torch = self.device.needs_torch or self.workload.needs_torch
        self.settings = prepare_torch(case) if self.uses_torch else {}
        if package := brought_by(case.workload):
            self.settings[PLUGIN] = package
        if job.settings.steps is not None:  # few samples are no fault where so many were asked for
            self.settings["steps"] = job.settings.steps
        self.settings |= self.team_settings

    def build(self, sharers: int) -> None:
        """Build the model and run its first step; `sharers` processes on this machine divide the memory."""
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
        self.take(self.workload.prepare(self.params, setting_of(job, device.place, self.rank, self.world_size)))
        self.enter("first step" if job.case.compile == "off" else "compile")
        with watch_fallback(device.kind) as self.fallen_back:
            self.first_s = device.timer(self.step.run)(1).total_s

    def check(self) -> NumericCheck | None:
        """Raise where the numbers or the times are wrong; in the first process of a case only."""
        self.enter("check")
        if self.job.process > 0:
            return None
        dtype = self.job.case.dtype if self.uses_torch else None
        numeric = self.check_numbers(dtype) if dtype else None
        check_device(self.device, self.step.run, dtype)
        return numeric

    def result(self, estimate: Estimate, **found: Any) -> Result:
        found["settings"] = self.settings | dict(self.step.notes)
        if self.fallen_back:
            estimate = with_flag(estimate, "cpu-fallback")
            found["settings"]["ran_on_cpu"] = ", ".join(sorted({*self.fallen_back}))
        if self.job.settings.sustain:
            found["sustained"] = sustained_of(estimate)
        found |= {"work": self.step.work, "phases_s": self.phases_s}
        return Result(**self.common, status="ok", estimate=combine([estimate]), processes=(estimate,), **found)


def with_flag(estimate: Estimate, flag: str) -> Estimate:
    return replace(estimate, flags=tuple(dict.fromkeys((*estimate.flags, flag))))


def measure(job: MeasureJob, say: Say, case: PreparedCase | None = None) -> Result:
    """Measure a case in this process, alone or as the leader of others."""
    case = case or PreparedCase(job, say)
    return case.run(lambda: _measure_alone(case))


def measure_in_turns(job: MeasureJob, channel: Channel) -> None:
    """Take turns with another process on order, and report the result of all turns when asked."""
    case = PreparedCase(job, channel.say)
    channel.say(Measured(case.run(lambda: _take_part(case, channel))))


def _measure_alone(case: PreparedCase) -> Result:
    """Time the steps, then check: a check before the steps made those of resnet50 28% faster in some runs."""
    job, say = case.job, case.say
    case.open()
    case.build(case.local_size)
    device, step = case.device, case.step
    settings, step_s = _plan_steps(case)
    case.enter("steps")
    if job.watch:
        watch(device, step, say)
    # Whether the meters of this one device on this one machine see all that the team uses.
    all_seen = case.world_size == 1 or (case.local_size == case.world_size and device.kind == "cpu")
    estimate = time_on(device, step.run, settings, lambda progress: say(Sampled(progress)))
    estimate = replace(estimate, first_step_s=case.first_s)  # the engine's own first step came later
    estimate, provenance = complete_power(estimate, device, step.run, all_seen)
    memory = case.memory()
    case.enter("job")
    whole_job = _measure_job(case, estimate)
    limit_memory(device, case.local_size)  # what follows is not the case's own need
    numeric = case.check()
    metrics = {name: float(value) for name, value in (step.metrics() if step.metrics else {}).items()}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    # Without a queue, handing operators over is a part of a short step's time: their number shows how large a part. A
    # compiled step hides them, and ranks would have to run it together.
    countable = case.uses_torch and not device.queues and job.case.compile == "off" and job.case.workers == 1
    if countable and 0 < step_s <= 0.05:
        metrics["operators"] = float(count_operators(step.run))
    if was_paused(case.began, read_moment()):
        estimate = with_flag(estimate, PAUSED)
    metrics |= case.team_metrics(estimate)
    case.enter("")
    return case.result(estimate, memory=memory, job=whole_job, metrics=metrics, numeric=numeric, provenance=provenance)


def _take_part(case: PreparedCase, channel: Channel) -> NoReturn:
    """Check first, then sleep between turns, in another process's time. Ends with the pipe."""
    job, say = case.job, case.say
    assert job.turns is not None
    case.open()
    for name in case.workload.imports:
        importlib.import_module(name)
    device = case.device
    versions = {}
    modules = (name for name in case.workload.imports if not name.startswith("torch."))
    for name in dict.fromkeys(module.partition(".")[0] for module in modules):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    say(messages.Opened(describe_machine([device.info()]), versions))
    channel.receive()  # to prepare: until then another process prepares, or is not there yet
    if job.compile_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.compile_cache
    case.build(2)  # the two processes of a comparison that are alive share the memory
    step, items, since = case.step, case.step.work.items, device.clock()
    time_block = device.timer(step.run)
    steps_s = [time_block(1).total_s]  # the quickest of a few, where they are short enough to be disturbed as a whole
    while len(steps_s) < 5 and device.clock() - since < 0.2:
        steps_s.append(time_block(1).total_s)
    step_s = min(steps_s)
    say(messages.Stepped(case.first_s, step_s, items))
    before_check, numeric = case.memory(), case.check()
    device.reset_peak_memory()
    forget_peak()
    turns = Turns(device, step.run, step_s, job.settings, job.turns)
    case.enter("steps")
    with quiet_interpreter():
        say(messages.Prepared(step_s, turns.block_size, items))
        while True:
            order = channel.receive()
            if isinstance(order, messages.SumUp):
                estimate, provenance = complete_power(turns.estimate(case.first_s), device)
                memory = most_memory([before_check, case.memory()])
                say(Measured(case.result(estimate, memory=memory, numeric=numeric, provenance=provenance)))
                continue
            assert isinstance(order, messages.TakeTurn)
            if order.timed:
                say(Turned(turns.take(order.seconds, order.block_size)))
            else:
                turns.warm_up(order.seconds, order.block_size)
                say(Turned())


def _plan_steps(case: PreparedCase) -> tuple[Settings, float]:
    """How long to time the steps, and about how long one takes. Slow steps get enough time for a figure, and steps get
    30% of the time of preparing at least. A case that does not fit into its time reports how long it needs."""
    job, settings, step_s = case.job, case.job.settings, 0.0
    left_s = math.inf if job.time_left_s is None else job.time_left_s

    def enough_s(step_s: float) -> float:
        return step_s * (1.9 if step_s >= SLOW_STEP_S else FEWEST_SAMPLES)  # two steps of a slow case are enough

    if settings.steps is None:
        step_s, fits = case.first_s, case.spent_s + enough_s(case.first_s) < left_s
        # A second step is only worth its time where it can be much faster, or decides whether the case fits.
        if job.case.compile != "off" or step_s <= 2.0 or not fits:
            step_s = case.device.timer(case.step.run)(1).total_s
        needed_s = case.spent_s + enough_s(step_s)
        if needed_s > left_s:
            needs = f"a process needs about {needed_s:.3g} s (a step takes {step_s:.3g} s)"
            cause = f"{needs} where {max(left_s, 0.0):.3g} s are left"
            raise DoesNotFitError(cause, "Give it more time with --budget")
    if settings.sustain:
        return replace(settings, warm=True), step_s
    seconds = min(max(settings.budget_s, 0.3 * case.spent_s), left_s - case.spent_s)
    return replace(settings, warm=True, budget_s=max(seconds, enough_s(step_s))), step_s


def _measure_job(case: PreparedCase, estimate: Estimate) -> JobEstimate | None:
    """The time of the whole job, run whole where that was asked for and fits; in the first process only."""
    job, step, device, say = case.job, case.step, case.device, case.say
    expected = None if job.process > 0 else measure_job(step, estimate, device, job.settings)
    if expected and job.whole:
        left_s = math.inf if job.deadline_s is None else job.deadline_s - time.monotonic() - ENDING_S
        whole = run_whole(step, device, expected, left_s, lambda share: say(Phase(f"the whole job, {share:.0%}")))
        expected = whole or replace(expected, note="not run whole, for which --timeout left too little time")
    if not expected or not any(stage.steps for stage in expected.stages):
        return expected
    start_s = sum(case.phases_s.get(name, 0.0) for name in ("ranks", "build", "first step", "compile"))
    times_s = {name: getattr(expected, name) + start_s for name in ("seconds", "low_s", "high_s")}
    start = StageEstimate(START_UP, 1, start_s, start_s, start_s)
    return replace(expected, **times_s, stages=(*expected.stages, start))


def setting_of(job: MeasureJob, place: str, rank: int, world_size: int) -> Setting:
    setting = convert(job.case, Setting, from_attributes=True)
    return replace(setting, device=place, seed=job.seed, rank=rank, world_size=world_size, data=job.data)


def read_memory(device: Device) -> Memory:
    own = device.memory()
    return Memory(read_host_memory().peak_bytes, own.device_peak_bytes, own.device_reserved_bytes, own.provenance)


def watch(device: Device, step: Step, say: Say) -> None:
    """Report the step time of every second, until the session is stopped."""
    time_block, sync_s = device.timer(step.run), device.calibrate().sync_s
    size = choose_block_size(time_block, sync_s)
    with quiet_interpreter():
        began, total = device.clock(), 0
        while True:
            since, count = device.clock(), 0
            while device.clock() - since < 1.0:
                time_block(size)
                count += size
            total += count
            step_s = (device.clock() - since) / count
            say(Sampled(Progress(total, device.clock() - began, 0.0, step_s, step_s, step_s)))


def log_traceback() -> None:
    with contextlib.suppress(OSError):  # a log that cannot be written must not hide what went wrong
        traceback.print_exc()


def prepare_torch(case: Case) -> dict[str, Value | None]:
    """Set what the case asks of the process, and note every setting that changes the speed."""
    follow(case.options)
    import torch

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "onednn": bool(torch.backends.mkldnn.enabled),
        **{key_of(name): redacted(name, os.environ.get(name)) for name in VARIABLES},
    }


def limit_memory(device: Device, sharers: int, most_bytes: int | None = None) -> None:
    """On the CPU, limit this process to its share of the free memory and to `most_bytes`, so that a case that is too
    large ends as `oom`, and not the whole machine."""
    try:
        import resource

        import psutil
    except ImportError:  # Windows has no such limit
        return
    if device.kind != "cpu" or not hasattr(resource, "RLIMIT_DATA"):
        return
    own = psutil.Process().memory_info()
    held = getattr(own, "data", own.rss)
    free = psutil.virtual_memory().available // sharers + held
    if most_bytes is not None:  # of which this process has some already, and not all of that is counted as data
        free = min(free, held + max(most_bytes - own.rss, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (free if hard < 0 else min(free, hard), hard))


def count_operators(run: Callable[[], object]) -> int:
    """How many operators one step hands to torch; runs it once more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called = 0

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing is compiled here, and loading the compiler would take a second

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal called
            del types
            called += 1
            return func(*args, **(kwargs or {}))

    with Counter():  # type: ignore[no-untyped-call]  # as above
        run()
    return called


@contextmanager
def watch_fallback(kind: str = "") -> Iterator[list[str]]:
    """Collect the operators that torch reports to run on the CPU instead of a device of this kind.

    Torch reports each once per process, so watch the first step. The model can warn in the same words, so nothing is
    collected on the CPU, and only operators of torch are named.
    """
    found: list[str] = []
    if kind == "cpu":
        yield found
        return
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def listen(message: Warning | str, *others: Any, **more: Any) -> None:
            if _FALLBACK.search(str(message)):
                named = _OPERATOR.search(str(message))
                found.append(f"aten::{named[1]}" if named and is_operator(named[1]) else "an operator")
            show(message, *others, **more)

        warnings.showwarning = listen
        yield found
