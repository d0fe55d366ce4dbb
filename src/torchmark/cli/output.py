"""What the commands share on their way out: the --format option, the width and colour of the terminal, printing.

Everything printed may hold foreign text: `emit`, `say` and `hint` leave nothing in it that a terminal would obey.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from textwrap import fill
from typing import Any, TypeVar

import click

from torchmark.errors import StoreError
from torchmark.report import FORMATS
from torchmark.report.text import printable

Function = TypeVar("Function", bound=Callable[..., Any])


def format_option(function: Function) -> Function:
    """The option that every command which prints results takes, handed over as `format`."""
    option = click.option(
        "--format", "format", type=click.Choice(FORMATS), default="table", help="How to print.", show_default=True
    )
    return option(function)


def terminal_width() -> int:
    """Columns to draw into; 80 where there is no terminal."""
    return max(40, shutil.get_terminal_size(fallback=(80, 24)).columns)


def say(text: str) -> None:
    """A line on stderr."""
    click.echo(printable(text), err=True)


def hint(text: str) -> None:
    """A sentence on stderr, within the width of the terminal; commands in it stay as they are typed."""
    say(fill(text, terminal_width(), break_long_words=False, break_on_hyphens=False))


def confirm(question: str) -> bool:
    """Ask the person at the terminal to agree; no where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(question)
    return click.confirm("Go on?", err=True)


def use_color() -> bool:
    """Colour is for people at a terminal who did not say no."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def emit(text: str) -> None:
    """Results go to stdout, whole."""
    text = printable(text)
    try:
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write the output: {error.strerror}", "Send it somewhere with room for it") from error
