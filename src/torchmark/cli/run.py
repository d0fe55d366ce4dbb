"""`torchmark run`: measures workloads on this machine and stores the results."""

import contextlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark import store
from torchmark.cli import execution, output
from torchmark.cli import options as opt
from torchmark.cli.options import argument, axes_field, command, flag, option
from torchmark.cli.output import headline_of, print_report, say
from torchmark.errors import EXIT_FINE, StoreError, UsageError
from torchmark.library import TARGET, Measurement, choose, make_header, with_budget
from torchmark.measure.cases import SUITES, Part, expand, place
from torchmark.measure.engine import Progress
from torchmark.measure.machine import keep_awake
from torchmark.measure.messages import Message, Phase, Rendezvous
from torchmark.measure.session import Plan, Session, results_so_far
from torchmark.records import CASE_OPTIONS, RIGORS, Case, Machine, Result, Rigor, Run, RunHeader, parse_case
from torchmark.report import render
from torchmark.report.document import Document, Lines
from torchmark.report.figures import time_by_phase
from torchmark.report.headline import headline_blocks
from torchmark.report.text import Drawn, clean
from torchmark.report.units import digits, duration, relative
from torchmark.workloads import find_workload
from torchmark.workloads.own.files import file_paths, find_file, split_name


class PlanOptions(opt.ParamOptions, opt.DataOptions, opt.PriceOptions):
    """The options that a fleet passes on to its nodes."""

    workloads: tuple[str, ...] = argument(nargs=-1, metavar="[WORKLOAD|FILE|CASE]...")
    suite: str | None = option("A set of cases instead of workloads.", type=click.Choice(tuple(SUITES)))
    axes: Mapping[str, tuple[str, ...]] = axes_field()
    budget_s: float | None = option("Time for the whole run, at most.", "--budget", type=opt.DURATION)
    steps: int | None = option("Exactly this many steps, however precise.", type=click.IntRange(1, 1_000_000))
    sustain_s: float | None = option("Run each case this long: burst or sustained?", "--sustain", type=opt.DURATION)
    target: float | None = option("The ± at which a case is done; default: 3%.", type=opt.SHARE)
    rigor: Rigor = option("At least 1, 3 or 5 processes each.", type=click.Choice(RIGORS), default="default")
    timeout_s: float = option("For one process.", "--timeout", type=opt.DURATION, default="10m")
    tiny: bool = flag("The smallest sizes: tests that everything works.")


class SessionOptions(opt.Options):
    nodes: int = option("Machines that share the workers; needs --rendezvous.", type=click.IntRange(1, 4096), default=1)
    rendezvous: str | None = option("Where they meet: run the same command on each of them.", metavar="HOST:PORT")
    resume: str | None = option("Continue a run; with --budget, add processes to a complete one.", metavar="RUN")
    watch: bool = flag("Show the live rate of one case until stopped; stores nothing.")


class RunOptions(PlanOptions, SessionOptions, opt.MeasureOptions, opt.FormatOptions):
    """The options of `torchmark run`."""


@command(RunOptions)
def run(options: RunOptions) -> int:
    """Measure how fast this machine is at PyTorch.

    Without a WORKLOAD: the quick suite, within five minutes. A WORKLOAD may be a file of your own: a Python file with a
    model, FILE.py:FUNCTION, or a model's config.json. Every case is measured once, then in more fresh processes until
    its ± reaches the target or the budget is spent. ± is where a repeat of the same command would land (95%).

    Examples:
      torchmark run mlp matmul --budget 1m             two workloads
      torchmark run mlp --mode infer,train -p batch=16,64 --dtype float32,bfloat16
      torchmark run mlp/infer:batch=64@cpu/float32     one case, as results print it
      torchmark run mnist-ddp-mlp --workers 1,2,4      how it scales
      torchmark run my_model.py:Net --input 'float32[8,3,224,224]' --mode train
      torchmark run --resume last                      resume a run that was stopped
    """
    if options.resume:
        with execution.hold_machine(options):
            return _resume(options, options.resume)
    parts, devices = select(options, options.nodes, options.rendezvous)
    # Lock before looking at the machine: importing torch would disturb another run.
    with execution.hold_machine(options):
        machine = execution.look(devices or None, place(parts, devices or ["cpu"]))
        plan = make_plan(place(parts, [device.name for device in machine.devices]), options)
        if options.dry_run:
            return _describe(plan)
        if options.watch:
            return _watch(plan)
        study = Measurement(plan, machine)
        header = make_header(study, options.label)
        with execution.new_run(header, options) as writer:
            store.keep_origin(header.id, file_paths())
            return _measure(study, writer, options)


