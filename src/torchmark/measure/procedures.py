"""How each publication timed its work: one procedure for each, replayed step by step, with its faults undone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from torchmark.analyze.jobs import later_step
from torchmark.devices.contract import Device
from torchmark.errors import CaseError, DoesNotFitError
from torchmark.measure.cases import full_params
from torchmark.measure.engine import DEFAULTS, measure_pair
from torchmark.measure.ranks import threads_per_rank
from torchmark.measure.session import FLOPS_PER_S, cost_s
from torchmark.measure.stopwatch import Stopwatch, due
from torchmark.measure.training_script import STEP, Job, Report
from torchmark.records import Case, Laps, Result, Value
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Workload
from torchmark.workloads.model import ModelWorkload, leaves_of

if TYPE_CHECKING:
    import torch

FAULT_SHARE = 0.25  # of the time that is left, for each fault at most
PAIR_S = 2.0
SLOW_STEP_S = 0.2  # from here on two of each must do

Run = Callable[[], object]


class Task(Struct, frozen=True):
    """One case of a published table, to be timed as it was there."""

    publication: str
    case: Case
    steps: int  # in the published loop
    scale: float = 1.0  # the share of them to take now
    seed: int = 0
    data: str | None = None

    @property
    def params(self) -> Any:
        return full_params(self.case)

    @property
    def workload(self) -> Workload:
        return find_workload(self.case.workload)

    def due(self, published: int) -> int:
        """How many of so many repetitions to do now."""
        return due(published, self.scale)

    def setting(self, place: str) -> Setting:
        """What the workload's own builders must follow."""
        case = self.case
        return Setting(
            mode=case.mode,
            device=place,
            dtype=case.dtype,
            transfer=case.transfer,
            seed=self.seed,
            world_size=case.workers,
            data=self.data,
        )


class Played(Struct, frozen=True):
    """What remains after a case was replayed: its step, and the same step with one fault corrected at a time."""

    step: Run | None = None
    corrected: dict[str, Run] = {}  # by the fault
    metrics: dict[str, float] = {}
    settings: dict[str, Value | None] = {}


class Procedure(ABC):
    """How one publication timed its work. An object lives as long as the process that replays its cases."""

    endless: ClassVar[bool] = False  # the loop was watched and stopped by hand, so that only its later steps count
    whole_process: ClassVar[bool] = False  # timed from outside, start of the interpreter included

    def shares_process(self, case: Case) -> bool:
        """Whether such cases were timed one after the other in one process."""
        del case
        return False

    def readings(self, case: Case) -> dict[str, Case]:
        """What the publication can be understood to have timed, by name, where text and effect differ."""
        del case
        return {}

    def explain(self, results: Mapping[str, Result]) -> tuple[str, ...]:
        """What the readings say together, given by name."""
        del results
        return ()

    def runs_on(self, case: Case, kind: str) -> bool:
        """Whether the procedure makes sense for the case on this kind of device."""
        del case, kind
        return True

    def made(self, task: Task) -> int:
        """How many steps the published loop really made."""
        return task.steps

    def steps(self, task: Task) -> int:
        """How many steps are due now."""
        return task.due(self.made(task))

    def step_cost_s(self, task: Task) -> float:
        """About how long a step takes on no machine in particular: only comparisons of it mean anything."""
        work = task.workload.work(task.params, task.setting(task.case.device))
        assert work is not None, "a workload whose work takes torch to know needs a procedure that knows it"
        return cost_s(work)

    def faults(self, task: Task, played: Played, device: Device, watch: Stopwatch) -> dict[str, float]:
        """By how much each fault makes a step longer: 0.05 is 5%. Those that are too slow to try are left out."""
        del task
        found = {}
        for fault, corrected in played.corrected.items():
            assert played.step is not None
            ratio = _compare(played.step, corrected, device, watch.time_left_s * FAULT_SHARE)
            if ratio is not None:
                found[fault] = 1 / ratio - 1
        return found

    @abstractmethod
    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """Do what the publication did, on the device at this place, timed by the stopwatch."""


