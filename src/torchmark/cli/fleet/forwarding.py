"""The options of `torchmark run` that a fleet passes on to its nodes, checked here and written out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from torchmark.cli.planning import check_options
from torchmark.cli.run import command as run_command
from torchmark.cli.values import Duration, Share
from torchmark.errors import UsageError
from torchmark.fleet.contract import Node
from torchmark.fleet.tasks import equal_threads
from torchmark.measure.parameters import split_values

# The nodes, the file and the terminal are the fleet's own business.
_OWN = {"nodes", "rendezvous", "label", "out", "resumed", "watch", "dry_run", "wait", "share", "format"}
FORWARDED = tuple(parameter for parameter in run_command.params if parameter.name not in _OWN)
_ALONE = {"nodes": 1, "rendezvous": None, "watch": False}
_SOMEWHERE = "node:1"


def check_run(options: dict[str, Any]) -> None:
    """Tell mistakes before anything is submitted; what a node has of devices, only the node can tell."""
    for size in team_sizes(options):
        workers = _workers(options, size)
        meeting = {"nodes": size, "rendezvous": _SOMEWHERE if size > 1 else None, "watch": False}
        check_options(options | meeting | {"workers": tuple(map(str, workers))})
    if not options["together"]:
        check_options(options | _ALONE)


def team_sizes(options: dict[str, Any]) -> list[int]:
    """The counts of nodes that are to work together; none where each works by itself."""
    return sorted({_count(text) for text in split_values(options["together"])})


def plain_arguments(options: dict[str, Any]) -> list[str]:
    """What was given, as `torchmark run` takes it."""
    context = click.get_current_context()
    written: list[str] = []
    for parameter in FORWARDED:
        value = options[parameter.name or ""]
        given = context.get_parameter_source(parameter.name or "") != click.core.ParameterSource.DEFAULT
        if given or (value and isinstance(parameter, click.Argument)):
            written += _written(parameter, value)
    return written


def team_arguments(options: dict[str, Any], nodes: Sequence[Node]) -> Callable[[int], list[str]]:
    """The same for a team of so many nodes: the counts of workers that it can share out, with equal threads."""
    workers = {size: _workers(options, size) for size in team_sizes(options)}
    rest = plain_arguments(options | {"workers": ()})
    threads = [] if options["threads"] else ["--threads", str(equal_threads(nodes, workers))]
    return lambda size: [*rest, "--workers", ",".join(map(str, workers[size])), *threads]


def _workers(options: dict[str, Any], size: int) -> list[int]:
    """Workers are counted on all nodes together; without any given, each node has one."""
    given = [_count(text) for text in split_values(options["workers"])] or team_sizes(options)
    fitting = [count for count in given if count % size == 0]
    if not fitting:
        raise UsageError(
            f"no number of workers in --workers can be shared out among {size} nodes",
            f"Give one that can: --workers {size}",
        )
    return fitting if options["workers"] else [size]


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        raise UsageError(f"'{text}' is no number of nodes or workers", "Write whole numbers: 1,2,4")
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
