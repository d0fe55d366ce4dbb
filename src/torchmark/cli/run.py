"""`torchmark run`: measures workloads on this machine and keeps what it finds."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark import __version__
from torchmark.cli.interrupts import Interrupted, orderly_end
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.cli.values import Duration, Share
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError
from torchmark.measure.awake import keep_awake
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.messages import Rendezvous
from torchmark.measure.session import Finished, Plan, Session, SpreadFound, Started, results_so_far, survey_devices
from torchmark.measure.suites import SUITES, suite
from torchmark.records import RIGORS, Case, Machine, Rigor, Run, RunHeader
from torchmark.report import render
from torchmark.report.figures import time_by_phase
from torchmark.report.units import duration
from torchmark.store import RunWriter, check_writable, find_run, load, machine_lock, new_path

SUITE_BUDGETS = {"quick": 300.0, "standard": 1800.0, "full": 6 * 3600.0}
CASE_BUDGETS: dict[Rigor, float] = {"quick": 5.0, "default": 15.0, "rigorous": 60.0}

EXAMPLES = """\b
Examples:
  torchmark run                                    the quick suite on every device
  torchmark run mlp matmul --budget 1m             two workloads
  torchmark run mlp --mode infer,train -p batch=16,64 --dtype float32,bfloat16
  torchmark run matmul --threads 1..4 --label after-upgrade
  torchmark run mlp/infer:batch=64@cpu/float32     one case, as results print it
  torchmark run mnist-ddp-mlp --workers 1,2,4      how it scales
  torchmark run tensor-add --watch                 live rate until Ctrl-C
  torchmark run --resume last                      go on where a run was stopped
