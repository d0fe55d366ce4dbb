"""`torchmark report`: runs as a page, a picture or text; the leaderboard of a folder of run files."""

import struct
import sys
import zlib
from itertools import count
from pathlib import Path

import click

from torchmark import __version__
from torchmark.cli.execution import noted
from torchmark.cli.options import EXISTING_FOLDER, PATH, PriceOptions, argument, command, flag, option
from torchmark.cli.output import emit, headline_of, say
from torchmark.errors import StoreError, UsageError
from torchmark.records import Run
from torchmark.report import render
from torchmark.report.text import clean
from torchmark.report.units import size
from torchmark.store import load_runs
from torchmark.store.files import os_errors, write_whole

PAGE, CARDS, TEXTS = "html", ("svg", "png"), ("md", "csv", "json")
FORMATS = (PAGE, *TEXTS, *CARDS)
PNG_MARK = b"Software\0torchmark"  # a chunk of text that marks our cards


class ReportOptions(PriceOptions):
    names: tuple[str, ...] = argument(nargs=-1, metavar="[RUN]...")
    out: Path | None = option("Output file; - is stdout.", "-o", "--out", type=PATH, metavar="FILE")
    baseline: str | None = option("Run to compare the others with; default: the first.", metavar="RUN")
    format: str | None = option("Default: by the ending of FILE, else html.", type=click.Choice(FORMATS))
    leaderboard: str | None = option("Rank all run files of this folder instead.", type=EXISTING_FOLDER)
    top: int = option("Places of a leaderboard.", type=click.IntRange(1, 1000), default=10)
    force: bool = flag("Overwrite FILE even if it is not a report.")


@command(ReportOptions)
def report(options: ReportOptions) -> None:
    """Write a self-contained page about one or more RUNs.

    Without a RUN: the latest. A RUN is a file, `last`, `last~1`, a publication such as `m1-chips`, one machine of it, a
    label, or the beginning of an id.

    Examples:
      torchmark report                                the latest run, as a page
      torchmark report last~1 last -o upgrade.html    two runs: before and after
      torchmark report last m1-chips                  next to published machines

      torchmark report -o card.png                    a score card to post
      torchmark report last --format csv              for a spreadsheet, to stdout
      torchmark report --leaderboard runs -o board.html
    """
    suffix = options.out.suffix.lower().lstrip(".") if options.out else ""
    format_ = options.format or suffix or PAGE
    if format_ not in FORMATS:
        fix = f"Use one of {', '.join(f'.{each}' for each in FORMATS)}, or name one with --format"
        raise UsageError(f"{options.out}: .{suffix} is not a report format", fix)
    _deliver((_leaderboard if options.leaderboard else _content)(options, format_), format_, options)


