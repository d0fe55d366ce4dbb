"""`torchmark check`: whether run files are sound, from what stands in them and beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from torchmark.cli.output import emit, format_option
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, StoreError, UsageError

_EPILOG = """\b
Examples:
  torchmark check last
  torchmark check result-from-somebody.jsonl
  torchmark check lab                              every run file in a folder
  torchmark check lab/*.jsonl --format json
"""


@click.command("check", epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@format_option
def command(files: tuple[str, ...], format: str) -> int:  # noqa: A002
    """Check whether run files are sound; exit code 1 if anything is odd.

    A file is well-formed where every line can be read and the checksum is right; consistent where its figures follow
    from its raw samples and everything in it fits; corroborated where at least three files of the same device and
    software agree. No level proves that a figure is true. FILE may be anything that names a run, or a folder of runs.
    """
    from torchmark.cli.progress import ProgressLine
    from torchmark.cli.soundness import FileCheck, check_files
    from torchmark.report.soundness import render_soundness
    from torchmark.store.places import is_folder

    progress, checks = ProgressLine(), []
    found = dict(each for file in files for each in _files(file))
    for number, (name, path) in enumerate(found.items(), 1):
        progress.note(f"checking {name} ({number} of {len(found)})")
        checks.append(check := FileCheck(name, path))
        try:
            check.run()
        except StoreError as error:
            if len(found) == 1:
                raise
            check.add(error.cause)  # the others are checked all the same
    progress.clear()
    reports = check_files(checks)
    emit(render_soundness(reports, format, brief=any(map(is_folder, files))))
    return EXIT_CHECK_FAILED if any(report.flaws for report in reports) else EXIT_FINE


def _files(text: str) -> list[tuple[str, Path]]:
    """The run file that is meant, or all those in a folder, with the name of each."""
    from torchmark.store.places import find_run, is_folder

    if not is_folder(text):
        return [(text, find_run(text))]
    found = sorted(Path(text).glob("*.jsonl"))
    if not found:
        raise UsageError(f"there are no run files in {text}", "Run files end with .jsonl")
    return [(str(path), path) for path in found]
