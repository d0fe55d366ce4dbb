"""`torchmark fleet run`: one `torchmark run` on every node of a cluster, or one that several nodes share.

Takes the options of `torchmark run`, checks them here, and writes them out again for the nodes. While jobs run, results
are shown as they come in, and below them the state of every node.
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

from torchmark.cli.fleet import DEFAULT_FOLDER, ENGINES, any_measured, members, open_engine, print_gathered
from torchmark.cli.options import Duration, FormatOptions, Options, Share, command, flag, label_field, option
from torchmark.cli.output import emit, hint, say
from torchmark.cli.progress import ProgressLine
from torchmark.cli.run import PlanOptions, select
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_NOTHING_MEASURED, FleetError, UsageError
from torchmark.fleet.folder import UNDER_WAY, Fleet, FleetFolder, JobOutcome, Node, Task, Terms
from torchmark.fleet.jobs import (
    Engine,
    Observer,
    TaskStatus,
    cancel,
    choose,
    equal_threads,
    one_each,
    submit,
    together,
    try_nodes,
)
from torchmark.measure.cases import split_values
from torchmark.report import render
from torchmark.report.figures import margin, step_time
from torchmark.report.fleet import status_document
from torchmark.report.text import clean

SHORTEST_S, LONGEST_S = 0.5, 5.0  # between two looks: schedulers are shared
PATIENCE_S = 300.0  # with a scheduler that does not answer
_RESERVED_LINES = 6  # of a terminal, for results

FORWARDED = tuple(PlanOptions.parameters())
_RESUMABLE = {"resume", "time_s", "sbatch", "python", "setup", "no_probe", "trusted", "detach", "dry_run", "format"}

_EXAMPLES = """\b
Examples:
  torchmark fleet run --folder /shared/fleet           the quick suite on every node
  torchmark fleet run mlp matmul --nodes 4 --time 30m
  torchmark fleet run --suite standard --each-kind --partition gpu
  torchmark fleet run mnist-ddp-mlp --together 1,2,4 --workers 4,8,16
  torchmark fleet run mlp --sbatch=--account=lab --setup 'module load python'
  torchmark fleet run mlp --engine local --nodes 2     to try it on this machine
  torchmark fleet run --resume /shared/fleet           what is missing, again
