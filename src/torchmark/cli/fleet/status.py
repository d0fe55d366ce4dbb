"""`torchmark fleet status`: how every job of a fleet stands."""

from __future__ import annotations

from pathlib import Path

import click

from torchmark.cli.fleet.engines import folder_argument, members, names_option, open_engine
from torchmark.cli.output import emit, terminal_width, use_color


@click.command("status", epilog="\b\nExample:\n  torchmark fleet status /shared/fleet --names")
@folder_argument
@names_option
@click.option("--format", "format", type=click.Choice(("table", "json")), default="table", show_default=True)
def command(folder: Path, names: bool, format: str) -> None:  # noqa: A002
    """Show how every job of the fleet in FOLDER stands, by default in `torchmark-fleet` right here."""
    from torchmark.fleet.plan import FleetFolder
    from torchmark.fleet.standing import Observer
    from torchmark.report.fleet import render_status

    place = FleetFolder(folder)
    fleet = place.load()
    standings = Observer(place, open_engine(fleet.terms.engine)).look(fleet.tasks)
    emit(render_status(members(standings, names, private=True), format, terminal_width(), use_color()))
