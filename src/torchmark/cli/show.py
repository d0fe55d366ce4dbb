"""`torchmark show`: a stored run as it was printed, or some of its cases in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchmark.cli.output import emit, format_option, terminal_width, use_color

if TYPE_CHECKING:
    from torchmark.records import Run

_EPILOG = """\b
Examples:
  torchmark show last
  torchmark show last~1 --case mlp/train
  torchmark show nightly --details
  torchmark show 3f9c --samples --format json
"""


@click.command("show", epilog=_EPILOG)
@click.argument("run")
@click.option("--case", "case", metavar="TEXT", help="Only the cases whose text has TEXT in it, in full.")
@click.option("--details", is_flag=True, help="Every case in full.")
@click.option("--samples", is_flag=True, help="With the raw samples: drawn in a table, as numbers in json and jsonl.")
@format_option
def command(run: str, case: str | None, details: bool, samples: bool, format: str) -> None:  # noqa: A002
    """Show a stored RUN.

    RUN is a file, `last`, `last~1`, a label, or the beginning of an id.
    """
    from torchmark.report import render
    from torchmark.report.details import render_details
    from torchmark.store import find_run, load

    found = load(find_run(run), samples=samples)
    if case is not None:
        found = _only(found, case)
    if format == "table" and (details or samples or case is not None):
        emit(render_details(found, terminal_width(), use_color()))
    else:
        emit(render(found, format, terminal_width(), use_color()))


def _only(run: Run, case: str) -> Run:
    """The run with the cases that were asked for: the very one, else all that hold the text."""
    from msgspec.structs import replace

    from torchmark.errors import UnknownName

    results = [result for result in run.results if result.case.text == case]
    results = results or [result for result in run.results if case in result.case.text]
    if not results:
        raise UnknownName("case", case, [result.case.text for result in run.results])
    return replace(run, results=tuple(results))
