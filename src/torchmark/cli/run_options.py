"""The options of every command that measures here and keeps a run: how to repeat it, where it goes, who comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchmark.store import check_label

Function = TypeVar("Function", bound=Callable[..., Any])

data_option = click.option(
    "--data", type=click.Path(exists=True, file_okay=False), help="Folder with the real MNIST and CIFAR-10 files."
)


def label_option(**settings: Any) -> Callable[[Function], Function]:
    """--label, refused where no run could be found by it."""
    return click.option("--label", callback=_checked_label, **settings)


def _checked_label(context: click.Context, parameter: click.Parameter, label: str | None) -> str | None:
    del context, parameter
    if label is not None:
        check_label(label)
    return label


def run_options(function: Function) -> Function:
    """--seed, --label, --out, --dry-run, --wait and --share."""
    for option in (
        click.option("--share", is_flag=True, help="Measure although another run does, too."),
        click.option("--wait", is_flag=True, help="Wait while another run measures on this machine."),
        click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing."),
        click.option(
            "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to keep it; default: with the others."
        ),
        label_option(help="A name for this run."),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**31 - 1),
            default=0,
            show_default=True,
            help="For weights, inputs and order.",
        ),
    ):
        function = option(function)
    return function