def select(options: PlanOptions, nodes: int = 1, endpoint: str | None = None) -> tuple[tuple[Part, ...], Sequence[str]]:
    """The cases to measure, and the named devices; none means all that are here."""
    named, params = options.workloads, options.read_params(bool(options.workloads), options.tiny)
    if named and options.suite:
        raise UsageError("a suite and workloads were both named", "Name one or the other")
    given = [name for name in (*options.axes, *(["param"] if params else [])) if name != "device"]
    if given and not named:
        name = "--option" if given[0] in CASE_OPTIONS else f"--{given[0]}"
        raise UsageError(f"{name} needs a workload", "Name one: `torchmark list` shows them")
    parts, devices = choose(named, options.suite or "quick", options.axes, params, nodes, options.tiny)
    find_rendezvous(place(parts, devices or ["cpu"]), nodes, endpoint)
    if options.sustain_s and (options.steps or options.budget_s):
        raise UsageError("--sustain sets how long each case runs", "Leave --steps and --budget out")
    return parts, devices


def make_plan(cases: tuple[Case, ...], options: RunOptions, resumed: RunHeader | None = None, **more: Any) -> Plan:
    settings, suite = resumed or options, None if options.workloads else options.suite or "quick"
    if not resumed:
        more |= {"target": options.target or TARGET, "guarded": bool(suite) and not options.tiny}
        more["budget_s"] = options.budget_s or 0.0
    more |= {"cases": cases, "timeout_s": options.timeout_s + (settings.sustain_s or 0.0), "data": options.data}
    more["rendezvous"] = find_rendezvous(cases, options.nodes, options.rendezvous)
    return with_budget(execution.record_of(Plan, settings, **more), suite)


def find_rendezvous(cases: Sequence[Case], nodes: int, endpoint: str | None) -> Rendezvous | None:
    """Where the nodes meet, if there are several; each case must have as many workers on each of them."""
    if (nodes > 1) != bool(endpoint):
        raise UsageError("--nodes and --rendezvous belong together", "Give the number of machines and HOST:PORT of one")
    if not endpoint:
        return None
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):[1-9]\d{0,4}", endpoint):
        raise UsageError(f"'{endpoint}' is not HOST:PORT", "Write it as in node0:29400")
    if uneven := [case.text for case in cases if case.workers % nodes]:
        raise UsageError(f"{uneven[0]} cannot be divided among {nodes} nodes", "--workers counts all nodes together")
    return Rendezvous(endpoint, nodes)


def _describe(plan: Plan) -> int:
    limit = f"{plan.steps} steps each" if plan.steps else f"at most {duration(plan.budget_s)} in all"
    limit = f"run for {duration(plan.sustain_s)} each" if plan.sustain_s else limit
    processes = f"at least {plan.processes} processes" if plan.processes > 1 else "1 process"
    count = "cases" if len(plan.cases) > 1 else "case"
    return output.emit_plan((case.text for case in plan.cases), f"{count}, {processes} each, {limit}")


def _measure(study: Measurement, writer: store.RunWriter, options: RunOptions, before: Run | None = None) -> int:
    """`before` is the run that is resumed."""
    name = "last" if writer.path.parent == store.home() else str(writer.path)

    def first_answer(_: object) -> str:
        headline = headline_of(writer.read()) if study.options.processes > 1 and options.format == "table" else None
        if not headline:
            return ""
        first = replace(headline, commands=(), confidence="")  # one process says nothing about that yet
        more = Lines(["First figures. More processes follow and narrow the ±."])
        document = Document(lambda: [*headline_blocks(first, study.machine), more])
        return Drawn("\n" + render(document, "table", *output.screen()))

    def show(ending: execution.Ending) -> int:
        run = ending.run()
        if before:
            _report_widened(before, run)
        headline = headline_of(run, name)
        if headline and ending.error:
            headline = replace(headline, commands=())  # they need the file
        print_report(run, options.format, options.prices, headline)
        if ending.code and not ending.error:
            say(f"Not all was measured. Resume: torchmark run --resume {run.header.id if name == 'last' else name}")
        if options.format == "table":
            if (spent := time_by_phase(run)) and not headline:
                output.hint(f"{spent} Storing took {duration(writer.seconds)}.")
            execution.hint_at_limits(run)
        return execution.exit_code_of(run)

    def fix() -> str:
        resume = f"then resume: torchmark run --resume {writer.path}"
        with contextlib.suppress(StoreError):
            if store.read_header(writer.path) == writer.read().header:
                with contextlib.suppress(StoreError):
                    store.load(writer.path)
                    return f"Fix that, {resume}"
                return f"Fix that, remove what another program has written to that file, {resume}"
        return "Fix that, then start again: that file does not hold the run"

    return execution.execute(study, options, show, first_answer, fix=fix, writer=writer)


def _report_widened(before: Run, after: Run) -> None:
    known = {result.case.text: result.estimate for result in before.results}
    for text, new in ((result.case.text, result.estimate) for result in after.results):
        old = known.get(text)
        if old and new and old.spread is not None and new.spread is not None and new.precision > 1.2 * old.precision:
            widened = f"± widened from {relative(old.precision)} to {relative(new.precision)}"
            moved = f"the figure moved by {new.center_s / old.center_s - 1:+.1%}"
            say(f"{text}: {widened}, because later processes disagree; {moved}")