"""


class TeamOptions(PlanOptions):
    """Options of a run, which are forwarded, and how many nodes share the work."""

    together: tuple[str, ...] = option(
        "--together", multiple=True, metavar="N,…", help="One job for each N, in which N nodes share the work."
    )

    @property
    def team_sizes(self) -> list[int]:
        """The counts of nodes that work together; none if each works by itself."""
        return sorted({_count(text) for text in split_values(self.together)})


class FleetOptions(Options):
    """The nodes, and how their jobs are submitted."""

    folder: Path | None = option(
        "--folder", type=click.Path(file_okay=False, path_type=Path), help="Where run files go; all nodes share it."
    )
    engine: Literal["slurm", "local"] = option(
        "--engine", type=click.Choice(ENGINES), default="slurm", help="What runs the jobs."
    )
    count: int | None = option("--nodes", type=click.IntRange(1, 4096), help="So many nodes instead of all.")
    nodelist: str | None = option("--nodelist", metavar="NAMES", help="These nodes, as Slurm writes them: node[0-3,7].")
    each_kind: bool = flag("One node of each kind.")
    partition: str | None = option(
        "--partition", metavar="NAME", help="Only nodes of this partition; default: Slurm's own default."
    )
    constraint: str | None = option(
        "--constraint", metavar="FEATURES", help="Only nodes with these features: a&b, a|b."
    )
    time_s: float | None = option("--time", type=Duration(), help="For one job, at most; default: the partition's.")
    sbatch: tuple[str, ...] = option(
        "--sbatch", multiple=True, metavar="OPTION", help="Another option for sbatch: --account=lab."
    )
    python: str | None = option(
        "--python", metavar="PATH", help="The interpreter on the nodes; default: the one that runs this."
    )
    setup: tuple[str, ...] = option(
        "--setup", multiple=True, metavar="LINE", help="Shell to run on a node first: 'module load python'."
    )
    no_probe: bool = flag("Do not try one node of each kind first.")
    label: str | None = label_field("A name for these runs; each adds its node.")
    names: bool = flag("Label runs with the names of nodes instead of kind and number.")
    resume: Path | None = option(
        "--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Submit what is missing."
    )
    trusted: bool = flag("Run jobs from a folder that other users can change.", "--trust-folder")
    detach: bool = flag("Submit and leave; `fleet status` shows the progress.")
    dry_run: bool = flag("Show nodes and commands; submit nothing.")

    @property
    def terms(self) -> Terms:
        python = self.python or sys.executable
        return Terms(self.engine, self.partition, self.time_s, self.sbatch, python, self.setup)


class FleetRunOptions(TeamOptions, FleetOptions, FormatOptions):
    """The options of `torchmark fleet run`."""


@command(FleetRunOptions, name="run", epilog=_EXAMPLES)
def fleet_run(options: FleetRunOptions) -> int:
    """Measure every node of a cluster: one exclusive Slurm job on each, with its own run file in the shared folder.

    Takes the options of `torchmark run`. One small task on a node of each kind finds out first whether it sees the
    folder and has torchmark. The jobs continue when this command is stopped.
    """
    if options.resume:
        return _resume(options, options.resume)
    _check_run(options)
    folder = FleetFolder(options.folder or Path(DEFAULT_FOLDER))
    engine = open_engine(options.engine)
    nodes, tasks = _plan(engine, options)
    if options.dry_run:
        emit("\n".join(map(_describe, tasks)))
        return EXIT_FINE
    folder.prepare()
    fleet = Fleet(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), options.terms, tasks)
    return _start(engine, folder, fleet, tasks, nodes, options)


def _plan(engine: Engine, options: FleetRunOptions) -> tuple[Sequence[Node], tuple[Task, ...]]:
    """All nodes, and the task of each."""
    sizes = options.team_sizes
    if sum(map(bool, (options.count, options.each_kind, sizes))) > 1:
        raise UsageError("--nodes, --each-kind and --together contradict each other", "Give one of them")
    count = options.count or max(sizes, default=None)
    nodes = engine.nodes(options.partition, options.constraint, options.nodelist, count)
    if not nodes:
        raise UsageError("there are no nodes", "See what `sinfo` says, or name another --partition")
    if sizes:
        return nodes, together(nodes, sizes, _team_arguments(options, nodes), options.label)
    chosen = choose(nodes, options.count, options.each_kind)
    return nodes, one_each(chosen, _plain_arguments(), options.label, options.names)


def _describe(task: Task) -> str:
    run = " ".join(("torchmark run", *task.arguments))
    return f"{task.label}: {run}, on {' and '.join(task.nodes)}"


def _resume(options: FleetRunOptions, path: Path) -> int:
    """Submit the tasks again that are neither done nor under way; a run that had begun is resumed."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    given = {name for name in context.params if context.get_parameter_source(name) == source}
    if given - _RESUMABLE:
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
    engine = open_engine(fleet.terms.engine)
    statuses = Observer(folder, engine).look(fleet.tasks)
    missing = [each.task for each in statuses if each.state != "done" and each.state not in UNDER_WAY]
    if options.dry_run:
        emit("\n".join(map(_describe, missing)) or "nothing is missing")
        return EXIT_FINE
    nodes = _nodes_of(engine, fleet) if missing else ()
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
    """Submit tasks once the folder is trusted and its nodes were tried; then follow the fleet to its end."""
    if tasks:
        _check_trust(folder, fleet.terms, tasks, options.trusted)
        needed = {name for task in tasks for name in task.nodes}
        usable = [node for node in nodes if node.name in needed and node.obstacle is None]
        if usable and not options.no_probe:
            progress = ProgressLine()
            try:
                try_nodes(engine, folder, fleet.terms, usable, progress.note)
            finally:
                progress.clear()
        folder.keep(fleet)
        submit(engine, folder, fleet.terms, tasks, nodes)
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
    return _conclude(observer.look(fleet.tasks), folder, options.format)


def _check_trust(folder: FleetFolder, terms: Terms, tasks: Sequence[Task], trusted: bool) -> None:
    """Users who can change the folder decide what runs as this user: ask first if there may be others."""
    why = folder.distrust()
    if why is None or trusted:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise FleetError(
            f"{why}, who could make this fleet run anything",
            f"Start the fleet in a folder of your own, make this one yours (chown, then chmod -R go-w {folder.path}), "
            "or trust them: --trust-folder",
        )
    say(f"{why}, who could make this fleet run anything. It would run:")
    for line in (*terms.setup, f"{terms.python} -m torchmark", *terms.options, *map(_describe, tasks)):
        say(f"  {clean(line)}")
    if not click.confirm("Run it?", err=True):
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
        cancel(engine, folder, [task], why)
    return True


def _conclude(statuses: Sequence[TaskStatus], folder: FleetFolder, format: str) -> int:  # noqa: A002
    print_gathered(statuses, format)
    if any(each.state != "done" for each in statuses):
        longer = " with more --time" if any(each.state == "time-limit" for each in statuses) else ""
        hint(f"Not everything was measured. See why: torchmark fleet status {folder.path}")
        hint(f"To continue{longer}: torchmark fleet run --resume {folder.path}")
        return EXIT_COULD_NOT_RUN
    return EXIT_FINE if any_measured(statuses) else EXIT_NOTHING_MEASURED


# The options of `torchmark run`.


