"""What the commands of a fleet share: its folder, its engine, and its jobs as a report tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from torchmark.fleet.contract import Engine
    from torchmark.fleet.standing import Standing
    from torchmark.report.fleet import Member

ENGINES = ("slurm", "local")
USUAL_FOLDER = "torchmark-fleet"

Function = TypeVar("Function", bound=Callable[..., Any])


def folder_argument(function: Function) -> Function:
    """The folder of a fleet, handed over as `folder`."""
    return click.argument("folder", type=click.Path(path_type=Path), default=USUAL_FOLDER)(function)


def names_option(function: Function) -> Function:
    """Whether nodes are called by their names, handed over as `names`."""
    return click.option("--names", is_flag=True, help="With the names of the nodes.")(function)


def open_engine(name: str) -> Engine:
    """The engine of that name."""
    if name == "local":
        from torchmark.fleet.local import Local

        return Local()
    from torchmark.fleet.slurm import Slurm

    return Slurm()


def members(standings: Sequence[Standing], names: bool = False, private: bool = False) -> list[Member]:
    """Tasks as a report tells them; `private` adds what schedulers and logs say, which may name nodes and paths."""
    from torchmark.fleet.contract import shareable
    from torchmark.report.fleet import Member

    return [
        Member(
            label=each.task.label,
            kind=each.task.kind,
            about=each.task.about,
            state=each.state,
            reason=each.reason if private else shareable(each.reason),
            measured=each.measured,
            planned=each.planned,
            nodes=len(each.task.nodes),
            names=each.task.nodes if names else (),
            run=each.run,
        )
        for each in standings
    ]