def _compare(published: Run, corrected: Run, device: Device, most_s: float) -> float | None:
    """How long the corrected step takes relative to the published one, timed in turn; None where it takes too long."""
    time_a, time_b = device.timer(published), device.timer(corrected)
    once_s = time_b(1).total_s  # it may have something to start, such as another kernel
    if 4 * once_s > most_s:
        return None
    if once_s > SLOW_STEP_S:
        a, b = time_a(1).total_s, time_b(1).total_s
        return (b + time_b(1).total_s) / (a + time_a(1).total_s)
    settings = replace(DEFAULTS, budget_s=min(PAIR_S, most_s), min_time_s=min(PAIR_S, most_s) / 2)
    return measure_pair(
        time_a, time_b, clock=device.clock, sync_cost_s=device.calibrate().sync_s, settings=settings
    ).ratio


def _run_loop(
    watch: Stopwatch, step: Run, published: int, count: int, stage: str = "step", keeps_output: bool = False
) -> None:
    """The published loop. Where the authors kept an output, it lives until the next one takes its place."""
    output: object = None
    for _ in watch.loop(stage, published, count):
        if keeps_output:
            output = step()
        else:
            step()
    del output


def _without_graph(step: Run) -> Run:
    import torch

    def run() -> object:
        with torch.no_grad():
            return step()

    return run


def _switched(step: Run, switch: Run, back: Run) -> Run:
    """The step with something switched before, and back after it."""

    def run() -> None:
        switch()
        try:
            step()
        finally:
            back()

    return run


