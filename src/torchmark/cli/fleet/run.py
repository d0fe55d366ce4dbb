"""`torchmark fleet run`: one `torchmark run` on every node of a cluster, or one that several nodes share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark.cli.fleet.engines import ENGINES, USUAL_FOLDER, members, open_engine
from torchmark.cli.fleet.following import follow
from torchmark.cli.fleet.forwarding import FORWARDED, check_run, plain_arguments, team_arguments, team_sizes
from torchmark.cli.output import emit, format_option, hint, say, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.cli.run_options import label_option
from torchmark.cli.values import Duration
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_NOTHING_MEASURED, FleetError, UsageError
from torchmark.fleet.choice import choose
from torchmark.fleet.contract import UNDER_WAY, Engine, Fate, Node, Request
from torchmark.fleet.plan import Fleet, FleetFolder, Task, Terms
from torchmark.fleet.probe import probe
from torchmark.fleet.standing import Observer, Standing
from torchmark.fleet.submission import cancel, submit
from torchmark.fleet.tasks import one_each, together
from torchmark.report.fleet import gather, render_gathered
from torchmark.report.text import clean

_MAY_CHANGE = {"resumed", "time_s", "options", "python", "setup", "probing", "trusted", "detach", "dry_run", "format"}

EXAMPLES = """\b
Examples:
  torchmark fleet run --folder /shared/fleet           the quick suite on every node
  torchmark fleet run mlp matmul --nodes 4 --time 30m
  torchmark fleet run --suite standard --each-kind --partition gpu
  torchmark fleet run mnist-ddp-mlp --together 1,2,4 --workers 4,8,16
  torchmark fleet run mlp --sbatch=--account=lab --setup 'module load python'
  torchmark fleet run mlp --engine local --nodes 2     to try it on this machine
  torchmark fleet run --resume /shared/fleet           what is missing, again
"""


@click.command("run", params=[*FORWARDED], epilog=EXAMPLES)
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Where run files go; all nodes share it."
)
@click.option("--engine", type=click.Choice(ENGINES), default="slurm", show_default=True, help="Who runs the jobs.")
@click.option("--nodes", "count", type=click.IntRange(1, 4096), help="So many nodes instead of all.")
@click.option("--nodelist", metavar="NAMES", help="These nodes, as Slurm writes them: node[0-3,7].")
@click.option("--each-kind", is_flag=True, help="One node of each kind.")
@click.option("--together", multiple=True, metavar="N,…", help="One job for each N, in which N nodes share the work.")
@click.option("--partition", metavar="NAME", help="Only nodes of this partition; default: Slurm's own default.")
@click.option("--constraint", metavar="FEATURES", help="Only nodes with these features: a&b, a|b.")
@click.option("--time", "time_s", type=Duration(), help="For one job, at most; default: the partition's.")
@click.option("--sbatch", "options", multiple=True, metavar="OPTION", help="Another option for sbatch: --account=lab.")
@click.option("--python", metavar="PATH", help="The interpreter on the nodes; default: the one that runs this.")
@click.option("--setup", multiple=True, metavar="LINE", help="Shell to run on a node first: 'module load python'.")
@click.option("--no-probe", "probing", flag_value=False, default=True, help="Do not try one node of each kind first.")
@label_option(help="A name for these runs; each adds its node.")
@click.option("--names", is_flag=True, help="Label runs with the names of nodes instead of kind and number.")
@click.option("--resume", "resumed", type=click.Path(path_type=Path), metavar="FOLDER", help="Submit what is missing.")
@click.option("--trust-folder", "trusted", is_flag=True, help="Run jobs from a folder that other users can change.")
@click.option("--detach", is_flag=True, help="Submit and leave; `fleet status` tells how it goes.")
@click.option("--dry-run", is_flag=True, help="Show nodes and commands; submit nothing.")
@format_option
def command(**options: Any) -> int:
    """Measure every node of a cluster: one exclusive Slurm job on each, with its own run file in the shared folder.

    Takes the options of `torchmark run`. One small task on a node of each kind finds out first whether it sees the
    folder and has torchmark. The jobs go on when this command is stopped.
    """
    if options["resumed"]:
        return _resume(options)
    check_run(options)
    folder = FleetFolder(options["folder"] or Path(USUAL_FOLDER))
    engine = open_engine(options["engine"])
    nodes, tasks = _plan(engine, options)
    if options["dry_run"]:
        emit("\n".join(map(_describe, tasks)))
        return EXIT_FINE
    folder.prepare()
    fleet = Fleet(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), _terms(options), tasks)
    _check_trust(folder, fleet.terms, tasks, options["trusted"])
    _try_nodes(engine, folder, fleet.terms, nodes, tasks, options["probing"])
    folder.keep(fleet)
    submit(engine, folder, fleet.terms, tasks, nodes)
    return _attend(engine, folder, fleet, options)


def _plan(engine: Engine, options: dict[str, Any]) -> tuple[Sequence[Node], tuple[Task, ...]]:
    """The nodes that there are, and what each is to do."""
    sizes = team_sizes(options)
    if sum(map(bool, (options["count"], options["each_kind"], sizes))) > 1:
        raise UsageError("--nodes, --each-kind and --together say different things", "Give one of them")
    count = options["count"] or (max(sizes) if sizes else None)
    nodes = engine.nodes(Request(options["partition"], options["constraint"], options["nodelist"], count))
    if not nodes:
        raise UsageError("there are no nodes", "See what `sinfo` says, or name another --partition")
    if sizes:
        return nodes, together(nodes, sizes, team_arguments(options, nodes), options["label"])
    chosen = choose(nodes, options["count"], options["each_kind"])
    return nodes, one_each(chosen, plain_arguments(options), options["label"], options["names"])


def _terms(options: dict[str, Any]) -> Terms:
    return Terms(
        engine=options["engine"],
        partition=options["partition"],
        time_s=options["time_s"],
        options=options["options"],
        python=options["python"] or sys.executable,
        setup=options["setup"],
    )


def _describe(task: Task) -> str:
    run = " ".join(("torchmark run", *task.arguments))
    return f"{task.label}: {run}, on {' and '.join(task.nodes)}"


def _check_trust(folder: FleetFolder, terms: Terms, tasks: Sequence[Task], trusted: bool) -> None:
    """Who can change the folder decides what runs as this user: ask first where that may be somebody else."""
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


def _try_nodes(
    engine: Engine, folder: FleetFolder, terms: Terms, nodes: Sequence[Node], tasks: Sequence[Task], wanted: bool
) -> None:
    """Before anything is submitted that measures; the folder is left as it was where that is not to be."""
    needed = {name for task in tasks for name in task.nodes}
    usable = [node for node in nodes if node.name in needed and node.obstacle is None]
    if not wanted or not usable:
        return
    progress = ProgressLine()
    try:
        probe(engine, folder, terms, usable, progress.note)
    finally:
        progress.clear()


def _resume(options: dict[str, Any]) -> int:
    """Submit the tasks again that neither are done nor under way; a run that had begun goes on."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    given = [name for name in options if context.get_parameter_source(name) == source]
    if set(given) - _MAY_CHANGE:
        raise UsageError(
            "--resume goes on with what that fleet was started with, which cannot be changed",
            "Leave everything out but --time, --sbatch, --python, --setup, --no-probe, --trust-folder, --detach "
            "and --format",
        )
    folder = FleetFolder(options["resumed"])
    fleet = folder.load()
    changes = {name: options[name] for name in ("time_s", "options", "python", "setup") if options[name]}
    fleet = replace(fleet, terms=replace(fleet.terms, **changes))
    engine = open_engine(fleet.terms.engine)
    standings = Observer(folder, engine).look(fleet.tasks)
    missing = [each.task for each in standings if each.state != "done" and each.state not in UNDER_WAY]
    if options["dry_run"]:
        emit("\n".join(map(_describe, missing)) or "nothing is missing")
        return EXIT_FINE
    if missing:
        _check_trust(folder, fleet.terms, missing, options["trusted"])
        nodes = _nodes_of(engine, fleet)
        _try_nodes(engine, folder, fleet.terms, nodes, missing, options["probing"])
        folder.keep(fleet)
        submit(engine, folder, fleet.terms, missing, nodes)
    return _attend(engine, folder, fleet, options)


