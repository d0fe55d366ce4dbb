"""`torchmark fleet`: runs on many machines through a cluster's own scheduler.

`fleet run` is one `torchmark run` on every node of a cluster, or one that several nodes share. It takes the options of
`torchmark run`, checks them here, and writes them out again for the nodes. While jobs run, results are shown as they
come in, and below them the state of every node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import click
from msgspec.structs import replace
from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchmark.cli import options as opt
from torchmark.cli.options import FormatOptions, Options, argument, command, flag, option, several
from torchmark.cli.output import confirm, emit, hint, print_report
from torchmark.cli.progress import noted
from torchmark.cli.run import PlanOptions, select
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_NOTHING_MEASURED, FleetError, UsageError
from torchmark.fleet import jobs
from torchmark.fleet.folder import UNDER_WAY, Fleet, FleetFolder, JobOutcome, Node, Task, Terms
from torchmark.fleet.jobs import Engine, Observer, TaskStatus, choose, equal_threads, one_each, together
from torchmark.fleet.local import Local
from torchmark.fleet.slurm import Slurm
from torchmark.measure.cases import split_values
from torchmark.report import fleet as documents
from torchmark.report import render
from torchmark.report.figures import margin, step_time
from torchmark.report.text import clean

ENGINES: dict[str, Callable[[], Engine]] = {"slurm": Slurm, "local": Local}
DEFAULT_FOLDER = "torchmark-fleet"
CANCEL_S, LOOK_S = 60.0, 0.5  # patience with jobs that are being cancelled
SHORTEST_S, LONGEST_S = 0.5, 5.0  # between two looks: schedulers are shared
PATIENCE_S = 300.0  # with a scheduler that does not answer
_RESERVED_LINES = 6  # of a terminal, for results

FORWARDED = tuple(PlanOptions.parameters())
_RESUMABLE = {"resume", "time_s", "sbatch", "python", "setup", "no_probe", "trusted", "detach", "dry_run", "format"}

_RUN_EXAMPLES = """\b
Examples:
  torchmark fleet run --folder /shared/fleet           the quick suite on every node
  torchmark fleet run mlp matmul --nodes 4 --time 30m
  torchmark fleet run --suite standard --each-kind --partition gpu
  torchmark fleet run mnist-ddp-mlp --together 1,2,4 --workers 4,8,16
  torchmark fleet run mlp --sbatch=--account=lab --setup 'module load python'
  torchmark fleet run mlp --engine local --nodes 2     to try it on this machine
  torchmark fleet run --resume /shared/fleet           what is missing, again
"""


_GATHER_EXAMPLES = """\b
Examples:
  torchmark fleet gather /shared/fleet
  torchmark fleet gather /shared/fleet --format md
  torchmark report --leaderboard /shared/fleet     the folder is one of run files
