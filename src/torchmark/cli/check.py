"""`torchmark check`: whether run files are sound, from what stands in them and beside each other."""

from __future__ import annotations

import click

from torchmark.cli.output import emit, format_option
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE

_EPILOG = """\b
Examples:
  torchmark check last
  torchmark check result-from-somebody.jsonl
  torchmark check lab/*.jsonl --format json
"""


@click.command("check", epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@format_option
def command(files: tuple[str, ...], format: str) -> int:  # noqa: A002
    """Check whether run files are sound; exit code 1 if anything is odd.

    A file is well-formed where every line can be read and the checksum is right; consistent where its figures follow
    from its raw samples and everything in it fits; corroborated where at least three files of the same device and
    software agree. No level proves that a figure is true. FILE may be anything that names a run.
    """
    from torchmark.cli.progress import ProgressLine
    from torchmark.cli.soundness import FileCheck, check_files
    from torchmark.report.soundness import render_soundness
    from torchmark.store import find_run

    progress, checks = ProgressLine(), []
    for number, file in enumerate(dict.fromkeys(files), 1):
        progress.note(f"checking {file} ({number} of {len(files)})")
        checks.append(FileCheck(file, find_run(file)).run())
    progress.clear()
    reports = check_files(checks)
    emit(render_soundness(reports, format))
    return EXIT_CHECK_FAILED if any(report.flaws for report in reports) else EXIT_FINE