def _nodes_of(engine: Engine, fleet: Fleet) -> tuple[Node, ...]:
    """The nodes as they are now; one that was taken out of the cluster is not among them."""
    count = len({name for task in fleet.tasks for name in task.nodes})
    return engine.nodes(Request(partition=fleet.terms.partition, count=count))


def _attend(engine: Engine, folder: FleetFolder, fleet: Fleet, options: dict[str, Any]) -> int:
    """Show how it goes until it ends, and then everything that came of it."""
    observer = Observer(folder, engine)
    if options["detach"]:
        hint(f"Submitted. Follow it: torchmark fleet status {folder.path}")
        return EXIT_FINE
    try:
        follow(lambda: observer.look(fleet.tasks), lambda standings: _give_up(engine, folder, fleet, standings))
    except KeyboardInterrupt:
        hint(f"The jobs continue. Follow them: torchmark fleet status {folder.path}")
        hint(f"To end them: torchmark fleet cancel {folder.path}")
        raise
    standings = observer.look(fleet.tasks)
    emit(render_gathered(gather(members(standings)), options["format"], terminal_width(), use_color()))
    return _conclude(standings, folder)


def _give_up(engine: Engine, folder: FleetFolder, fleet: Fleet, standings: Sequence[Standing]) -> bool:
    """Nothing runs any more, and whatever waits does so for nodes that take no jobs: it would wait for ever."""
    waiting = [each.task for each in standings if each.state in UNDER_WAY]
    if any(each.state == "running" for each in standings):
        return False
    obstacles = {node.name: node.obstacle for node in _nodes_of(engine, fleet)}
    stuck = {task.name: next((why for name in task.nodes if (why := obstacles.get(name))), None) for task in waiting}
    if not all(stuck.values()):
        return False
    for task in waiting:
        cancel(engine, folder, [task], Fate("unavailable", stuck[task.name] or ""))
    return True


def _conclude(standings: Sequence[Standing], folder: FleetFolder) -> int:
    if any(each.state != "done" for each in standings):
        longer = " with more --time" if any(each.state == "time-limit" for each in standings) else ""
        hint(f"Not everything was measured. See why: torchmark fleet status {folder.path}")
        hint(f"To continue{longer}: torchmark fleet run --resume {folder.path}")
        return EXIT_COULD_NOT_RUN
    if not any(result.status == "ok" for each in standings if each.run for result in each.run.results):
        return EXIT_NOTHING_MEASURED
    return EXIT_FINE