"""


class FolderOptions(Options):
    folder: Path = argument(type=click.Path(path_type=Path), default=DEFAULT_FOLDER)

    def open(self) -> tuple[FleetFolder, Fleet, Engine]:
        place = FleetFolder(self.folder)
        fleet = place.load()
        return place, fleet, ENGINES[fleet.terms.engine]()

    def look(self) -> tuple[TaskStatus, ...]:
        place, fleet, engine = self.open()
        return Observer(place, engine).look(fleet.tasks)


class StatusOptions(FolderOptions):
    names: bool = flag("With the names of the nodes.")
    format: str = option("How to print.", type=click.Choice(("table", "json")), default="table")


class GatherOptions(FormatOptions, FolderOptions):
    names: bool = flag("With the names of the nodes.")


@command(StatusOptions, epilog="\b\nExample:\n  torchmark fleet status /shared/fleet --names")
def status(options: StatusOptions) -> None:
    """Show the state of every job of the fleet in FOLDER, by default in `torchmark-fleet` right here."""
    print_report(documents.status_document(_members(options.look(), options.names, private=True)), options.format)


@command(GatherOptions, epilog=_GATHER_EXAMPLES)
def gather(options: GatherOptions) -> int:
    """Show everything that the fleet in FOLDER has measured, whether its jobs have ended or not.

    For every case and kind of node: the median over its nodes and how much they differ; then which nodes stand out
    among their peers, how training scales over nodes, and what is missing. Every run file in FOLDER is an ordinary one.
    """
    return _print_gathered(options.look(), options.format, options.names)


@command(FolderOptions, epilog="\b\nExample:\n  torchmark fleet cancel /shared/fleet")
def cancel(options: FolderOptions) -> None:
    """End the jobs of the fleet in FOLDER that wait or run. Results so far are kept, and --resume continues."""
    place, fleet, engine = options.open()
    observer = Observer(place, engine)
    open_tasks = [each.task for each in observer.look(fleet.tasks) if each.state in UNDER_WAY]
    jobs.cancel(engine, place, open_tasks)
    end = time.monotonic() + CANCEL_S
    while any(each.state in UNDER_WAY for each in observer.look(open_tasks)) and time.monotonic() < end:
        time.sleep(LOOK_S)  # so that their end is seen before the scheduler forgets it
    emit(f"cancelled {len(open_tasks)} of {len(fleet.tasks)} jobs")
    if open_tasks:
        hint(f"To continue later: torchmark fleet run --resume {options.folder}")


def _print_gathered(statuses: Sequence[TaskStatus], format: str, names: bool = False) -> int:  # noqa: A002
    """Everything that was measured, without what only this user may see."""
    print_report(documents.gathered_document(_members(statuses, names)), format)
    measured = any(result.status == "ok" for each in statuses if each.run for result in each.run.results)
    return EXIT_FINE if measured else EXIT_NOTHING_MEASURED


def _members(statuses: Sequence[TaskStatus], names: bool = False, private: bool = False) -> list[documents.Member]:
    """Tasks as records of a report; `private` adds words of schedulers and logs, which may name nodes and paths."""
    return [
        documents.Member(
            *(task.label, task.kind, task.about, each.state, each.private_reason if private else each.reason),
            *(each.measured, each.planned, len(task.nodes), task.nodes if names else (), each.run),
        )
        for each in statuses
        for task in (each.task,)
    ]


# Fleet run.


class FleetRunOptions(PlanOptions, FormatOptions):
    """Options of a run, which are forwarded; the nodes, how many share the work, and how their jobs are submitted."""

    together: tuple[str, ...] = several("One job for each N, in which N nodes share the work.", "N,…")
    folder: Path | None = option(
        "Where run files go; all nodes share it.", type=click.Path(file_okay=False, path_type=Path)
    )
    engine: Literal["slurm", "local"] = option(
        "What runs the jobs.", type=click.Choice(tuple(ENGINES)), default="slurm"
    )
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
    resume: Path | None = option("Submit what is missing.", type=click.Path(path_type=Path), metavar="FOLDER")
    trusted: bool = flag("Run jobs from a folder that other users can change.", "--trust-folder")
    detach: bool = flag("Submit and leave; `fleet status` shows the progress.")
    dry_run: bool = flag("Show nodes and commands; submit nothing.")

    @property
    def team_sizes(self) -> list[int]:
        """The counts of nodes that work together; none if each works by itself."""
        return sorted({_count(text) for text in split_values(self.together)})


@command(FleetRunOptions, name="run", epilog=_RUN_EXAMPLES)
def fleet_run(options: FleetRunOptions) -> int:
    """Measure every node of a cluster: one exclusive Slurm job on each, with its own run file in the shared folder.

    Takes the options of `torchmark run`. One small task on a node of each kind finds out first whether it sees the
    folder and has torchmark. The jobs continue when this command is stopped.
    """
    if options.resume:
        return _resume(options, options.resume)
    sizes = options.team_sizes
    for size in sizes:  # report mistakes before anything is submitted; only a node knows which devices it has
        workers = tuple(map(str, _workers(options, size)))
        team = dataclasses.replace(options, axes={**options.axes, "workers": workers})
        select(team, size, "node:1" if size > 1 else None)
    if not sizes:
        select(options)
    folder = FleetFolder(options.folder or Path(DEFAULT_FOLDER))
    engine = ENGINES[options.engine]()
    if sum(map(bool, (options.count, options.each_kind, sizes))) > 1:
        raise UsageError("--nodes, --each-kind and --together contradict each other", "Give one of them")
    count = options.count or max(sizes, default=None)
    nodes = engine.nodes(options.partition, options.constraint, options.nodelist, count)
    if not nodes:
        raise UsageError("there are no nodes", "See what `sinfo` says, or name another --partition")
    if sizes:
        tasks = together(nodes, sizes, _team_arguments(options, nodes), options.label)
    else:
        chosen = choose(nodes, options.count, options.each_kind)
        tasks = one_each(chosen, _plain_arguments(), options.label, options.names)
    python = options.python or sys.executable
    terms = Terms(options.engine, options.partition, options.time_s, options.sbatch, python, options.setup)
    fleet = Fleet(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), terms, tasks)
    if not options.dry_run:
        folder.prepare()
    return _start(engine, folder, fleet, tasks, nodes, options)


def _resume(options: FleetRunOptions, path: Path) -> int:
    """Submit the tasks again that are neither done nor under way; a run that had begun is resumed."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    if {name for name in context.params if context.get_parameter_source(name) == source} - _RESUMABLE:
        raise UsageError(
            "--resume continues a fleet with its own options, which cannot be changed",
            "Leave everything out but --time, --sbatch, --python, --setup, --no-probe, --trust-folder, --detach "
            "and --format",
        )
    folder = FleetFolder(path)
    fleet = folder.load()
    changes = {"time_s": options.time_s, "options": options.sbatch, "python": options.python, "setup": options.setup}
    terms = replace(fleet.terms, **{name: value for name, value in changes.items() if value})
    fleet = replace(fleet, terms=terms)
    engine = ENGINES[terms.engine]()
    statuses = Observer(folder, engine).look(fleet.tasks)
    missing = [each.task for each in statuses if each.state != "done" and each.state not in UNDER_WAY]
    nodes = _nodes_of(engine, fleet) if missing and not options.dry_run else ()
    return _start(engine, folder, fleet, missing, nodes, options)