def _check_run(options: TeamOptions) -> None:
    """Report mistakes before anything is submitted; only a node knows which devices it has."""
    for size in options.team_sizes:
        workers = tuple(map(str, _workers(options, size)))
        team = dataclasses.replace(options, axes={**options.axes, "workers": workers})
        select(team, size, "node:1" if size > 1 else None)
    if not options.together:
        select(options)


def _plain_arguments(leave_out: str = "") -> list[str]:
    """What was given to this command, as `torchmark run` takes it."""
    context = click.get_current_context()
    written: list[str] = []
    for parameter in FORWARDED:
        name = parameter.name or ""
        value = context.params[name]
        is_given = context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT
        if name != leave_out and (is_given or (value and isinstance(parameter, click.Argument))):
            written += _written(parameter, value)
    return written


def _team_arguments(options: TeamOptions, nodes: Sequence[Node]) -> Callable[[int], list[str]]:
    """The same for a team of nodes: the counts of workers that it can share out, with equal threads."""
    workers = {size: _workers(options, size) for size in options.team_sizes}
    rest = _plain_arguments(leave_out="workers")
    threads = [] if options.axes.get("threads") else ["--threads", str(equal_threads(nodes, workers))]
    return lambda size: [*rest, "--workers", ",".join(map(str, workers[size])), *threads]


def _workers(options: TeamOptions, size: int) -> list[int]:
    """Workers are counted on all nodes together; by default each node has one."""
    given = [_count(text) for text in split_values(options.axes.get("workers", ()))]
    fitting = [count for count in given or [size] if count % size == 0]
    if not fitting:
        raise UsageError(
            f"no number of workers in --workers can be shared out among {size} nodes",
            f"Give one that can: --workers {size}",
        )
    return fitting


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        raise UsageError(f"'{text}' is not a number of nodes or workers", "Write whole numbers: 1,2,4")
    return int(text)


def _written(parameter: click.Parameter, value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(parameter, click.Argument):
        return [*values]
    name = max(parameter.opts, key=len)
    if value is True:
        return [name]
    return [part for each in values if each is not None for part in (name, _text(parameter, each))]


def _text(parameter: click.Parameter, value: Any) -> str:
    if isinstance(parameter.type, Duration | Share):
        unit = "s" if isinstance(parameter.type, Duration) else ""
        return f"{value:.9f}".rstrip("0").rstrip(".") + unit
    return str(Path(value).absolute()) if isinstance(parameter.type, click.Path) else str(value)


# Progress.


def follow(look: Callable[[], tuple[TaskStatus, ...]], give_up: Callable[[Sequence[TaskStatus]], bool]) -> None:
    """Show the state of the jobs until none waits or runs, or `give_up` has cancelled the rest."""
    pause_s, last_answer = SHORTEST_S, time.monotonic()
    with _board() as board:
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
        news = [*self._news(statuses)]
        for line in news:
            self._console.print(Text(clean(line)), overflow="ellipsis", no_wrap=True)
        if self._live:
            self._live.update(self._table(statuses), refresh=True)
        return bool(news)

    def _news(self, statuses: Sequence[TaskStatus]) -> Iterator[str]:
        for each in statuses:
            label = each.task.label
            yield from (f"{label}: {text}" for text in self._results(each))
            if self._states.get(each.task.name) != each.state:
                self._states[each.task.name] = each.state
                if not self._live:
                    yield f"{label}: {each.state}{f' ({each.private_reason})' if each.private_reason else ''}"

    def _results(self, status: TaskStatus) -> Iterator[str]:
        """A case once all its processes have ended, or nothing more will come."""
        run = status.run
        for result in run.results if run else ():
            key = status.task.name, result.case.text
            whole = len(result.processes) >= (run.header.processes if run else 1) or result.status != "ok"
            if key in self._printed or result.status == "interrupted" or (status.state in UNDER_WAY and not whole):
                continue
            self._printed.add(key)
            estimate = result.estimate
            figure = f"{step_time(estimate)} {margin(estimate)} {estimate.verdict}" if estimate else ""
            yield f"{result.case.text}: {figure if result.status == 'ok' else result.status}"

    def _table(self, statuses: Sequence[TaskStatus]) -> Text:
        """As many jobs as the terminal has room for, those that run first."""
        room = max(self._console.height - _RESERVED_LINES, 3)
        first = sorted(statuses, key=lambda each: (each.state != "running", each.state != "waiting"))[:room]
        shown = members([each for each in statuses if each in first], private=True)
        document = status_document(members(statuses), shown)
        return Text.from_ansi(render(document, "table", self._console.width, self._console.color_system is not None))


@contextlib.contextmanager
def _board() -> Iterator[_Board]:
    """On a terminal a live table, elsewhere plain lines."""
    if not sys.stderr.isatty():
        yield _Board(Console(stderr=True, highlight=False, markup=False, emoji=False, width=200), None)
        return
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Board(console, live)
