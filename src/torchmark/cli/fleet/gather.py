"""`torchmark fleet gather`: all that a fleet measured in one table, and which nodes stand out."""

from __future__ import annotations

from pathlib import Path

import click

from torchmark.cli.fleet.engines import folder_argument, members, names_option, open_engine
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED

_EPILOG = """\b
Examples:
  torchmark fleet gather /shared/fleet
  torchmark fleet gather /shared/fleet --format md
  torchmark report --leaderboard /shared/fleet     the folder is one of run files
"""


@click.command("gather", epilog=_EPILOG)
@folder_argument
@names_option
@format_option
def command(folder: Path, names: bool, format: str) -> int:  # noqa: A002
    """Show all that the fleet in FOLDER has measured, whether its jobs have ended or not.

    For every case and kind of node the median over its nodes and how far they are apart; then which nodes stand out
    among their peers, how training scales over nodes, and what is missing. Every run file in FOLDER is an ordinary one.
    """
    from torchmark.fleet.plan import FleetFolder
    from torchmark.fleet.standing import Observer
    from torchmark.report.fleet import gather, render_gathered

    place = FleetFolder(folder)
    fleet = place.load()
    standings = Observer(place, open_engine(fleet.terms.engine)).look(fleet.tasks)
    found = gather(members(standings, names))
    emit(render_gathered(found, format, terminal_width(), use_color()))
    measured = any(result.status == "ok" for each in standings if each.run for result in each.run.results)
    return EXIT_FINE if measured else EXIT_NOTHING_MEASURED
