"""`torchmark run`: measures workloads on this machine and stores the results."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec import Struct
from msgspec.structs import replace

from torchmark.cli.execution import Interrupted, announced, new_run, orderly_end
from torchmark.cli.machine_setup import hold_machine, look
from torchmark.cli.measuring import measure_plan, show_complete
from torchmark.cli.options import (
    DataOptions,
    Duration,
    FormatOptions,
    MeasureOptions,
    Options,
    ParamOptions,
    PriceOptions,
    Share,
    argument,
    axes_field,
    command,
    flag,
    option,
)
from torchmark.cli.output import confirm, emit
from torchmark.devices import ACCELERATOR
from torchmark.errors import EXIT_FINE, UsageError
from torchmark.library import CASE_BUDGETS, SUITE_BUDGETS, TARGET, make_header
from torchmark.measure.cases import Sweep, check_device, expand
from torchmark.measure.machine import keep_awake
from torchmark.measure.messages import Message, Phase, Rendezvous, Sampled
from torchmark.measure.session import Plan, Session, results_so_far
from torchmark.measure.suites import SUITES, Part, expand_suite, place
from torchmark.records import CASE_OPTIONS, RIGORS, Case, Machine, Result, Rigor, Run, RunHeader, parse_case
from torchmark.report.text import clean
from torchmark.report.units import digits, duration
from torchmark.store import RunWriter, find_origin, find_run, keep_origin, load
from torchmark.workloads import find_workload
from torchmark.workloads.own.files import file_paths, find_file, split_name

_WATCH_S = 30 * 24 * 3600.0

EXAMPLES = """\b
Examples:
  torchmark run                                    the quick suite on every device
  torchmark run mlp matmul --budget 1m             two workloads
  torchmark run mlp --mode infer,train -p batch=16,64 --dtype float32,bfloat16
  torchmark run matmul --threads 1..4 --label after-upgrade
  torchmark run mlp/infer:batch=64@cpu/float32     one case, as results print it
  torchmark run mnist-ddp-mlp --workers 1,2,4      how it scales
  torchmark run resnet50 --sustain 2m              does it slow down when hot?
  torchmark run my_model.py                        a model of your own
  torchmark run my_model.py:Net --input 'float32[8,3,224,224]' --mode train
  torchmark run tensor-add --watch                 live rate until Ctrl-C
  torchmark run --resume last                      resume a run that was stopped
