"""`torchmark runs`: the runs that are stored here, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from torchmark.cli.output import emit, format_option, terminal_width, use_color

if TYPE_CHECKING:
    from torchmark.records import RunHeader


@click.command(
    "runs",
    epilog="A RUN of any command is an id or its beginning, a label, `last`, `last~1`, a publication, or a file.",
)
@format_option
def command(format: str) -> None:  # noqa: A002
    """List the runs that are stored here, newest first."""
    from torchmark.report.listing import render_listing
    from torchmark.store import home, scan_runs

    problems: list[str] = []

    def headers() -> Iterator[RunHeader]:
        for run in scan_runs():
            if run.header:
                yield run.header
            problems.extend([run.problem] if run.problem else [])

    text = render_listing(headers(), format, terminal_width(), use_color(), problems)
    emit(text or f"No runs in {home()}. Measure one with `torchmark run`.")
