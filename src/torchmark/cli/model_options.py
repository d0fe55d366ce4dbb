"""The options that say more about a model of the user's own, for every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from torchmark.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
_TINY_BATCH = 2


def model_options(function: Function) -> Function:
    """--input, --loss and --task; `take_model_options` turns them into parameters."""
    for option in (
        click.option("--task", metavar="TASK", help="What a config.json is built for: sequence-classification, …"),
        click.option("--loss", metavar="FILE:FUNC", help="Loss function for training; default: a mean of squares."),
        click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="Of your own model: 'float32[8,10]'."),
    ):
        function = option(function)
    return function


def take_model_options(options: dict[str, Any]) -> dict[str, Any]:
    """The same options with what these say among the parameters, where a case can carry it."""
    given = [*_inputs(options)]
    if options["loss"]:
        from torchmark.workloads.own.python import write_loss

        given.append(f"loss={write_loss(options['loss'])}")
    if options["task"]:
        given.append(f"task={options['task']}")
    if given and not (options.get("workloads") or options.get("workload")):
        raise UsageError("--input, --loss and --task are about a model of your own", "Name its file")
    return options | {"params": (*options["params"], *given)}


def _inputs(options: dict[str, Any]) -> list[str]:
    """The sizes of one row are one parameter, the number of rows is another, which can be swept."""
    if not options["inputs"]:
        return []
    from torchmark.workloads.own.shapes import read_tensor, split_batch, write_tensors

    batch, tensors = split_batch([read_tensor(typed) for typed in options["inputs"]])
    swept = any(text.partition("=")[0] == "batch" for text in options["params"])
    if swept and not batch:
        raise UsageError("the inputs do not begin with the same size", "Leave -p batch out")
    rows = [] if swept or not batch else [f"batch={_TINY_BATCH if options.get('tiny') else batch}"]
    return [*rows, f"input={write_tensors(tensors)}"]