"""


class SweepOptions(ParamOptions):
    """Which cases to measure."""

    workloads: tuple[str, ...] = argument(nargs=-1, metavar="[WORKLOAD|FILE|CASE]...")
    suite: str | None = option("--suite", type=click.Choice(tuple(SUITES)), help="A set of cases instead of workloads.")
    axes: Mapping[str, tuple[str, ...]] = axes_field()


class BudgetOptions(Options):
    """How long and how precisely to measure."""

    budget_s: float | None = option("--budget", type=Duration(), help="Time for the whole run, at most.")
    steps: int | None = option(
        "--steps", type=click.IntRange(1, 1_000_000), help="Exactly this many steps, however precise."
    )
    sustain_s: float | None = option(
        "--sustain", type=Duration(), help="Run each case for this long: burst or sustained speed?"
    )
    target: float | None = option("--target", type=Share(), help="The ± at which a case is done; default: 3%.")
    rigor: Rigor = option(
        "--rigor", type=click.Choice(RIGORS), default="default", help="At least 1, 3 or 5 processes each."
    )
    timeout_s: float = option("--timeout", type=Duration(), default="10m", help="For one process.")
    tiny: bool = flag("The smallest sizes: tests that everything works.")


class PlanOptions(SweepOptions, BudgetOptions, DataOptions, PriceOptions):
    """What to measure and how: the options that a fleet passes on to its nodes."""


class SessionOptions(Options):
    """Options of a run on this machine."""

    nodes: int = option(
        "--nodes", type=click.IntRange(1, 4096), default=1, help="Machines that share the workers; needs --rendezvous."
    )
    rendezvous: str | None = option(
        "--rendezvous", metavar="HOST:PORT", help="Where they meet: run the same command on each of them."
    )
    resume: str | None = option(
        "--resume",
        metavar="RUN",
        help="Continue a run that was stopped; with --budget, add processes to a complete one.",
    )
    watch: bool = flag("Show the live rate of one case until stopped; stores nothing.")


class RunOptions(PlanOptions, SessionOptions, MeasureOptions, FormatOptions):
    """The options of `torchmark run`."""


@command(RunOptions, epilog=EXAMPLES)
def run(options: RunOptions) -> int:
    """Measure how fast this machine is at PyTorch.

    Without a WORKLOAD: the quick suite, within five minutes. A WORKLOAD may be a file of your own: a Python file with a
    model, FILE.py:FUNCTION, or a model's config.json. Every case is measured once, then in more fresh processes until
    its ± reaches the target or the budget is spent. ± is where a repeat of the same command would land (95%).
    """
    lock = nullcontext() if options.dry_run else hold_machine(options.wait, options.share)
    if options.resume:
        with lock:
            return _resume(options, options.resume)
    selection = select(options, options.nodes, options.rendezvous)
    if options.watch and selection.devices:
        _check_watch(selection.on(selection.devices))
    with lock:  # before looking at the machine: importing torch would disturb a run that measures
        machine = look(selection.devices or None, selection.on(selection.devices or ["cpu"]))
        plan = make_plan(selection.on([device.name for device in machine.devices]), options)
        if options.dry_run:
            emit(describe_plan(plan))
            return EXIT_FINE
        if options.watch:
            return _watch(plan)
        header = make_header(plan, machine, options.label)
        with new_run(header, options.out) as writer:
            keep_origin(header.id, file_paths())
            return measure_plan(plan, machine, writer, {}, options.format, options.prices)


class Selection(Struct, frozen=True):
    """The cases that are asked for, and the named devices; no devices means all that are here."""

    parts: tuple[Part, ...]
    devices: Sequence[str]

    def on(self, devices: Sequence[str]) -> tuple[Case, ...]:
        """The cases on these devices."""
        return place(self.parts, devices)


def select(options: PlanOptions, nodes: int = 1, rendezvous: str | None = None) -> Selection:
    """What to measure; raises for mistakes before anything slow is done."""
    devices = [name for text in options.axes.get("device", ()) for name in text.split(",") if name]
    for name in devices:
        check_device(name)
    parts = _expand(options, nodes)
    if not devices and options.workloads and all("@" in name for name in options.workloads):
        devices = sorted({case.device for part in parts for case in part.cases})
    selection = Selection(parts, devices)
    find_rendezvous(selection.on(devices or ["cpu"]), nodes, rendezvous)
    if options.sustain_s and (options.steps or options.budget_s):
        raise UsageError("--sustain sets how long each case runs", "Leave --steps and --budget out")
    return selection


def _expand(options: PlanOptions, nodes: int) -> tuple[Part, ...]:
    params = options.read_params(bool(options.workloads), options.tiny)
    if options.workloads:
        if options.suite:
            raise UsageError("a suite and workloads were both named", "Name one or the other")
        axes = {**options.axes, "device": [ACCELERATOR]}
        return (Part(expand(Sweep(options.workloads, axes, params, nodes, options.tiny))),)
    for name in (*options.axes, *(["param"] if params else [])):
        if name != "device":
            flag_ = "--option" if name in CASE_OPTIONS else f"--{name}"
            raise UsageError(f"{flag_} needs a workload", "Name one: `torchmark list` shows them")
    return expand_suite(options.suite or "quick", options.tiny)


def make_plan(cases: tuple[Case, ...], options: RunOptions) -> Plan:
    return Plan(
        cases=cases,
        rigor=options.rigor,
        budget_s=options.budget_s or _usual_budget(cases, options),
        timeout_s=options.timeout_s + (options.sustain_s or 0.0),
        target=options.target or TARGET,
        steps=options.steps,
        sustain_s=options.sustain_s,
        seed=options.seed,
        data=options.data,
        guarded=not options.workloads and not options.tiny,
        rendezvous=find_rendezvous(cases, options.nodes, options.rendezvous),
    )


def find_rendezvous(cases: Sequence[Case], nodes: int, endpoint: str | None) -> Rendezvous | None:
    """Where the nodes meet, if there are several; every case must have as many workers on each of them."""
    if (nodes > 1) != bool(endpoint):
        raise UsageError("--nodes and --rendezvous belong together", "Give the number of machines and HOST:PORT of one")
    if not endpoint:
        return None
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):[1-9]\d{0,4}", endpoint):
        raise UsageError(f"'{endpoint}' is not HOST:PORT", "Write it as in node0:29400")
    for case in cases:
        if case.workers % nodes:
            raise UsageError(
                f"{case.text} cannot be divided among {nodes} nodes", "--workers counts those of all nodes together"
            )
    return Rendezvous(endpoint, nodes)


def _usual_budget(cases: tuple[Case, ...], options: RunOptions) -> float:
    if options.sustain_s:
        return (options.sustain_s + CASE_BUDGETS["default"]) * len(cases)  # preparing comes on top
    if options.steps:
        return options.timeout_s * len(cases)  # all steps are done, however long they take
    if options.workloads:
        return CASE_BUDGETS[options.rigor] * len(cases)
    return SUITE_BUDGETS[options.suite or "quick"]


def describe_plan(plan: Plan) -> str:
    lines = [case.text for case in plan.cases]
    least = "at least " if plan.processes > 1 else ""
    processes = f"{least}{plan.processes} process{'es' if plan.processes > 1 else ''} each"
    limit = (
        f"{plan.steps} steps each"
        if plan.steps
        else f"run for {duration(plan.sustain_s)} each"
        if plan.sustain_s
        else f"at most {duration(plan.budget_s)} in all"
    )
    return "\n".join([*lines, "", f"{len(lines)} case{'s' if len(lines) > 1 else ''}, {processes}, {limit}"])


def _resume(options: RunOptions, name: str) -> int:
    """Measure what a run that was stopped still lacks, into the same file."""
    check_resumable(options)
    path = find_run(name)
    run = load(path)
    rest = plan_rest(run, path, options)
    if rest is None:
        return show_complete(run, name, options.format, options.prices)
    plan, done = rest
    if options.dry_run:
        emit(describe_plan(plan))
        return EXIT_FINE
    with announced(RunWriter.resume(path)) as writer:
        if writer.run.results == run.results:
            return measure_plan(plan, run.header.machine, writer, done, options.format, options.prices, run)
    return _resume(options, name)  # until just now, another process has added to the file


def check_resumable(options: RunOptions) -> None:
    """A run that is resumed keeps its cases and settings."""
    fixed = (options.suite, options.axes, options.params, options.inputs, options.loss, options.task)
    more = (options.steps, options.sustain_s, options.label, options.out, options.watch, options.tiny)
    if any((*fixed, *more)) or not all(map(split_name, options.workloads)):
        raise UsageError(
            "--resume continues with the cases and settings of that run, which cannot be changed",
            "Leave everything but --budget and --timeout out, or start a new run without --resume",
        )


def plan_rest(run: Run, path: Path, options: RunOptions) -> tuple[Plan, dict[str, Any]] | None:
    """What a stopped run still lacks, and what it has; None if it is complete and no more is asked for."""
    header = run.header
    _check_files(header, path, options.workloads)
    if run.ended and options.budget_s is None:
        return None
    cases = expand(Sweep(header.cases))
    done = results_so_far(run)
    # A case that failed is done: another process would fail in the same way.
    due = [text for text in header.cases if all(result.status == "ok" for result in done.get(text, []))]
    _check_same_work(done)
    missing = sum(max(header.processes - len(done.get(text, [])), 0) for text in due)
    if (missing or run.ended) and not options.dry_run:
        _check_same_machine(header)
    share = missing / max(header.processes * len(cases), 1)
    plan = Plan(
        cases=cases,
        rigor=header.rigor,
        budget_s=options.budget_s or max((header.budget_s or 0.0) * share, 1.0),
        timeout_s=options.timeout_s + (header.sustain_s or 0.0),
        target=header.target,
        steps=header.steps,
        sustain_s=header.sustain_s,
        seed=header.seed,
        data=options.data,
        guarded=header.guarded,
        rendezvous=find_rendezvous(cases, options.nodes, options.rendezvous),
        more=run.ended,
    )
    return plan, done


def _check_files(header: RunHeader, path: Path, named: Sequence[str]) -> None:
    """Load a model file only if this user started the run with it, names it again, or agrees."""
    known = {find_file(own[0]).name for name in named if (own := split_name(name))}  # cases find it from now on
    origin = find_origin(header.id)
    for name in _model_files([*map(parse_case, header.cases)]):
        if name not in known and name in origin:
            known.add(find_file(str(origin[name])).name)
    missing = [name for name in _model_files([*map(parse_case, header.cases)]) if name not in known]
    if missing and not confirm(f"This run measures {', '.join(str(Path(name).absolute()) for name in missing)}."):
        raise UsageError(
            f"this run measures {', '.join(missing)}, and nothing is run because a run file names it",
            f"If you trust it, name it again: torchmark run {' '.join(missing)} --resume {path}",
        )


def _model_files(cases: Sequence[Case]) -> list[str]:
    """Files of models and losses that the cases name."""
    found = [own[0] for case in cases if (own := split_name(case.workload))]
    losses = [re.match(r"(.+\.py)\.\w+\.[0-9a-f]{8}$", str(case.params.get("loss", ""))) for case in cases]
    return list(dict.fromkeys([*found, *(loss[1] for loss in losses if loss)]))


def _check_same_work(done: dict[str, list[Result]]) -> None:
    """The work must be the same as then: a workload, or a file of the user's, may have changed."""
    for text, results in done.items():
        now = find_workload(results[0].case.workload).version
        if any(result.version != now for result in results):
            raise UsageError(
                f"the work of {text} has changed since: its version was {results[0].version} and is {now}",
                "Start a new run without --resume",
            )


