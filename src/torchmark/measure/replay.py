"""Replays published benchmarks as each publication timed its work, faults included, in a process."""

import os
import subprocess
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from torchmark.analyze.grades import VERDICT_FIXES
from torchmark.analyze.jobs import COST, MADE, OVERHEAD, UNDONE, UNTRIED, extrapolate, later_step, overheads
from torchmark.analyze.verdict import contention_of, taken_by_others, was_paused
from torchmark.devices import open_device
from torchmark.devices.contract import Device, do_nothing
from torchmark.errors import CaseError, DoesNotFitError
from torchmark.measure.engine import DEFAULTS, Run, measure_pair
from torchmark.measure.messages import Phase, Say
from torchmark.measure.outcomes import failure_of
from torchmark.measure.pipeline import limit_memory, prepare_torch, read_memory
from torchmark.measure.ranks import threads_per_rank
from torchmark.measure.session import FLOPS_PER_S, cost_s
from torchmark.measure.timing import PAUSED
from torchmark.measure.training_script import STEP, Report, Stopwatch, Task, due
from torchmark.meters import open_conditions
from torchmark.meters.process import read_moment
from torchmark.records import Case, Estimate, JobEstimate, Laps, Remark, Result, Trend, Value
from torchmark.workloads.bert_encode import ID
from torchmark.workloads.model import leaves_of

FAULT_SHARE, PAIR_S = 0.25, 2.0  # at most for each fault: of the time left, and in seconds
SLOW_STEP_S = 0.2  # from here on two of each must do
UNET_FLOPS = 1.6e12  # of one iteration at 512 × 512, roughly
ITERATIONS, FEWEST = 200, 20  # for a loop that its user stopped; a bar's pace comes from many
# The published listing of simple-add; without a GPU its copies to one were left out.
LISTING = """
def foo():
    x = torch.ones(({size}, {size}), dtype=torch.float32)
    y = torch.ones(({size}, {size}), dtype=torch.float32)
    x = x{move}
    y = y{move}
    z = x + y
    return z
"""


class Played(Struct, frozen=True):
    step: Run = do_nothing
    corrected: dict[str, Run] = {}  # by fault: the step without it
    metrics: dict[str, float] = {}
    settings: dict[str, Value | None] = {}


class Procedure(ABC):
    """How one publication timed its work; one object for each process."""

    endless: ClassVar[bool] = False  # the loop was stopped by hand, so that only its later steps count
    whole_process: ClassVar[bool] = False  # timed with the start of the interpreter; without a GPU
    shared: ClassVar[str] = ""  # the workload whose cases were timed in one process
    variants: ClassVar[tuple[str, ...]] = ()  # readings of the listing, where text and effect differ

    def readings(self, case: Case) -> dict[str, Case]:
        return {name: replace(case, params={**case.params, "variant": name}) for name in self.variants}

    def explain(self, _: Mapping[str, Result]) -> tuple[str, ...]:
        return ()

    def runs_on(self, case: Case, kind: str) -> bool:
        # The CPU has nowhere to copy to.
        return case.transfer == "resident" if kind == "cpu" else not self.whole_process

    def made(self, task: Task) -> int:  # steps by the published loop
        return task.steps

    def steps(self, task: Task) -> int:
        return due(self.made(task), task.scale)

    def step_cost_s(self, task: Task) -> float:
        return cost_s(task.workload.work(task.params, task.setting(task.case.device)))

    def faults(self, _: Task, played: Played, device: Device, watch: Stopwatch) -> dict[str, float]:
        """By what share each fault lengthens a step, unless it is too slow to try."""
        found = {}
        for fault, corrected in played.corrected.items():
            most_s = watch.time_left_s * FAULT_SHARE
            timers = device.timer(played.step), device.timer(corrected)
            once_s = timers[1](1).total_s  # it may have something to start, such as another kernel
            if once_s > most_s / 4:
                continue
            if once_s > SLOW_STEP_S:
                a_s, b_s = np.sum([[timer(1).total_s for timer in timers] for _ in range(2)], axis=0)
                found[fault] = float(a_s / b_s) - 1
            else:
                settings = replace(DEFAULTS, budget_s=min(PAIR_S, most_s), min_time_s=min(PAIR_S, most_s) / 2)
                sync_s = device.calibrate().sync_s
                pair = measure_pair(*timers, clock=device.clock, sync_cost_s=sync_s, settings=settings)
                found[fault] = 1 / pair.ratio - 1
        return found

    @abstractmethod
    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """Do what the publication did, timed by the stopwatch."""


