"""`torchmark runs`: the runs that are stored here, newest first."""

from __future__ import annotations

import click

from torchmark.cli.output import emit, format_option, terminal_width, use_color


@click.command(
    "runs",
    epilog="A RUN of any command is an id or its beginning, a label, `last`, `last~1`, a publication, or a file.",
)
@format_option
def command(format: str) -> None:  # noqa: A002
    """List the runs that are stored here, newest first."""
    from torchmark.report.listing import render_listing
    from torchmark.store import home, list_runs

    stored = list_runs()
    headers = [run.header for run in stored if run.header]
    problems = [run.problem for run in stored if run.problem]
    if not stored and format == "table":
        emit(f"No runs in {home()}. Measure one with `torchmark run`.")
        return
    emit(render_listing(headers, format, terminal_width(), use_color(), problems))