def _check_same_machine(header: RunHeader) -> None:
    """Folders of runs are shared between machines; a file must not mix the results of two of them."""
    here = look([device.name for device in header.machine.devices], map(parse_case, header.cases))
    names = [name for name in Machine.__struct_fields__ if name not in ("power_mode", "on_battery")]
    changed = [name for name in names if getattr(here, name) != getattr(header.machine, name)]
    if changed:
        was, now = (getattr(machine, changed[0]) for machine in (header.machine, here))
        raise UsageError(
            f"this run was started on another machine: its {changed[0]} was {was} and is {now} here",
            "Start a new run without --resume",
        )


def _check_watch(cases: Sequence[Case]) -> None:
    if len(cases) != 1:
        raise UsageError(f"--watch shows one case, not {len(cases)}", "Name one case, such as " + cases[0].text)


def _watch(plan: Plan) -> int:
    """One line a second with the live rate, until stopped."""
    _check_watch(plan.cases)
    line = RateLine(plan.cases[0], sys.stdout)
    session = Session(replace(plan, timeout_s=_WATCH_S), None, line.heard)
    try:
        with orderly_end(), keep_awake():
            session.watch(plan.cases[0])
    except Interrupted as interrupt:
        line.end()
        return EXIT_FINE if interrupt.exit_code == 130 else interrupt.exit_code
    return EXIT_FINE


class RateLine:
    """Shows steps a second, and how the last second compares with the best one."""

    def __init__(self, case: Case, stream: TextIO) -> None:
        self._case, self._stream, self._live = case.text, stream, stream.isatty()
        self._best_s, self._began = 0.0, time.monotonic()

    def heard(self, message: Message) -> None:
        if isinstance(message, Phase) and self._live:
            self._write(f"{self._case} · {message.name}")
        elif isinstance(message, Sampled):
            step_s = message.progress.center_s
            self._best_s = min(self._best_s or step_s, step_s)
            against = f" · {step_s / self._best_s - 1:+.0%} against the best second"
            figure = f"{digits(1 / step_s)} steps/s · {duration(step_s)} a step"
            self._write(f"{self._case} · {message.progress.elapsed_s:4.0f} s · {figure}{against}")

    def end(self) -> None:
        if self._live:
            self._stream.write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\033[K{clean(text)}" if self._live else clean(text) + "\n")
        self._stream.flush()