"""


@click.command(epilog=EXAMPLES)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD|CASE]...")
@click.option("--suite", "suite_name", type=click.Choice(tuple(SUITES)), help="A set of cases instead of workloads.")
@click.option("--device", "devices", multiple=True, metavar="NAME,…", help="Where to run; default: every device here.")
@click.option("--mode", "modes", multiple=True, metavar="MODE,…", help="infer, train; default: the workload's first.")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=V,…", help="A parameter: -p batch=16,64 or 1..8.")
@click.option("--dtype", "dtypes", multiple=True, metavar="TYPE,…", help="float32, bfloat16, float16, float64.")
@click.option(
    "--compile", "compile_", multiple=True, metavar="off,on", help="With torch.compile; its time is kept apart."
)
@click.option("--transfer", multiple=True, metavar="HOW,…", help="resident, per-step (copies to and from the device).")
@click.option("--threads", multiple=True, metavar="N,…", help="CPU threads; default: torch's choice.")
@click.option("--workers", multiple=True, metavar="N,…", help="Ranks that share the work, on all nodes together.")
@click.option("--nodes", type=click.IntRange(1, 4096), default=1, help="Machines that share them; needs --rendezvous.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Where they meet: the same command is given on each of them.")
@click.option("--budget", "budget_s", type=Duration(), help="Time for the whole run, at most.")
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Exactly this many steps, however precise.")
@click.option("--target", type=Share(), default="1%", show_default=True, help="Precision at which a case is done.")
@click.option(
    "--rigor", type=click.Choice(RIGORS), default="default", show_default=True, help="1, 3 or 5 processes each."
)
@click.option("--timeout", "timeout_s", type=Duration(), default="10m", show_default=True, help="For one process.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="For weights and inputs.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False), help="Folder with the real MNIST and CIFAR-10 files."
)
@click.option("--label", help="A name for this run.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to keep it; default: with the others."
)
@click.option("--resume", "resumed", metavar="RUN", help="Go on with a run that was stopped.")
@click.option("--watch", is_flag=True, help="Show the live rate of one case until stopped; keeps nothing.")
@click.option("--dry-run", is_flag=True, help="Show the cases and the time they may take; measure nothing.")
@click.option("--tiny", is_flag=True, help="The smallest sizes: tries that everything works.")
@click.option("--wait", is_flag=True, help="Wait while another run measures on this machine.")
@click.option("--share", is_flag=True, help="Measure although another run does, too.")
@format_option
def command(**options: Any) -> int:
    """Measure how fast this machine is at PyTorch.

    Without a WORKLOAD: the quick suite, within five minutes. Each case runs in fresh processes until its step time is
    known to 1%, or until its share of the budget is spent; every result says how precise it is and what disturbed it.
    """
    if options["resumed"]:
        return _resume(options)
    cases, machine = _find_cases(options)
    plan = _plan(cases, options)
    if options["dry_run"]:
        emit(_describe(plan))
        return EXIT_FINE
    if options["watch"]:
        return _watch(plan, options)
    header = _header(plan, machine, options["label"])
    path = options["out"] or new_path(header)
    check_writable(path)
    with machine_lock(wait=options["wait"], share=options["share"]), RunWriter.create(path, header) as writer:
        return _measure(plan, machine, writer, {}, options["format"])


def _find_cases(options: dict[str, Any]) -> tuple[tuple[Case, ...], Machine]:
    """What to measure, and the machine with the devices that takes."""
    written_out = options["workloads"] and all("@" in name for name in options["workloads"])
    wanted = [name for text in options["devices"] for name in text.split(",") if name]
    if written_out and not wanted:
        wanted = sorted({case.device for case in expand(Sweep(options["workloads"]))})
    _rendezvous(_expand(options, wanted or ["cpu"]), options)  # mistakes are told before anything slow is done
    progress = ProgressLine(0)
    progress.note("looking at the machine …")
    try:
        machine = survey_devices(wanted or None)
    finally:
        progress.clear()
    return _expand(options, [device.name for device in machine.devices]), machine


def _expand(options: dict[str, Any], devices: Sequence[str]) -> tuple[Case, ...]:
    chosen = {
        "devices": devices,
        "modes": options["modes"],
        "params": _params(options["params"]),
        "dtypes": options["dtypes"] or ["float32"],
        "compile": options["compile_"] or ["off"],
        "transfer": options["transfer"] or ["resident"],
        "threads": options["threads"],
        "workers": options["workers"],
        "nodes": options["nodes"],
        "tiny": options["tiny"],
    }
    if options["workloads"]:
        if options["suite_name"]:
            raise UsageError("a suite and workloads were both named", "Name one or the other")
        return expand(Sweep(options["workloads"], **chosen))
    names = ("mode", "param", "dtype", "compile", "transfer", "threads", "workers")
    axes = [f"--{name}" for name in names if _given(options, name)]
    if axes:
        raise UsageError(f"{axes[0]} needs a workload", "Name one: `torchmark list` shows them")
    return suite(options["suite_name"] or "quick", devices, tiny=options["tiny"])


def _given(options: dict[str, Any], name: str) -> bool:
    return bool(options[{"mode": "modes", "param": "params", "dtype": "dtypes", "compile": "compile_"}.get(name, name)])


def _params(texts: Sequence[str]) -> dict[str, list[str]]:
    params: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(f"'{text}' is not a parameter", "Write KEY=VALUE, as in -p batch=16,64")
        params.setdefault(key, []).append(value)
    return params


def _plan(cases: tuple[Case, ...], options: dict[str, Any]) -> Plan:
    budget = options["budget_s"] or _usual_budget(cases, options)
    return Plan(
        cases=cases,
        rigor=options["rigor"],
        budget_s=budget,
        timeout_s=options["timeout_s"],
        target=options["target"],
        steps=options["steps"],
        seed=options["seed"],
        data=options["data"],
        guarded=not options["workloads"],
        rendezvous=_rendezvous(cases, options),
    )


def _rendezvous(cases: tuple[Case, ...], options: dict[str, Any]) -> Rendezvous | None:
    """Where the nodes meet, if there are several; every case must have as many workers on each of them."""
    nodes, endpoint = options["nodes"], options["rendezvous"]
    if (nodes > 1) != bool(endpoint):
        raise UsageError("--nodes and --rendezvous belong together", "Say how many machines meet, and where: HOST:PORT")
    if not endpoint:
        return None
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):[1-9]\d{0,4}", endpoint):
        raise UsageError(f"'{endpoint}' is no place to meet", "Write HOST:PORT, as in node0:29400")
    for case in cases:
        if case.workers % nodes:
            raise UsageError(
                f"{case.text} cannot be shared out among {nodes} nodes", "--workers counts those of all nodes together"
            )
    return Rendezvous(endpoint, nodes)


def _usual_budget(cases: tuple[Case, ...], options: dict[str, Any]) -> float:
    if options["steps"]:
        return float(options["timeout_s"]) * len(cases)  # what was asked for is done, however long it takes
    if options["workloads"]:
        return CASE_BUDGETS[options["rigor"]] * len(cases)
    return SUITE_BUDGETS[options["suite_name"] or "quick"]


def _describe(plan: Plan) -> str:
    lines = [case.text for case in plan.cases]
    share = plan.budget_s / len(plan.cases)
    processes = f"{plan.processes} process{'es' if plan.processes > 1 else ''} each"
    limit = (
        f"{plan.steps} steps each"
        if plan.steps
        else f"at most {duration(share)} each, {duration(plan.budget_s)} in all"
    )
    return "\n".join([*lines, "", f"{len(lines)} case{'s' if len(lines) > 1 else ''}, {processes}, {limit}"])


def _header(plan: Plan, machine: Machine, label: str | None) -> RunHeader:
    texts = tuple(case.text for case in plan.cases)
    exact = f"--steps {plan.steps}" if plan.steps else f"--budget {plan.budget_s:g}s --target {plan.target:g}"
    nodes = f" --nodes {plan.rendezvous.nodes} --rendezvous HOST:PORT" if plan.rendezvous else ""  # never a real name
    return RunHeader(
        id=secrets.token_hex(4),
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine,
        cases=texts,
        command=f"torchmark run {' '.join(texts)} --rigor {plan.rigor} {exact} --seed {plan.seed}{nodes}",
        version=__version__,
        label=label,
        rigor=plan.rigor,
        processes=plan.processes,
        budget_s=plan.budget_s,
        target=plan.target,
        steps=plan.steps,
        seed=plan.seed,
    )


def _resume(options: dict[str, Any]) -> int:
    """Measure what a run that was stopped still lacks, into the same file."""
    _check_resumable(options)
    path = find_run(options["resumed"])
    run = load(path)
    header = run.header
    cases = expand(Sweep(header.cases))
    done = results_so_far(run)
    # A case that failed is done: another process would fail alike.
    due = [text for text in header.cases if all(result.status == "ok" for result in done.get(text, []))]
    missing = sum(max(header.processes - len(done.get(text, [])), 0) for text in due)
    share = missing / max(header.processes * len(cases), 1)
    plan = Plan(
        cases=cases,
        rigor=header.rigor,
        budget_s=options["budget_s"] or max((header.budget_s or 0.0) * share, 1.0),
        timeout_s=options["timeout_s"],
        target=header.target,
        steps=header.steps,
        seed=header.seed,
        rendezvous=_rendezvous(cases, options),
    )
    if options["dry_run"]:
        emit(_describe(plan))
        return EXIT_FINE
    if missing:
        _check_same_machine(header)
    with machine_lock(wait=options["wait"], share=options["share"]), RunWriter.resume(path) as writer:
        return _measure(plan, header.machine, writer, done, options["format"])


def _check_resumable(options: dict[str, Any]) -> None:
    """A run that goes on keeps what it was started with."""
    fixed = ["suite_name", "devices", "modes", "params", "dtypes", "compile_", "transfer", "threads", "workers"]
    given = [name for name in (*fixed, "steps", "label", "out", "watch", "tiny") if options[name]]
    if options["workloads"] or given:
        raise UsageError(
            "--resume goes on with the cases and settings of that run, which cannot be changed",
            "Leave everything but --budget and --timeout out, or start a new run without --resume",
        )


def _check_same_machine(header: RunHeader) -> None:
    """Folders of runs are shared between machines; figures of two of them must not end up in one file."""
    here = survey_devices([device.name for device in header.machine.devices])
    names = [name for name in Machine.__struct_fields__ if name not in ("power_mode", "on_battery")]
    changed = [name for name in names if getattr(here, name) != getattr(header.machine, name)]
    if changed:
        was, now = (getattr(machine, changed[0]) for machine in (header.machine, here))
        raise UsageError(
            f"this run was begun on another machine: its {changed[0]} was {was} and is {now} here",
            "Start a new run without --resume",
        )


def _log_path(path: Path) -> Path:
    """Beside the run file, and never the run file itself, whatever that is called."""
    return path.with_name(path.name + ".log")


def _measure(plan: Plan, machine: Machine, writer: RunWriter, done: dict[str, Any], format: str) -> int:  # noqa: A002
    """Every result is on the disk before the next process starts; an interrupt ends the run in order."""
    progress = ProgressLine(len(plan.cases))
    session = Session(plan, machine, progress.heard, _log_path(writer.path))
    position = {case.text: number for number, case in enumerate(plan.cases, 1)}
    code = EXIT_FINE
    try:
        with orderly_end(), keep_awake():
            progress.expect(plan.budget_s)
            for event in session.events(done):
                if isinstance(event, Started):
                    writer.started(event.case.text, event.process)
                    progress.started(event.case, position[event.case.text], event.process, plan.processes)
                elif isinstance(event, Finished):
                    if event.samples_s:
                        writer.samples(event.result.case.text, event.process, event.samples_s)
                    writer.finished(event.result)
                    progress.finished(event.result)
                elif isinstance(event, SpreadFound):
                    writer.spread(event.value)
    except Interrupted as interrupt:
        code = interrupt.exit_code
        for result in session.interrupted():
            writer.finished(result)
    progress.clear()
    return _conclude(load(writer.path), writer, format, code)


def _conclude(run: Run, writer: RunWriter, format: str, code: int) -> int:  # noqa: A002
    emit(render(run, format, terminal_width(), use_color()))
    if format == "table":
        spent = time_by_phase(run)
        if spent:
            text = f"{spent} Storing took {duration(writer.seconds)}."
            click.echo(click.wrap_text(text, terminal_width()), err=True)
        click.echo(f"Kept as {run.header.id}: torchmark show {run.header.id}", err=True)
        if any(result.status == "crashed" for result in run.results):
            click.echo(f"What the workers printed: {_log_path(writer.path)}", err=True)
    if code == EXIT_FINE and not any(result.status == "ok" for result in run.results):
        return EXIT_NOTHING_MEASURED
    return code


def _watch(plan: Plan, options: dict[str, Any]) -> int:
    """One line a second with the live rate, until the user has seen enough."""
    if len(plan.cases) != 1:
        raise UsageError(
            f"--watch shows one case, not {len(plan.cases)}", "Name one case, such as " + plan.cases[0].text
        )
    from torchmark.cli.watch import RateLine

    line = RateLine(plan.cases[0], sys.stdout)
    session = Session(replace(plan, timeout_s=30 * 24 * 3600.0), None, line.heard)
    try:
        with machine_lock(wait=options["wait"], share=options["share"]), orderly_end(), keep_awake():
            session.watch(plan.cases[0])
    except Interrupted as interrupt:
        line.end()
        return EXIT_FINE if interrupt.exit_code == 130 else interrupt.exit_code
    return EXIT_FINE
