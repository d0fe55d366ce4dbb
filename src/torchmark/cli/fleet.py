"""`torchmark fleet`: runs on many machines through a cluster's own scheduler. `fleet run` is in `fleet_run`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchmark.cli import LazyGroup
from torchmark.cli.options import FormatOptions, Options, argument, command, flag, option
from torchmark.cli.output import emit, hint, print_report
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED

if TYPE_CHECKING:
    from torchmark.fleet.folder import Fleet, FleetFolder
    from torchmark.fleet.jobs import Engine, TaskStatus
    from torchmark.report.fleet import Member

ENGINES = ("slurm", "local")
DEFAULT_FOLDER = "torchmark-fleet"
PATIENCE_S, LOOK_S = 60.0, 0.5  # with jobs that are being cancelled

COMMANDS = {
    "run": ("torchmark.cli.fleet_run:fleet_run", "Measure every node, or let several train together."),
    "status": ("torchmark.cli.fleet:status", "Show the state of every job."),
    "gather": ("torchmark.cli.fleet:gather", "Show all results in one table, and which nodes stand out."),
    "cancel": ("torchmark.cli.fleet:cancel", "End the jobs that wait or run."),
}

_EXAMPLES = """\
Examples:
  torchmark fleet run --folder /shared/fleet              the quick suite on every node
  torchmark fleet run mlp --each-kind --partition gpu     one node of each kind
  torchmark fleet run mnist-ddp-mlp --together 1,2,4      how training scales over nodes
  torchmark fleet status /shared/fleet
  torchmark fleet run --resume /shared/fleet              what is missing, again
  torchmark fleet gather /shared/fleet
"""


@click.group("fleet", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES, no_args_is_help=True)
def group() -> None:
    """Measure many machines: one `torchmark run` on each node of a Slurm cluster, gathered in one folder."""


class FolderOptions(Options):
    """The folder of a fleet."""

    folder: Path = argument(type=click.Path(path_type=Path), default=DEFAULT_FOLDER)

    def open(self) -> tuple[FleetFolder, Fleet, Engine]:
        from torchmark.fleet.folder import FleetFolder

        place = FleetFolder(self.folder)
        fleet = place.load()
        return place, fleet, open_engine(fleet.terms.engine)

    def look(self) -> tuple[TaskStatus, ...]:
        """The present status of all tasks."""
        from torchmark.fleet.jobs import Observer

        place, fleet, engine = self.open()
        return Observer(place, engine).look(fleet.tasks)


class StatusOptions(FolderOptions):
    names: bool = flag("With the names of the nodes.")
    format: str = option("--format", type=click.Choice(("table", "json")), default="table", help="How to print.")


class GatherOptions(FormatOptions, FolderOptions):
    names: bool = flag("With the names of the nodes.")


@command(StatusOptions, epilog="\b\nExample:\n  torchmark fleet status /shared/fleet --names")
def status(options: StatusOptions) -> None:
    """Show the state of every job of the fleet in FOLDER, by default in `torchmark-fleet` right here."""
    from torchmark.report.fleet import status_document

    found = members(options.look(), options.names, private=True)
    print_report(status_document(found), options.format)


_GATHER_EXAMPLES = """\b
Examples:
  torchmark fleet gather /shared/fleet
  torchmark fleet gather /shared/fleet --format md
  torchmark report --leaderboard /shared/fleet     the folder is one of run files
"""


@command(GatherOptions, epilog=_GATHER_EXAMPLES)
def gather(options: GatherOptions) -> int:
    """Show everything that the fleet in FOLDER has measured, whether its jobs have ended or not.

    For every case and kind of node: the median over its nodes and how much they differ; then which nodes stand out
    among their peers, how training scales over nodes, and what is missing. Every run file in FOLDER is an ordinary one.
    """
    statuses = options.look()
    print_gathered(statuses, options.format, options.names)
    return EXIT_FINE if any_measured(statuses) else EXIT_NOTHING_MEASURED


@command(FolderOptions, epilog="\b\nExample:\n  torchmark fleet cancel /shared/fleet")
def cancel(options: FolderOptions) -> None:
    """End the jobs of the fleet in FOLDER that wait or run. Results so far are kept, and --resume continues."""
    from torchmark.fleet import jobs
    from torchmark.fleet.folder import UNDER_WAY

    place, fleet, engine = options.open()
    observer = jobs.Observer(place, engine)
    open_tasks = [each.task for each in observer.look(fleet.tasks) if each.state in UNDER_WAY]
    jobs.cancel(engine, place, open_tasks)
    end = time.monotonic() + PATIENCE_S
    while any(each.state in UNDER_WAY for each in observer.look(open_tasks)) and time.monotonic() < end:
        time.sleep(LOOK_S)  # so that their end is seen before the scheduler forgets it
    emit(f"cancelled {len(open_tasks)} of {len(fleet.tasks)} jobs")
    if open_tasks:
        hint(f"To continue later: torchmark fleet run --resume {options.folder}")


def open_engine(name: str) -> Engine:
    """The engine of that name."""
    if name == "local":
        from torchmark.fleet.local import Local

        return Local()
    from torchmark.fleet.slurm import Slurm

    return Slurm()


def print_gathered(statuses: Sequence[TaskStatus], format: str, names: bool = False) -> None:  # noqa: A002
    """Everything that was measured, without what only this user may see."""
    from torchmark.report.fleet import gather, gathered_document

    document = gathered_document(gather(members(statuses, names)))
    print_report(document, format)


def any_measured(statuses: Sequence[TaskStatus]) -> bool:
    return any(result.status == "ok" for each in statuses if each.run for result in each.run.results)


def members(statuses: Sequence[TaskStatus], names: bool = False, private: bool = False) -> list[Member]:
    """Tasks as records of a report; `private` adds words of schedulers and logs, which may name nodes and paths."""
    from torchmark.report.fleet import Member

    return [
        Member(
            label=each.task.label,
            kind=each.task.kind,
            about=each.task.about,
            state=each.state,
            reason=each.private_reason if private else each.reason,
            measured=each.measured,
            planned=each.planned,
            nodes=len(each.task.nodes),
            names=each.task.nodes if names else (),
            run=each.run,
        )
        for each in statuses
    ]
