"""`torchmark export`: a run as a file to send around, and a look at every byte of it."""

from __future__ import annotations

import re
from pathlib import Path

import click

from torchmark.cli.output import emit, say
from torchmark.report.text import clean

_EPILOG = """\b
Examples:
  torchmark export last --show            every byte that would leave, and nothing is written
  torchmark export last -o result.jsonl
  torchmark export nightly                into the current folder, named after the run
"""


@click.command("export", epilog=_EPILOG)
@click.argument("run")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="The new file; default: named after the run."
)
@click.option("--show", is_flag=True, help="Print every byte that leaves; without -o nothing is written.")
def command(run: str, out: Path | None, show: bool) -> None:
    """Write a RUN into a file that can be sent around.

    It holds models, versions, settings, times and the label that was given to the run; no names of hosts or people, no
    paths, addresses or environment. `torchmark check` tells its reader whether it arrived whole.
    """
    from torchmark.report.text import escape_json
    from torchmark.store import find_run, read_header, shareable_lines, write_export

    path = find_run(run)
    if show:
        for line in shareable_lines(path):
            emit(escape_json(line.decode()))
    if out or not show:
        target = out or Path(f"torchmark-{re.sub(r'[^A-Za-z0-9-]', '-', read_header(path).id)[:80]}.jsonl")
        size = write_export(path, target)
        say(f"Wrote {clean(str(target))}, {size} bytes: torchmark export {run} --show prints them")
