"""Printing: results on stdout, remarks on stderr, without control characters from other people's files."""

import os
import shutil
import sys
from collections.abc import Iterable
from textwrap import fill

import click

from torchmark.analyze.efficiency import Prices
from torchmark.analyze.headline import Headline, build_headline
from torchmark.errors import EXIT_FINE, StoreError
from torchmark.publications import all_runs
from torchmark.records import Run
from torchmark.report import render
from torchmark.report.document import Document
from torchmark.report.text import printable


def terminal_width() -> int:
    return max(40, shutil.get_terminal_size(fallback=(80, 24)).columns)


def say(text: str) -> None:
    click.echo(printable(text), err=True)


def hint(text: str) -> None:
    """Print a sentence on stderr, within the terminal's width; commands in it are not broken."""
    indent = "  " if text.startswith("! ") else ""
    say(fill(text, terminal_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def confirm(question: str, ask: str = "Go on?") -> bool | None:
    """Ask the person at the terminal to agree; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    say(question)
    return click.confirm(ask, err=True)


def emit(text: str) -> None:
    text = printable(text)
    try:
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write the output: {error.strerror}", "Send it somewhere with room for it") from error


def emit_plan(lines: Iterable[str], rest: str) -> int:
    listed = [*lines]
    emit("\n".join([*listed, "", f"{len(listed)} {rest}"]))
    return EXIT_FINE


def headline_of(run: Run, name: str | None = None) -> Headline | None:
    """The summary of a run next to published machines; suggested commands call the run `name`."""
    return build_headline(run, all_runs(), name)


def print_report(
    subject: Document | Run, format_: str = "table", prices: Prices | None = None, headline: Headline | None = None
) -> None:
    emit(render(subject, format_, *screen(), prices, headline))


def screen() -> tuple[int, bool]:
    """Columns to draw into, and whether in colour: for people who did not refuse it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return terminal_width(), not plain
