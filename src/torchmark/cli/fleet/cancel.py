"""`torchmark fleet cancel`: ends the jobs of a fleet that wait or run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from torchmark.cli.fleet.engines import folder_argument, open_engine
from torchmark.cli.output import emit, hint

PATIENCE_S, LOOK_S = 60.0, 0.5


@click.command("cancel", epilog="\b\nExample:\n  torchmark fleet cancel /shared/fleet")
@folder_argument
def command(folder: Path) -> None:
    """End the jobs of the fleet in FOLDER that wait or run. What was measured is kept; --resume goes on from there."""
    from torchmark.fleet.contract import UNDER_WAY
    from torchmark.fleet.plan import FleetFolder
    from torchmark.fleet.standing import Observer
    from torchmark.fleet.submission import cancel

    place = FleetFolder(folder)
    fleet = place.load()
    engine = open_engine(fleet.terms.engine)
    observer = Observer(place, engine)
    open_tasks = [each.task for each in observer.look(fleet.tasks) if each.state in UNDER_WAY]
    cancel(engine, place, open_tasks)
    end = time.monotonic() + PATIENCE_S
    while any(each.state in UNDER_WAY for each in observer.look(open_tasks)) and time.monotonic() < end:
        time.sleep(LOOK_S)  # so that their end is seen before the scheduler forgets it
    emit(f"cancelled {len(open_tasks)} of {len(fleet.tasks)} jobs")
    if open_tasks:
        hint(f"To continue later: torchmark fleet run --resume {folder}")