def _resume(options: RunOptions, name: str) -> int:
    fixed = "suite axes params inputs loss task steps sustain_s label out watch tiny"
    if any(getattr(options, name) for name in fixed.split()) or not all(map(split_name, options.workloads)):
        fix = "Leave everything but --budget and --timeout out, or start a new run without --resume"
        raise UsageError("--resume continues with the cases and settings of that run, which cannot be changed", fix)
    path = store.find_run(name)
    run = store.load(path)
    _check_files(run.header, path, options.workloads)
    if run.ended and options.budget_s is None:
        print_report(run, options.format, options.prices, headline_of(run, name))
        say("This run is complete; nothing was measured.")
        say(f"Add processes to it: torchmark run --resume {name} --budget 2m")
        return EXIT_FINE
    plan, done = plan_rest(run, options)
    if options.dry_run:
        return _describe(plan)
    with execution.announced(store.RunWriter.resume(path)) as writer:
        if writer.read().results == run.results:
            return _measure(Measurement(plan, run.header.machine, done), writer, options, run)
    return _resume(options, name)  # another process has added to the file


def plan_rest(run: Run, options: RunOptions) -> tuple[Plan, dict[str, list[Result]]]:
    header, done = run.header, results_so_far(run)
    cases = expand(header.cases)
    for text, results in done.items():
        now = find_workload(results[0].case.workload).version
        if any(result.version != now for result in results):
            cause = f"the work of {text} has changed since: its version was {results[0].version} and is {now}"
            raise UsageError(cause, "Start a new run without --resume")
    # A case that failed is done: another process would fail in the same way.
    failed = {text for text, results in done.items() if any(result.status != "ok" for result in results)}
    due = [done.get(text, []) for text in header.cases if text not in failed]
    missing = sum(max(header.processes - len(results), 0) for results in due)
    if (missing or run.ended) and not options.dry_run:  # a file must not mix the results of two machines
        here = execution.look([device.name for device in header.machine.devices], map(parse_case, header.cases))
        for name in (each for each in Machine.__struct_fields__ if each not in ("power_mode", "on_battery")):
            was, now = (getattr(machine, name) for machine in (header.machine, here))
            if was != now:
                cause = f"this run was started on another machine: its {name} was {was} and is {now} here"
                raise UsageError(cause, "Start a new run without --resume")
    budget_s = options.budget_s or max((header.budget_s or 0.0) * missing / max(header.processes * len(cases), 1), 1.0)
    return make_plan(cases, options, header, budget_s=budget_s, more=run.ended), done


def _check_files(header: RunHeader, path: Path, named: Sequence[str]) -> None:
    """Load a model file only if this user started the run with it, names it again, or agrees."""
    files: dict[str, None] = {}
    for case in map(parse_case, header.cases):
        loss = re.match(r"(.+\.py)\.\w+\.[0-9a-f]{8}$", str(case.params.get("loss", "")))
        files |= dict.fromkeys(own[0] for own in (split_name(case.workload), loss and loss.groups()) if own)
    known = {find_file(own[0]).name for name in named if (own := split_name(name))}  # cases find it from now on
    origin = store.find_origin(header.id)
    known |= {find_file(str(origin[name])).name for name in files if name not in known and name in origin}
    missing = [name for name in files if name not in known]
    paths = ", ".join(str(Path(name).absolute()) for name in missing)
    if missing and not output.confirm(f"This run measures {paths}."):
        fix = f"If you trust it, name it again: torchmark run {' '.join(missing)} --resume {path}"
        raise UsageError(f"this run measures {', '.join(missing)}, and nothing is run because a run file names it", fix)


def _watch(plan: Plan) -> int:
    case, live, best_s = plan.cases[0], sys.stdout.isatty(), math.inf
    if len(plan.cases) != 1:
        raise UsageError(f"--watch shows one case, not {len(plan.cases)}", f"Name one case, such as {case.text}")

    def heard(message: Message) -> None:
        nonlocal best_s
        if isinstance(message, Progress):
            step_s = message.center_s
            best_s = min(best_s, step_s)
            figure = f"{digits(1 / step_s)} steps/s · {duration(step_s)} a step"
            news = f"{message.elapsed_s:4.0f} s · {figure} · {step_s / best_s - 1:+.0%} against the best second"
        elif isinstance(message, Phase) and live:
            news = message.name
        else:
            return
        text = clean(f"{case.text} · {news}")
        sys.stdout.write(f"\r\033[K{text}" if live else f"{text}\n")
        sys.stdout.flush()

    try:
        with execution.orderly_end(), keep_awake():
            Session(replace(plan, timeout_s=opt.LONGEST_S), None, heard).watch(case)
    except execution.Interrupted as interrupt:
        sys.stdout.write("\n" if live else "")
        return EXIT_FINE if interrupt.exit_code == 130 else interrupt.exit_code
    return EXIT_FINE
