"""Printing: results on stdout, remarks on stderr, the width and colour of the terminal, the headline of a run.

Printed text may come from other people's files: `emit`, `say` and `hint` remove control characters from it.
"""

from __future__ import annotations

import os
import shutil
import sys
from textwrap import fill
from typing import TYPE_CHECKING

import click

from torchmark.errors import StoreError
from torchmark.report.text import printable

if TYPE_CHECKING:
    from torchmark.analyze.efficiency import Prices
    from torchmark.analyze.headline import Headline
    from torchmark.records import Run
    from torchmark.report.document import Document


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
    """Ask the person at the terminal to agree; False without a terminal."""
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


def headline_of(run: Run, name: str | None = None) -> Headline | None:
    """The summary of a run, next to all published machines; `name` is what suggested commands call the run."""
    from torchmark.analyze.headline import build_headline
    from torchmark.publications import all_runs

    return build_headline(run, all_runs(), name)


def print_report(
    subject: Document | Run,
    format: str = "table",  # noqa: A002
    prices: Prices | None = None,
    headline: Headline | None = None,
) -> None:
    """Print a document, or a run, for this terminal or in another format."""
    from torchmark.report import render

    emit(render(subject, format, terminal_width(), use_color(), prices, headline))