def _content(options: ReportOptions, format_: str) -> str | bytes:
    runs: list[Run] = []
    faults: list[StoreError] = []
    for name in options.names or ("last",):
        try:
            runs += load_runs(name, samples=format_ == PAGE)
        except StoreError as error:
            faults.append(error)
    if not runs:
        raise faults[0]
    for fault in faults:
        say(clean(f"torchmark: left out: {fault}"))
    baselines = load_runs(options.baseline) if options.baseline else ()
    if len(baselines) > 1:
        labels = ", ".join(f"'{run.header.label or run.header.id}'" for run in baselines)
        cause = f"'{options.baseline}' names {len(baselines)} machines, and a baseline is one"
        raise UsageError(cause, f"Name one of {labels}")
    baseline = next(iter(baselines), None)
    if format_ in CARDS:
        if len(runs) != 1:
            raise UsageError(f"a card shows one run, not {len(runs)}", "Name one, and a second one with --baseline")
        from torchmark.report.headline import draw_png, render_card

        card = render_card(runs[0], __version__, baseline, headline_of(runs[0]))
        if format_ == "svg":
            return card
        png, chunk = draw_png(card), b"tEXt" + PNG_MARK
        mark = struct.pack(">I", len(PNG_MARK)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        return png[:33] + mark + png[33:]  # after the header
    if baseline and baseline.header.id not in [run.header.id for run in runs]:
        runs.append(baseline)
    headlines = [headline_of(run) for run in runs]
    if format_ != PAGE:
        from torchmark.report.run import runs_document

        return render(runs_document(runs, options.prices, headlines), format_)
    from torchmark.report.page import page_document

    first = [run.header.id for run in runs].index(baseline.header.id) if baseline else 0
    with noted("") as progress:
        numbers = count(1)

        def drawn() -> None:
            progress.note(f"drawing charts: {next(numbers)}")

        return render(page_document(runs, __version__, first, drawn, options.prices, headlines), PAGE)


def _leaderboard(options: ReportOptions, format_: str) -> str:
    if options.names or options.baseline:
        raise UsageError("a leaderboard is made of all run files of its folder", "Leave out RUN and --baseline")
    if format_ in CARDS:
        raise UsageError(f"a leaderboard is not drawn as {format_}", f"Take one of {PAGE}, {', '.join(TEXTS)}")
    from torchmark.analyze.machines import Entry, rank_boards
    from torchmark.report.machines import Source, leaderboard_document
    from torchmark.store.index import read_folder

    folder = Path(options.leaderboard or "")
    with noted("") as progress:

        def show(done: int, total: int) -> None:
            if done < total and total >= 500:  # fewer take no more than a moment
                progress.note(f"reading run files: {done:,} of {total:,}")

        entries, found = read_folder(folder, Entry, show, _why_unsound)
        boards, overall = rank_boards(entries, top=options.top)
    if not found.files:
        raise UsageError(f"there are no run files in {folder}", "Name a folder with .jsonl files of `torchmark run`")
    if not boards:
        why = next(iter(found.problems), "No case in them was measured")
        raise StoreError(f"there is nothing to rank in the {found.files:,} run files of {folder}", why)
    source = Source(found.files, found.extracts, found.problems)
    return render(leaderboard_document(boards, source, __version__, overall), format_)


def _why_unsound(path: Path) -> str:
    """Why `torchmark check` rejects a file, without its raw samples; empty if it does not."""
    from torchmark.cli.check import FileCheck

    check = FileCheck(path.name, path, samples=False)
    check.run()
    for first in check.flaws:
        line = f"line {first.line}, " if first.line else ""
        more = f" (and {len(check.flaws) - 1} more)" if len(check.flaws) > 1 else ""
        return f"it fails the check: {line}{': '.join(filter(None, (first.place, first.cause)))}{more}"
    return ""


def _deliver(content: str | bytes, format_: str, options: ReportOptions) -> None:
    """Text goes to stdout unless a file is named: other programs read it."""
    subject = "leaderboard" if options.leaderboard else "report" if format_ == PAGE else "card"
    out = options.out or Path("-" if format_ in TEXTS else f"torchmark-{subject}.{format_}")
    whole, fix = content.encode() if isinstance(content, str) else content, "Name another place with --out"
    if out == Path("-"):
        if isinstance(content, str):
            emit(content)
        elif sys.stdout.isatty():
            raise UsageError("a picture cannot be shown in a terminal", "Write it to a file: --out card.png")
        else:
            sys.stdout.buffer.write(content)
        return
    with os_errors("write", out, fix):
        if out.is_file() and not options.force:  # only a report or card may be replaced
            from torchmark.report.html import is_own_page

            with os_errors("read", out, fix), out.open("rb") as file:
                beginning = file.read(4096)
            if beginning and not is_own_page(beginning) and PNG_MARK not in beginning[:100]:
                raise UsageError(f"{out} exists and is not a report", "Name another file, or add --force")
        if out.exists() and not out.is_file():  # a pipe or a device cannot be replaced
            out.write_bytes(whole)
        else:
            write_whole(out, [whole])
    say(f"wrote {clean(str(out))} ({size(len(whole))})")