class M1Chips(Procedure):
    """Inference in a loop whose clock starts before the model moves, with gradients on and nothing waited for.

    `no switch` has its input on the device beforehand; `switch` copies input and output in every step.
    """

    def runs_on(self, case: Case, kind: str) -> bool:
        """Without a device to copy to, a switch is the same as none."""
        return case.transfer == "resident" or kind != "cpu"

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        if task.case.workload == "venv-ppo":
            return self._play_job(task, place, watch)
        model, rows = self._make(task, place)
        is_resident = task.case.transfer == "resident"
        inputs = rows.to(place) if is_resident else rows

        def switch() -> Any:
            output = model(inputs.to(place))
            return getattr(output, "logits", output).to("cpu")  # with or without the library's wrapping

        step = (lambda: model(inputs)) if is_resident else switch
        watch.start()
        model.to(place)
        watch.lap("model to the device")
        _run_loop(watch, step, task.steps, task.due(task.steps), keeps_output=True)  # and its graph with it
        return Played(step, {"autograd graph": _without_graph(step)})

    def _make(self, task: Task, place: str) -> tuple[torch.nn.Module, torch.Tensor]:
        """The workload's own model and input, still on the host."""
        workload = task.workload
        assert isinstance(workload, ModelWorkload)
        made = workload.made(task.params, task.setting(place))
        return made.module.eval(), next(leaves_of(made.inputs))

    def _play_job(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """The whole job, from building it to the last epoch of its second stage."""
        watch.start()
        step = task.workload.prepare(task.params, task.setting(place))
        watch.lap("building")
        _run_loop(watch, step.run, step.job_steps, task.due(step.job_steps), "venv epoch")
        for stage in step.stages:
            _run_loop(watch, stage.run, stage.steps, task.due(stage.steps), stage.name)
        return Played(step.run)


ATTENTION = "eager"  # what the library of that time did


class AppleSiliconBert(Procedure):
    """100 steps with inputs copied in each, nothing warmed up and nothing waited for.

    Training, too, keeps the model in evaluation mode, so that nothing is dropped out.
    """

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        workload = task.workload
        assert isinstance(workload, ModelWorkload)
        made = workload.made(task.params, replace(task.setting(place), options={"attention": ATTENTION}))
        model: Any = made.module.to(place).eval()
        optimizer = made.optimizer.make(model.parameters())

        def forward() -> Any:
            return model(**{name: host.to(place) for name, host in made.inputs.items()})

        def infer() -> None:
            with torch.no_grad():
                forward()

        def train() -> None:
            optimizer.zero_grad()
            forward().loss.backward()
            optimizer.step()

        step = train if task.case.mode == "train" else infer
        watch.start()
        _run_loop(watch, step, task.steps, task.due(task.steps))
        corrected = {}
        if hasattr(model, "set_attn_implementation"):  # the attention that the library picks by itself today
            use = model.set_attn_implementation
            corrected["eager attention"] = _switched(step, lambda: use("sdpa"), lambda: use(ATTENTION))
        if step is train:
            corrected["evaluation mode"] = _switched(step, model.train, model.eval)
        return Played(step, corrected, settings={"attention": ATTENTION})


UNET_FLOPS = 1.6e12  # of one iteration at 512 × 512; it takes torch to know this exactly


class M1GpuForMl(Procedure):
    """The mean of 50 forward passes with gradients on, and the pace of a progress bar over one image.

    One model served all four sizes of BERT in one process, the smallest first.
    """

    def __init__(self) -> None:
        self._model: Any = None

    def shares_process(self, case: Case) -> bool:
        return case.workload == "bert-encode"

    def made(self, task: Task) -> int:
        """The scheduler takes one more than it is asked for; the bar does not count it."""
        return task.steps + 1 if task.case.workload == "stable-diffusion" else task.steps

    def step_cost_s(self, task: Task) -> float:
        if task.case.workload == "stable-diffusion":
            return float(UNET_FLOPS * (task.params.size / 512) ** 2 / FLOPS_PER_S)
        return super().step_cost_s(task)

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        return (self._paint if task.case.workload == "stable-diffusion" else self._encode)(task, place, watch)

    def _encode(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        from torchmark.workloads.bert_encode import ID, BertEncode

        if self._model is None:
            self._model = BertEncode().made(task.params, task.setting(place)).module.to(place).eval()
        model, ids = self._model, torch.full((task.params.batch, task.params.sequence), ID).to(place)

        def step() -> Any:
            return model(input_ids=ids)

        watch.start()
        _run_loop(watch, step, task.steps, self.steps(task), keeps_output=True)
        settings = {"attention": model.config._attn_implementation}
        return Played(step, {"autograd graph": _without_graph(step)}, settings=settings)

    def _paint(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """A pass of one step to warm up, then the loop."""
        # Decoding comes after the bar has ended and is no part of its pace, so its network is not even built.
        params = replace(task.params, decode=False)
        step = task.workload.prepare(params, task.setting(place))
        step.run()
        watch.start()
        _run_loop(watch, step.run, self.made(task), self.steps(task))
        return Played(step.run, settings=dict(step.notes))


ITERATIONS = 200  # stand for a loop that ran until its user stopped it
FEWEST = 20  # a bar's pace comes from many
READINGS = ("as-run", "as-written", "resident")

# The published listing; without a GPU its copies to one were left out.
LISTING = """
def foo():
    x = torch.ones(({size}, {size}), dtype=torch.float32)
    y = torch.ones(({size}, {size}), dtype=torch.float32)
    x = x{move}
    y = y{move}
    z = x + y
    return z
"""

FOLDED = (
    "as-run: two calls of the compiled function gave the very same memory. The compiler had worked its result out "
    "once, so that an iteration only doubled that one tensor in place."
)
NOT_FOLDED = "as-run: this torch's compiler does not fold the function; each call made its tensors anew."


class SimpleAdd(Procedure):
    """A compiled function without input in an endless loop, whose pace a progress bar showed.

    The listing is compiled and run as it was. The other two readings show what the compiler made of it.
    """

    endless = True

    def readings(self, case: Case) -> dict[str, Case]:
        return {name: replace(case, params={**case.params, "variant": name}) for name in READINGS}

    def explain(self, results: Mapping[str, Result]) -> tuple[str, ...]:
        """Whether the compiler folded the function, and what the listing costs where it is not folded."""
        as_run, as_written = results.get("as-run"), results.get("as-written")
        if as_run is None or as_run.estimate is None:
            return ()
        folded = FOLDED if as_run.metrics["folded"] else NOT_FOLDED
        if as_written is None or as_written.estimate is None:
            return (folded,)
        ratio = as_written.estimate.center_s / as_run.estimate.center_s
        return (
            folded,
            f"as-written / as-run = {ratio:.1f}: an iteration that does what the listing says takes so much longer.",
        )

    def steps(self, task: Task) -> int:
        return max(FEWEST, task.due(ITERATIONS))

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        if task.params.variant == "as-run":
            return self._run_listing(task, place, watch)
        step = task.workload.prepare(task.params, task.setting(place)).run
        watch.start()
        _run_loop(watch, step, ITERATIONS, self.steps(task), "iteration")
        return Played(step)

    def _run_listing(self, task: Task, place: str, watch: Stopwatch) -> Played:
        foo = _compile(task.params.size, place)
        z0: Any = None
        addresses = []
        watch.start()
        for number in watch.loop("iteration", ITERATIONS, self.steps(task)):
            zz = foo()
            if z0 is None:
                z0 = zz
            else:
                z0 += zz
            if number < 2:
                addresses.append(zz.data_ptr())
        return Played(metrics={"folded": float(len(set(addresses)) == 1)})


def _compile(size: int, place: str) -> Any:
    import warnings

    import torch

    move = "" if place == "cpu" else f'.to(torch.device("{place}"))'
    with warnings.catch_warnings():  # that this compiler is an old one is known
        warnings.simplefilter("ignore")
        return torch.jit.CompilationUnit(LISTING.format(size=size, move=move)).foo


SCRIPT = "torchmark.measure.training_script"
MOST_SHARE = 3.0  # the script is run again only where there is time to run it this many times
START = "process start, imports and data"


class _ScriptRun(NamedTuple):
    seconds: float
    report: Report


class IntelVsM2(Procedure):
    """Whole training programs, from starting the interpreter to its end, timed from outside.

    The scripts use no GPU. Those with several workers leave each of them as many threads as there are cores.
    """

    whole_process = True

    def runs_on(self, case: Case, kind: str) -> bool:
        del case
        return kind == "cpu"

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        del place
        run = _run_script(task, watch.time_left_s, {})
        inside_s = sum(sum(laps.seconds) for laps in run.report.stages)
        watch.stages = {laps.stage: laps for laps in (Laps(START, [run.seconds - inside_s]), *run.report.stages)}
        return Played(settings={"data": run.report.data, "script_threads": run.report.threads})

    def faults(self, task: Task, played: Played, device: Device, watch: Stopwatch) -> dict[str, float]:
        """What more threads than cores cost: the same script once more, with the cores shared out among its workers."""
        del played, device
        if task.case.workers == 1 or watch.time_left_s < MOST_SHARE * watch.seconds:
            return {}
        fair = {"OMP_NUM_THREADS": str(threads_per_rank(None, task.case.workers))}
        corrected = _run_script(task, watch.time_left_s, fair)
        steps = next(laps for laps in corrected.report.stages if laps.stage == STEP)
        return {"too many threads": later_step(watch.stages[STEP]).center_s / later_step(steps).center_s - 1}


def _run_script(task: Task, time_left_s: float, variables: Mapping[str, str]) -> _ScriptRun:
    """The script in an interpreter of its own; what it prints at its end is what it timed inside."""
    job = Job(task.case.workload, asdict(task.params), task.case.workers, task.scale, time_left_s, task.seed, task.data)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", SCRIPT],
        input=msgspec.json.encode(job),
        stdout=subprocess.PIPE,
        env=os.environ | variables,
        check=False,
    )
    seconds = time.perf_counter() - started
    lines = done.stdout.splitlines()
    report = msgspec.json.decode(lines[-1], type=Report) if lines else Report()
    if report.trouble:
        raise DoesNotFitError(report.trouble)
    if done.returncode or not lines:
        silence = "" if lines else " and said nothing"
        raise CaseError(f"the script ended with code {done.returncode}{silence}", "See the log of the run")
    return _ScriptRun(seconds, report)


PROCEDURES: dict[str, type[Procedure]] = {
    "apple-silicon-bert": AppleSiliconBert,
    "intel-vs-m2": IntelVsM2,
    "m1-chips": M1Chips,
    "m1-gpu-for-ml": M1GpuForMl,
    "simple-add": SimpleAdd,
}
