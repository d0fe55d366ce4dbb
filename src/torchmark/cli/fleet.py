"""`torchmark fleet`: submits `torchmark run` to the nodes of a cluster, follows the jobs, gathers the results."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import click
from msgspec.structs import replace
from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchmark.cli import options as opt
from torchmark.cli.execution import noted
from torchmark.cli.options import FormatOptions, ListingOptions, Options, argument, command, flag, option, several
from torchmark.cli.output import confirm, emit, hint, print_report
from torchmark.cli.run import PlanOptions, select
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_NOTHING_MEASURED, FleetError, UsageError
from torchmark.fleet import jobs
from torchmark.fleet.folder import UNDER_WAY, Fleet, FleetFolder, Node, Task, Terms
from torchmark.fleet.jobs import Engine, Observer, TaskStatus, choose, equal_threads, one_each, together
from torchmark.fleet.local import Local
from torchmark.fleet.slurm import Slurm
from torchmark.measure.cases import split_values
from torchmark.report import machines as documents
from torchmark.report import render
from torchmark.report.figures import margin, step_time
from torchmark.report.text import clean

ENGINES: dict[str, Callable[[], Engine]] = {"slurm": Slurm, "local": Local}
DEFAULT_FOLDER = "torchmark-fleet"
CANCEL_S, LOOK_S = 60.0, 0.5  # patience with jobs that are being cancelled
SHORTEST_S, LONGEST_S = 0.5, 5.0  # between two looks: schedulers are shared
PATIENCE_S = 300.0  # with a scheduler that does not answer

FORWARDED = tuple(PlanOptions.parameters())


class OpenFleet:
    def __init__(self, folder: FleetFolder, fleet: Fleet, engine: Engine | None = None) -> None:
        self.folder, self.fleet, self.engine = folder, fleet, engine or ENGINES[fleet.terms.engine]()
        self.look = partial(Observer(folder, self.engine).look, fleet.tasks)

    def nodes(self) -> tuple[Node, ...]:
        """The nodes in their present state, without those that were taken out of the cluster."""
        count = len({name for task in self.fleet.tasks for name in task.nodes})
        return self.engine.nodes(count, partition=self.fleet.terms.partition)


class FolderOptions(Options):
    folder: Path = argument(type=opt.PATH, default=DEFAULT_FOLDER)

    def open(self) -> OpenFleet:
        folder = FleetFolder(self.folder)
        return OpenFleet(folder, folder.load())


class StatusOptions(ListingOptions, FolderOptions):
    names: bool = flag("With the names of the nodes.")


class GatherOptions(FormatOptions, StatusOptions):
    """The same in all formats."""


@command(StatusOptions)
def status(options: StatusOptions) -> None:
    """Show the state of every job of the fleet in FOLDER, by default in `torchmark-fleet` right here.

    Example:
      torchmark fleet status /shared/fleet --names
    """
    print_report(documents.status_document(_members(options.open().look(), options.names, True)), options.format)


@command(GatherOptions)
def gather(options: GatherOptions) -> int:
    """Show everything that the fleet in FOLDER has measured, whether its jobs have ended or not.

    For every case and kind of node: the median over its nodes and how much they differ; then which nodes stand out
    among their peers, how training scales over nodes, and what is missing. Every run file in FOLDER is an ordinary one.

    Examples:
      torchmark fleet gather /shared/fleet --format md
      torchmark report --leaderboard /shared/fleet     the folder is one of run files
    """
    return _print_gathered(options.open().look(), options.format, options.names)


@command(FolderOptions)
def cancel(options: FolderOptions) -> None:
    """End the jobs of the fleet in FOLDER that wait or run. Results so far are kept, and --resume continues.

    Example:
      torchmark fleet cancel /shared/fleet
    """
    opened = options.open()
    open_tasks = [each.task for each in opened.look() if each.state in UNDER_WAY]
    jobs.cancel(opened.engine, opened.folder, open_tasks)
    end = time.monotonic() + CANCEL_S
    while any(each.state in UNDER_WAY for each in opened.look()) and time.monotonic() < end:
        time.sleep(LOOK_S)  # so that their end is seen before the scheduler forgets it
    emit(f"cancelled {len(open_tasks)} of {len(opened.fleet.tasks)} jobs")
    if open_tasks:
        hint(f"To continue later: torchmark fleet run --resume {options.folder}")


def _print_gathered(statuses: Sequence[TaskStatus], format_: str, names: bool = False) -> int:
    print_report(documents.gathered_document(_members(statuses, names)), format_)
    measured = any(result.status == "ok" for each in statuses if each.run for result in each.run.results)
    return EXIT_FINE if measured else EXIT_NOTHING_MEASURED


def _members(statuses: Sequence[TaskStatus], names: bool = False, private: bool = False) -> list[documents.Member]:
    """`private` adds words of schedulers and logs, which may name nodes and paths."""
    members = []
    for each in statuses:
        task, reason = each.task, each.private_reason if private else each.reason
        about = task.label, task.kind, task.about, each.state, reason, len(task.nodes)
        members.append(documents.Member(*about, task.nodes if names else (), each.run))
    return members


class FleetRunOptions(PlanOptions, FormatOptions):
    together: tuple[str, ...] = several("One job for each N, in which N nodes share the work.", "N,…")
    folder: Path | None = option("Where run files go; all nodes share it.", type=opt.FOLDER)
    engine: Literal["slurm", "local"] = option("What runs the jobs.", type=click.Choice(list(ENGINES)), default="slurm")
    count: int | None = option("So many nodes instead of all.", "--nodes", type=click.IntRange(1, 4096))
    nodelist: str | None = option("These nodes, as Slurm writes them: node[0-3,7].", metavar="NAMES")
    each_kind: bool = flag("One node of each kind.")
    partition: str | None = option("Only nodes of this partition; default: Slurm's own default.", metavar="NAME")
    constraint: str | None = option("Only nodes with these features: a&b, a|b.", metavar="FEATURES")
    time_s: float | None = option("For one job, at most; default: the partition's.", "--time", type=opt.DURATION)
    sbatch: tuple[str, ...] = several("Another option for sbatch: --account=lab.", "OPTION")
    python: str | None = option("The interpreter on the nodes; default: the one that runs this.", metavar="PATH")
    setup: tuple[str, ...] = several("Shell to run on a node first: 'module load python'.", "LINE")
    no_probe: bool = flag("Do not try one node of each kind first.")
    label: str | None = opt.label_field("A name for these runs; each adds its node.")
    names: bool = flag("Label runs with the names of nodes instead of kind and number.")
    resume: Path | None = option("Submit what is missing.", type=opt.PATH, metavar="FOLDER")
    trusted: bool = flag("Run jobs from a folder that other users can change.", "--trust-folder")
    detach: bool = flag("Submit and leave; `fleet status` shows the progress.")
    dry_run: bool = flag("Show nodes and commands; submit nothing.")

    @property
    def teams(self) -> dict[int, list[int]]:
        """The counts of workers in all, by the count of nodes that share them; by default one on each."""
        given, sizes = split_values(self.axes.get("workers", ())), split_values(self.together)
        for text in (*given, *sizes):
            if not text.isdigit() or not 1 <= int(text) <= 4096:
                raise UsageError(f"'{text}' is not a number of nodes or workers", "Write whole numbers: 1,2,4")
        counts = [*map(int, given)]
        teams = {size: [each for each in counts or [size] if each % size == 0] for size in sorted({*map(int, sizes)})}
        if unfilled := [size for size, workers in teams.items() if not workers]:
            cause = f"no number in --workers can be shared out among {unfilled[0]} nodes"
            raise UsageError(cause, f"Give one that can: --workers {unfilled[0]}")
        return teams


@command(FleetRunOptions)
def fleet_run(options: FleetRunOptions) -> int:
    """Measure every node of a cluster: one exclusive Slurm job on each, with its own run file in the shared folder.

    Takes the options of `torchmark run`. One small task on a node of each kind finds out first whether it sees the
    folder and has torchmark. The jobs continue when this command is stopped.

    Examples:
      torchmark fleet run --folder /shared/fleet           the quick suite on every node
      torchmark fleet run mlp matmul --nodes 4 --time 30m
      torchmark fleet run mnist-ddp-mlp --together 1,2,4 --workers 4,8,16
      torchmark fleet run mlp --sbatch=--account=lab --setup 'module load python'
      torchmark fleet run mlp --engine local --nodes 2     to try it on this machine
      torchmark fleet run --resume /shared/fleet           what is missing, again
    """
    if options.resume:
        return _resume(options, FleetFolder(options.resume))
    engine, teams = ENGINES[options.engine](), options.teams
    for size, workers in teams.items():  # report mistakes before anything is submitted; only nodes know their devices
        team = dataclasses.replace(options, axes={**options.axes, "workers": tuple(map(str, workers))})
        select(team, size, "node:1" if size > 1 else None)
    if not teams:
        select(options)
    folder = FleetFolder(options.folder or Path(DEFAULT_FOLDER))
    if sum(map(bool, (options.count, options.each_kind, teams))) > 1:
        raise UsageError("--nodes, --each-kind and --together contradict each other", "Give one of them")
    count = options.count or max(teams, default=None)
    nodes = engine.nodes(count, partition=options.partition, constraint=options.constraint, nodelist=options.nodelist)
    if not nodes:
        raise UsageError("there are no nodes", "See what `sinfo` says, or name another --partition")
    if teams:
        rest = _run_arguments(leave_out="workers")
        threads = [] if options.axes.get("threads") else ["--threads", str(equal_threads(nodes, teams))]
        arguments = {size: [*rest, "--workers", ",".join(map(str, each)), *threads] for size, each in teams.items()}
        tasks = together(nodes, arguments, options.label)
    else:
        chosen = choose(nodes, options.count, options.each_kind)
        tasks = one_each(chosen, _run_arguments(), options.label, options.names)
    python, created = options.python or sys.executable, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    terms = Terms(options.engine, options.partition, options.time_s, options.sbatch, python, options.setup)
    if not options.dry_run:
        folder.prepare()
    return _start(OpenFleet(folder, Fleet(created, terms, tasks), engine), tasks, nodes, options)


def _resume(options: FleetRunOptions, folder: FleetFolder) -> int:
    context, source = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    given = {name for name in context.params if context.get_parameter_source(name) == source}
    changes = {"time_s": options.time_s, "options": options.sbatch, "python": options.python, "setup": options.setup}
    if given - {*changes, "resume", "sbatch", "no_probe", "trusted", "detach", "dry_run", "format"}:
        fix = "Leave all out but --time, --sbatch, --python, --setup, --no-probe, --trust-folder, --detach and --format"
        raise UsageError("--resume continues a fleet, whose options cannot be changed", fix)
    fleet = folder.load()
    terms = replace(fleet.terms, **{name: value for name, value in changes.items() if value})
    opened = OpenFleet(folder, replace(fleet, terms=terms))
    missing = [each.task for each in opened.look() if each.state != "done" and each.state not in UNDER_WAY]
    return _start(opened, missing, opened.nodes() if missing and not options.dry_run else (), options)


def _start(opened: OpenFleet, tasks: Sequence[Task], nodes: Sequence[Node], options: FleetRunOptions) -> int:
    folder, fleet, engine = opened.folder, opened.fleet, opened.engine
    described = [
        f"{task.label}: {' '.join(('torchmark run', *task.arguments))}, on {' and '.join(task.nodes)}" for task in tasks
    ]
    status = f"torchmark fleet status {folder.path}"
    if options.dry_run:
        emit("\n".join(described) or "nothing is missing")
        return EXIT_FINE
    if tasks:
        _check_trust(folder, fleet.terms, described, options.trusted)
        needed = {name for task in tasks for name in task.nodes}
        usable = [node for node in nodes if node.name in needed and node.obstacle is None]
        if usable and not options.no_probe:
            with noted("") as progress:
                jobs.try_nodes(engine, folder, fleet.terms, usable, progress.note)
        folder.keep(fleet)
        jobs.submit(engine, folder, fleet.terms, tasks, nodes)
    if options.detach:
        hint(f"Submitted. Follow it: {status}")
        return EXIT_FINE
    try:
        follow(opened)
    except KeyboardInterrupt:
        hint(f"The jobs continue. Follow them: {status}")
        hint(f"To end them: torchmark fleet cancel {folder.path}")
        raise
    statuses = opened.look()
    code, states = _print_gathered(statuses, options.format), {each.state for each in statuses}
    if states <= {"done"}:
        return code
    hint(f"Not everything was measured. See why: {status}")
    longer = " with more --time" if "time-limit" in states else ""
    hint(f"To continue{longer}: torchmark fleet run --resume {folder.path}")
    return EXIT_COULD_NOT_RUN


def _check_trust(folder: FleetFolder, terms: Terms, described: Sequence[str], trusted: bool) -> None:
    """Ask first if others can change the folder: they decide what runs as this user."""
    why = folder.distrust()
    if why is None or trusted:
        return
    cause = f"{why}, who could make this fleet run anything"
    lines = f"{cause}. It would run:", *terms.setup, f"{terms.python} -m torchmark", *terms.options, *described
    answer = confirm("\n  ".join(map(clean, lines)), "Run it?")
    if answer is None:
        own = f"make this one yours (chown, then chmod -R go-w {folder.path})"
        raise FleetError(cause, f"Start the fleet in a folder of your own, {own}, or trust them: --trust-folder")
    if not answer:
        raise FleetError("nothing was started", "To run it without being asked: --trust-folder")


def _give_up(opened: OpenFleet, statuses: Sequence[TaskStatus]) -> bool:
    """Cancel what would wait forever: nothing runs, and all that waits needs nodes that take no jobs."""
    if any(each.state == "running" for each in statuses):
        return False
    obstacles = {node.name: node.obstacle for node in opened.nodes() if node.obstacle}
    waiting = [each.task for each in statuses if each.state in UNDER_WAY]
    reasons = [next((obstacles[name] for name in task.nodes if name in obstacles), None) for task in waiting]
    for task, reason in zip(waiting, reasons, strict=True) if all(reasons) else ():
        jobs.cancel(opened.engine, opened.folder, [task], reason)
    return all(reasons)


def _run_arguments(leave_out: str = "") -> list[str]:
    context, default = click.get_current_context(), click.core.ParameterSource.DEFAULT
    written: list[str] = []
    for parameter in FORWARDED:
        name, kind, long = parameter.name or "", parameter.type, max(parameter.opts, key=len)
        value = context.params[name]
        if name == leave_out or context.get_parameter_source(name) == default:
            continue
        if isinstance(parameter, click.Argument):
            written += value
        elif value is True:
            written.append(long)
        else:
            for each in value if isinstance(value, tuple) else (value,):
                text = str(Path(each).absolute()) if isinstance(kind, click.Path) else str(each)
                if kind in (opt.DURATION, opt.SHARE):
                    text = f"{each:.9f}".rstrip("0").rstrip(".") + ("s" if kind is opt.DURATION else "")
                written += [long, text]
    return written


def follow(opened: OpenFleet) -> None:
    pause_s, last_answer, is_over = SHORTEST_S, time.monotonic(), False
    live = sys.stderr.isatty()
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, width=None if live else 200)
    known: dict[tuple[str, str], str] = {}
    with Live(console=console, auto_refresh=False, transient=True) if live else contextlib.nullcontext() as table:
        while True:
            changed = False
            try:
                statuses = opened.look()
                last_answer = time.monotonic()
                for line in [f"{each.task.label}: {text}" for each in statuses for text in _news(each, known, live)]:
                    console.print(Text(clean(line)), overflow="ellipsis", no_wrap=True)
                    changed = True
                if table:
                    table.update(_states(statuses, console), refresh=True)
                if is_over or not any(each.state in UNDER_WAY for each in statuses):
                    return
                is_over = _give_up(opened, statuses)
            except FleetError:  # a scheduler may be busy or restarting
                if time.monotonic() - last_answer > PATIENCE_S:
                    raise
            pause_s = SHORTEST_S if changed else min(pause_s * 1.5, LONGEST_S)
            time.sleep(0.0 if is_over else pause_s)


def _states(statuses: Sequence[TaskStatus], console: Console) -> Text:
    """A table of as many jobs as fit, those that run first."""
    room = max(console.height - 6, 3)
    first = sorted(statuses, key=lambda each: (each.state != "running", each.state != "waiting"))[:room]
    shown = _members([each for each in statuses if each in first], private=True)
    document = documents.status_document(_members(statuses), shown)
    return Text.from_ansi(render(document, "table", console.width, console.color_system is not None))


def _news(status: TaskStatus, known: dict[tuple[str, str], str], live: bool) -> Iterator[str]:
    """News of a job: cases that are complete or get no more processes; its state, unless a live table shows it."""
    task, run = status.task.name, status.run
    for result in run.results if run else ():
        key = task, result.case.text
        whole = len(result.processes) >= (run.header.processes if run else 1) or result.status != "ok"
        if key in known or result.status == "interrupted" or (status.state in UNDER_WAY and not whole):
            continue
        estimate = result.estimate
        figure = f"{step_time(estimate)} {margin(estimate)} {estimate.verdict}" if estimate else ""
        known[key] = figure if result.status == "ok" else result.status
        yield f"{result.case.text}: {known[key]}"
    if known.get((task, "")) != status.state:
        known[task, ""] = status.state
        if not live:
            yield f"{status.state}{f' ({status.private_reason})' if status.private_reason else ''}"