def _nodes_of(engine: Engine, fleet: Fleet) -> tuple[Node, ...]:
    """The nodes in their present state, without those that were taken out of the cluster."""
    count = len({name for task in fleet.tasks for name in task.nodes})
    return engine.nodes(partition=fleet.terms.partition, count=count)


def _start(
    engine: Engine,
    folder: FleetFolder,
    fleet: Fleet,
    tasks: Sequence[Task],
    nodes: Sequence[Node],
    options: FleetRunOptions,
) -> int:
    runs = [(each, " ".join(("torchmark run", *each.arguments))) for each in tasks]
    described = [f"{task.label}: {run}, on {' and '.join(task.nodes)}" for task, run in runs]
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
        hint(f"Submitted. Follow it: torchmark fleet status {folder.path}")
        return EXIT_FINE
    observer = Observer(folder, engine)
    try:
        follow(lambda: observer.look(fleet.tasks), lambda statuses: _give_up(engine, folder, fleet, statuses))
    except KeyboardInterrupt:
        hint(f"The jobs continue. Follow them: torchmark fleet status {folder.path}")
        hint(f"To end them: torchmark fleet cancel {folder.path}")
        raise
    statuses = observer.look(fleet.tasks)
    code = _print_gathered(statuses, options.format)
    if any(each.state != "done" for each in statuses):
        longer = " with more --time" if any(each.state == "time-limit" for each in statuses) else ""
        hint(f"Not everything was measured. See why: torchmark fleet status {folder.path}")
        hint(f"To continue{longer}: torchmark fleet run --resume {folder.path}")
        return EXIT_COULD_NOT_RUN
    return code


def _check_trust(folder: FleetFolder, terms: Terms, described: Sequence[str], trusted: bool) -> None:
    """Users who can change the folder decide what runs as this user: ask first if there may be others."""
    why = folder.distrust()
    if why is None or trusted:
        return
    lines = (*terms.setup, f"{terms.python} -m torchmark", *terms.options, *described)
    would = "\n".join(f"  {clean(line)}" for line in lines)
    answer = confirm(f"{why}, who could make this fleet run anything. It would run:\n{would}", "Run it?")
    if answer is None:
        raise FleetError(
            f"{why}, who could make this fleet run anything",
            f"Start the fleet in a folder of your own, make this one yours (chown, then chmod -R go-w {folder.path}), "
            "or trust them: --trust-folder",
        )
    if not answer:
        raise FleetError("nothing was started", "To run it without being asked: --trust-folder")


def _give_up(engine: Engine, folder: FleetFolder, fleet: Fleet, statuses: Sequence[TaskStatus]) -> bool:
    """If nothing runs any more, and all that waits does so for nodes that take no jobs, cancel it: it would wait
    forever."""
    if any(each.state == "running" for each in statuses):
        return False
    obstacles = {node.name: node.obstacle for node in _nodes_of(engine, fleet)}
    waiting = [each.task for each in statuses if each.state in UNDER_WAY]
    stuck: list[tuple[Task, JobOutcome | None]] = [
        (task, next((why for name in task.nodes if (why := obstacles.get(name))), None)) for task in waiting
    ]
    if not all(why for _, why in stuck):
        return False
    for task, why in stuck:
        jobs.cancel(engine, folder, [task], why)
    return True


# The options of `torchmark run`.


def _plain_arguments(leave_out: str = "") -> list[str]:
    """What was given to this command, as `torchmark run` takes it."""
    context = click.get_current_context()
    written: list[str] = []
    for parameter in FORWARDED:
        name = parameter.name or ""
        value = context.params[name]
        if name == leave_out:
            continue
        if isinstance(parameter, click.Argument):
            written += value
        elif context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT:
            long = max(parameter.opts, key=len)
            values = value if isinstance(value, tuple) else (value,)
            written += [long] if value is True else [part for each in values for part in (long, _text(parameter, each))]
    return written


