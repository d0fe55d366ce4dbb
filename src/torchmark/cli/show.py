"""`torchmark show`, `runs` and `export`: a stored run as it was printed, the list of runs, a run as a file to share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchmark.cli.options import FILE, FormatOptions, Options, PriceOptions, argument, command, flag, option
from torchmark.cli.output import emit, headline_of, say, terminal_width, use_color
from torchmark.errors import UsageError
from torchmark.report.text import clean

if TYPE_CHECKING:
    from torchmark.records import Run, RunHeader

_RUNS_HELP = "A RUN of any command is an id or its beginning, a label, `last`, `last~1`, a publication, or a file."


@command(FormatOptions, epilog=_RUNS_HELP)
def runs(options: FormatOptions) -> None:
    """List the stored runs, newest first."""
    from torchmark.report import render
    from torchmark.report.listing import listing_document
    from torchmark.store import home, scan_runs

    problems: list[str] = []

    def headers() -> Iterator[RunHeader]:
        for run in scan_runs():
            if run.header:
                yield run.header
            problems.extend([run.problem] if run.problem else [])

    text = render(listing_document(headers(), problems), options.format, terminal_width(), use_color())
    emit(text or f"No runs in {home()}. Measure one with `torchmark run`.")


_SHOW_EXAMPLES = """\b
Examples:
  torchmark show last
  torchmark show last~1 --case mlp/train
  torchmark show nightly --details
  torchmark show 3f9c --samples --format json
  torchmark show last --price-per-hour 2.50
  torchmark show m1-chips
  torchmark show 'm1-chips/M1 Ultra GPU'
"""


class ShowOptions(PriceOptions, FormatOptions):
    run: str = argument()
    case: str | None = option("--case", metavar="TEXT", help="Only cases whose text contains TEXT, in full.")
    details: bool = flag("Every case in full.")
    samples: bool = flag("With the raw samples: drawn in a table, as numbers in json and jsonl.")


@command(ShowOptions, epilog=_SHOW_EXAMPLES)
def show(options: ShowOptions) -> None:
    """Show a stored RUN.

    RUN is a file, `last`, `last~1`, a publication or one of its machines, a label, or the beginning of an id.
    """
    from torchmark.report import render
    from torchmark.report.details import details_document
    from torchmark.store import load_runs

    is_table, width, color = options.format == "table", terminal_width(), use_color()
    found = load_runs(options.run, samples=options.samples, repeats=options.format == "csv", local=is_table)
    if options.case is not None:
        found = _only(found, options.case)
    if is_table and (options.details or options.samples or options.case is not None):
        emit(render(details_document(found, options.prices), options.format, width, color))
    else:
        emit(_render(found, options))


def _render(found: Sequence[Run], options: ShowOptions) -> str:
    from torchmark.publications import find_publication
    from torchmark.report import render
    from torchmark.report.publication import publication_document

    width, color = terminal_width(), use_color()
    if len(found) == 1:
        return render(found[0], options.format, width, color, options.prices, headline_of(found[0], options.run))
    if options.prices:
        raise UsageError(f"{options.run} has several machines, and a price is that of one", "Name one of them")
    publication = find_publication(options.run)
    title = " · ".join(part for part in (options.run, publication.title, str(publication.year or "")) if part)
    power = ", ".join(f"{figure.machine} {figure.printed}" for figure in publication.of_kind("power"))
    about = [publication.about, *([f"Peak power: {power}."] if power else [])]
    return render(publication_document(found, title, about), options.format, width, color)


def _only(found: Sequence[Run], case: str) -> tuple[Run, ...]:
    """The runs with this very case, or else with all cases that contain the text."""
    from msgspec.structs import replace

    from torchmark.errors import UnknownName

    known = [result.case.text for run in found for result in run.results]
    wanted = {case} & set(known) or {text for text in known if case in text}
    if not wanted:
        raise UnknownName("case", case, known)
    left = [replace(run, results=tuple(each for each in run.results if each.case.text in wanted)) for run in found]
    return tuple(run for run in left if run.results)


_EXPORT_EXAMPLES = """\b
Examples:
  torchmark export last --show            every byte that would leave; writes nothing
  torchmark export last -o result.jsonl
  torchmark export nightly                into the current folder, named after the run
"""


class ExportOptions(Options):
    run: str = argument()
    out: Path | None = option("-o", "--out", type=FILE, help="The new file; default: named after the run.")
    show: bool = flag("Print every byte that leaves; without -o, write nothing.")


@command(ExportOptions, epilog=_EXPORT_EXAMPLES)
def export(options: ExportOptions) -> None:
    """Write a RUN to a file that can be shared.

    It holds models, versions, settings, times and the label that was given to the run; no names of hosts or people, no
    paths, addresses or environment. Its reader can verify with `torchmark check` that it arrived whole.
    """
    from torchmark.report.text import escape_json
    from torchmark.store import find_run, read_header, shareable_lines, write_export

    path = find_run(options.run)
    if options.show:
        for line in shareable_lines(path):
            emit(escape_json(line.decode()))
    if options.out or not options.show:
        target = options.out or Path(f"torchmark-{re.sub(r'[^A-Za-z0-9-]', '-', read_header(path).id)[:80]}.jsonl")
        size = write_export(path, target)
        say(f"Wrote {clean(str(target))}, {size} bytes: torchmark export {options.run} --show prints them")