def _run_loop(watch: Stopwatch, step: Run, published: int, count: int, stage: str = "step") -> Played:
    for _ in watch.loop(stage, published, count):
        step()
    return Played(step)


def _run_keeping(watch: Stopwatch, step: Run, published: int, count: int) -> Played:
    """A loop in which each output, and its graph, lives until the next one takes its place."""
    import torch

    output: object = None
    for _ in watch.loop("step", published, count):
        output = step()
    del output
    return Played(step, {"autograd graph": torch.no_grad()(step)})


class M1Chips(Procedure):
    """Inference in a loop whose clock starts before the model moves, with gradients on and nothing waited for."""

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        watch.start()
        if task.case.workload == "venv-ppo":  # the whole job, building included
            job = task.workload.prepare(task.params, task.setting(place))
            watch.lap("building")
            played = _run_loop(watch, job.run, job.job_steps, due(job.job_steps, task.scale), "venv epoch")
            for stage in job.stages:
                _run_loop(watch, stage.run, stage.steps, due(stage.steps, task.scale), stage.name)
            return played
        made, is_resident = task.model(place), task.case.transfer == "resident"
        model, rows = made.module.eval(), next(leaves_of(made.inputs))
        inputs = rows.to(place) if is_resident else rows

        def switch() -> Any:  # copies input and output in every step
            output = model(inputs.to(place))
            return getattr(output, "logits", output).to("cpu")  # with or without the library's wrapping

        watch.start()
        model.to(place)
        watch.lap("model to the device")
        return _run_keeping(watch, (lambda: model(inputs)) if is_resident else switch, task.steps, self.steps(task))


class AppleSiliconBert(Procedure):
    """100 steps with inputs copied in each, no warm-up and nothing waited for; training, too, in evaluation mode."""

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        settings = {"attention": "eager"}  # what the library did at that time
        made = task.model(place, options=settings)
        model: Any = made.module.to(place).eval()
        optimizer = made.optimizer.make(model.parameters())

        def forward() -> Any:
            return model(**{name: host.to(place) for name, host in made.inputs.items()})

        def train() -> None:
            optimizer.zero_grad()
            forward().loss.backward()
            optimizer.step()

        step = train if task.case.mode == "train" else torch.no_grad()(forward)
        watch.start()
        played = _run_loop(watch, step, task.steps, self.steps(task))
        corrected: dict[str, Run] = {}
        if hasattr(model, "set_attn_implementation"):  # the attention that the library picks by itself today
            use = model.set_attn_implementation
            corrected["eager attention"] = lambda: (use("sdpa"), step(), use("eager"))
        if step is train:
            corrected["evaluation mode"] = lambda: (model.train(), step(), model.eval())
        return replace(played, corrected=corrected, settings=settings)


class M1GpuForMl(Procedure):
    """50 forward passes with gradients on, all sizes by one model in one process, and the pace of a progress bar."""

    shared = "bert-encode"
    _model: Any = None

    def made(self, task: Task) -> int:
        """The scheduler takes one more than it is asked for; the bar does not count it."""
        return task.steps + 1 if task.case.workload == "stable-diffusion" else task.steps

    def step_cost_s(self, task: Task) -> float:
        if task.case.workload == "stable-diffusion":
            return float(UNET_FLOPS * (task.params.size / 512) ** 2 / FLOPS_PER_S)
        return super().step_cost_s(task)

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        if task.case.workload == "stable-diffusion":  # a pass of one step to warm up, then the loop
            # Decoding comes after the bar has ended.
            painting = task.workload.prepare(replace(task.params, decode=False), task.setting(place))
            painting.run()
            watch.start()
            played = _run_loop(watch, painting.run, self.made(task), self.steps(task))
            return replace(played, settings=dict(painting.notes))
        self._model = model = self._model or task.model(place).module.to(place).eval()
        ids = torch.full((task.params.batch, task.params.sequence), ID).to(place)
        watch.start()
        played = _run_keeping(watch, lambda: model(input_ids=ids), task.steps, self.steps(task))
        return replace(played, settings={"attention": model.config._attn_implementation})