def _text(parameter: click.Parameter, value: Any) -> str:
    if parameter.type in (opt.DURATION, opt.SHARE):
        return f"{value:.9f}".rstrip("0").rstrip(".") + "s" * (parameter.type is opt.DURATION)
    return str(Path(value).absolute()) if isinstance(parameter.type, click.Path) else str(value)


def _team_arguments(options: FleetRunOptions, nodes: Sequence[Node]) -> Callable[[int], list[str]]:
    """The same for a team of nodes: the counts of workers that it can share out, with equal threads."""
    workers = {size: _workers(options, size) for size in options.team_sizes}
    rest = _plain_arguments(leave_out="workers")
    threads = [] if options.axes.get("threads") else ["--threads", str(equal_threads(nodes, workers))]
    return lambda size: [*rest, "--workers", ",".join(map(str, workers[size])), *threads]


def _workers(options: FleetRunOptions, size: int) -> list[int]:
    """Workers are counted on all nodes together; by default each node has one."""
    given = [_count(text) for text in split_values(options.axes.get("workers", ()))]
    fitting = [count for count in given or [size] if count % size == 0]
    if not fitting:
        fix = f"Give one that can: --workers {size}"
        raise UsageError(f"no number of workers in --workers can be shared out among {size} nodes", fix)
    return fitting


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        raise UsageError(f"'{text}' is not a number of nodes or workers", "Write whole numbers: 1,2,4")
    return int(text)


# Progress.


def follow(look: Callable[[], tuple[TaskStatus, ...]], give_up: Callable[[Sequence[TaskStatus]], bool]) -> None:
    """Show the state of the jobs until none waits or runs, or `give_up` has cancelled the rest."""
    pause_s, last_answer = SHORTEST_S, time.monotonic()
    live = sys.stderr.isatty()  # on a terminal a live table, elsewhere plain lines
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, width=None if live else 200)
    screen = Live(console=console, auto_refresh=False, transient=True) if live else contextlib.nullcontext()
    with screen as table:
        board = _Board(console, table)
        while True:
            try:
                statuses = look()
                last_answer = time.monotonic()
                changed = board.show(statuses)
                if not any(each.state in UNDER_WAY for each in statuses):
                    return
                if give_up(statuses):
                    board.show(look())
                    return
            except FleetError:  # a scheduler that is busy or being restarted is no reason to abandon its jobs
                changed = False
                if time.monotonic() - last_answer > PATIENCE_S:
                    raise
            pause_s = SHORTEST_S if changed else min(pause_s * 1.5, LONGEST_S)
            time.sleep(pause_s)


class _Board:
    """Writes to stderr: each result once, and the states of all jobs, as a live table or a line for each change."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._printed: set[tuple[str, str]] = set()
        self._states: dict[str, str] = {}

    def show(self, statuses: Sequence[TaskStatus]) -> bool:
        """Returns whether anything was new."""
        news = [f"{each.task.label}: {text}" for each in statuses for text in self._news(each)]
        for line in news:
            self._console.print(Text(clean(line)), overflow="ellipsis", no_wrap=True)
        if self._live:  # as many jobs as the terminal has room for, those that run first
            room = max(self._console.height - _RESERVED_LINES, 3)
            first = sorted(statuses, key=lambda each: (each.state != "running", each.state != "waiting"))[:room]
            shown = _members([each for each in statuses if each in first], private=True)
            document = documents.status_document(_members(statuses), shown)
            color = self._console.color_system is not None
            table = Text.from_ansi(render(document, "table", self._console.width, color))
            self._live.update(table, refresh=True)
        return bool(news)

    def _news(self, status: TaskStatus) -> Iterator[str]:
        """Each case once all its processes have ended or nothing more will come; without a table, also the state."""
        task, run = status.task, status.run
        for result in run.results if run else ():
            key = task.name, result.case.text
            whole = len(result.processes) >= (run.header.processes if run else 1) or result.status != "ok"
            if key in self._printed or result.status == "interrupted" or (status.state in UNDER_WAY and not whole):
                continue
            self._printed.add(key)
            estimate = result.estimate
            figure = f"{step_time(estimate)} {margin(estimate)} {estimate.verdict}" if estimate else ""
            yield f"{result.case.text}: {figure if result.status == 'ok' else result.status}"
        if self._states.get(task.name) != status.state:
            self._states[task.name] = status.state
            if not self._live:
                yield f"{status.state}{f' ({status.private_reason})' if status.private_reason else ''}"