class SimpleAdd(Procedure):
    """A compiled function without input in an endless loop, and two readings of what the compiler made of it."""

    endless = True
    variants = ("as-run", "as-written", "resident")

    def explain(self, results: Mapping[str, Result]) -> tuple[str, ...]:
        as_run, as_written = (results.get(name) for name in self.variants[:2])
        if as_run is None or as_run.estimate is None:
            return ()
        found = "this torch's compiler does not fold the function; each call made its tensors anew."
        if as_run.metrics["folded"]:
            found = "two calls gave the very same memory. The result was computed once; an iteration only doubled it."
        if as_written is None or as_written.estimate is None:
            return (f"as-run: {found}",)
        ratio = as_written.estimate.center_s / as_run.estimate.center_s
        longer = "an iteration that does what the listing says takes so much longer."
        return f"as-run: {found}", f"as-written / as-run = {ratio:.1f}: {longer}"

    def steps(self, task: Task) -> int:
        return max(FEWEST, due(ITERATIONS, task.scale))

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        if task.params.variant != "as-run":
            step = task.workload.prepare(task.params, task.setting(place)).run
            watch.start()
            return _run_loop(watch, step, ITERATIONS, self.steps(task), "iteration")
        move = "" if place == "cpu" else f'.to(torch.device("{place}"))'
        with warnings.catch_warnings():  # that this compiler is an old one is known
            warnings.simplefilter("ignore")
            foo: Any = torch.jit.CompilationUnit(LISTING.format(size=task.params.size, move=move)).foo
        z0, addresses = None, set()
        watch.start()
        for number in watch.loop("iteration", ITERATIONS, self.steps(task)):
            zz = foo()
            if z0 is None:
                z0 = zz
            else:
                z0 += zz
            if number < 2:
                addresses.add(zz.data_ptr())
        return Played(metrics={"folded": float(len(addresses) == 1)})


class IntelVsM2(Procedure):
    """Whole training programs without a GPU, timed from outside; each worker has as many threads as there are cores."""

    whole_process = True

    def play(self, task: Task, _: str, watch: Stopwatch) -> Played:
        seconds, report = _run_script(task, watch.time_left_s)
        start = Laps("process start, imports and data", [seconds - sum(sum(laps.seconds) for laps in report.stages)])
        watch.stages = {laps.stage: laps for laps in (start, *report.stages)}
        return Played(settings={"data": report.data, "script_threads": report.threads})

    def faults(self, task: Task, _played: Played, _device: Device, watch: Stopwatch) -> dict[str, float]:
        """What more threads than cores cost: the script once more, with the cores shared out among its workers."""
        if task.case.workers == 1 or watch.time_left_s < 3.0 * watch.seconds:
            return {}
        threads = str(threads_per_rank(None, task.case.workers))
        _, corrected = _run_script(task, watch.time_left_s, OMP_NUM_THREADS=threads)
        steps = next(laps for laps in corrected.stages if laps.stage == STEP)
        return {"too many threads": later_step(watch.stages[STEP]).center_s / later_step(steps).center_s - 1}


def _run_script(task: Task, time_left_s: float, **variables: str) -> tuple[float, Report]:
    """The script's seconds in its own interpreter, and the report that it prints."""
    order, started = msgspec.json.encode((task, time_left_s)), time.perf_counter()
    command = [sys.executable, "-P", "-m", "torchmark.measure.training_script"]
    done = subprocess.run(command, input=order, stdout=subprocess.PIPE, env=os.environ | variables, check=False)
    seconds = time.perf_counter() - started
    lines = done.stdout.splitlines()
    report = msgspec.json.decode(lines[-1], type=Report) if lines else Report()
    if report.trouble:
        raise DoesNotFitError(report.trouble)
    if done.returncode or not lines:
        ended = f"the script ended with code {done.returncode}"
        raise CaseError(ended if lines else f"{ended} and said nothing", "See the log of the run")
    return seconds, report


PROCEDURES: dict[str, type[Procedure]] = {
    "apple-silicon-bert": AppleSiliconBert,
    "intel-vs-m2": IntelVsM2,
    "m1-chips": M1Chips,
    "m1-gpu-for-ml": M1GpuForMl,
    "simple-add": SimpleAdd,
}
_SLEPT = "the machine slept, its clock was set, or the process was stopped in the middle"
_PAUSE = Remark("paused", _SLEPT, "Replay it once more")


def replay_all(say: Say, described: object, time_left_s: float, take_apart: bool = False) -> Iterator[Result]:
    """The results of tasks of one publication; `take_apart` adds what each fault of its procedure costs."""
    tasks = convert(described, tuple[Task, ...])
    procedure, deadline = PROCEDURES[tasks[0].publication](), time.monotonic() + time_left_s
    for task in tasks:
        try:
            found = _replay(procedure, task, deadline - time.monotonic(), take_apart, say) | {"status": "ok"}
        except Exception as error:
            traceback.print_exc()
            found = failure_of(error, "replay")._asdict()
        yield Result(task.case, version=task.workload.version, params=asdict(task.params), seed=task.seed, **found)


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
    paused, contention = was_paused(began, read_moment()), contention_of((before, read()), None, None)
    taken = "; ".join(taken_by_others(contention))
    disturbed = [Remark("contended", taken, VERDICT_FIXES["contended"])] if taken else []
    played_s, memory = time.perf_counter() - started, read_memory(device)
    stages, metrics, settings = tuple(watch.stages.values()), dict(played.metrics), settings | played.settings
    if take_apart:
        say(Phase("taking the procedure apart"))
        costs = procedure.faults(task, played, device, watch)
        metrics |= {COST + fault: share for fault, share in costs.items()}
        if untried := ", ".join(fault for fault in played.corrected if fault not in costs):
            settings[UNTRIED] = untried
    if device.queues and all(laps.whole for laps in stages):
        metrics[UNDONE] = watch.unfinished_s / watch.seconds  # of a part, the queue holds too much to say
    elif device.queues:
        stages = paced(stages, watch.unfinished_s)
    job, made = extrapolate(stages), procedure.made(task)
    if not procedure.endless:  # the published figure includes more than the work
        metrics |= {OVERHEAD + name: seconds for name, seconds in overheads(stages).items()}
        metrics |= {MADE: float(made)} if made != task.steps else {}
    return {
        "estimate": replace(estimate_of(procedure, task, stages, job), contention=contention, flags=(PAUSED,) * paused),
        "cautions": (*disturbed, *[_PAUSE] * paused),
        "job": None if procedure.endless else job,
        "memory": memory,
        "work": task.workload.work(task.params, task.setting(device.place)),
        "metrics": metrics,
        "settings": settings,
        "phases_s": {"replay": watch.seconds, "around it": max(played_s - watch.seconds, 0.0)},
    }


def paced(stages: Sequence[Laps], unfinished_s: float) -> tuple[Laps, ...]:
    """Add what the device still had to do to the steps: they stand for many more."""
    share_s = unfinished_s / sum(len(laps.seconds) for laps in stages if laps.is_work)
    return tuple(
        replace(laps, seconds=[each + share_s for each in laps.seconds]) if laps.is_work else laps for laps in stages
    )


def estimate_of(procedure: Procedure, task: Task, stages: Sequence[Laps], job: JobEstimate) -> Estimate:
    """The figure that the publication would have printed, for one step and without an interval."""
    work = next(laps for laps in stages if laps.is_work)
    center_s = later_step(work).center_s if procedure.endless else job.seconds / task.steps
    steps_s = tuple(work.seconds)
    return Estimate(
        *(center_s, center_s, center_s, "mean", "as-published", steps_s[0], float(len(steps_s)), 0, Trend(0.0, 0.0)),
        samples_s=steps_s,
        sample_count=len(steps_s),
        median_s=median_high(steps_s),
        mean_s=center_s,
        mean_low_s=center_s,
        mean_high_s=center_s,
        min_s=min(steps_s),
        duration_s=sum(sum(laps.seconds) for laps in stages),
    )
