"""`torchmark report`: runs as a self-contained page, a picture or text; the leaderboard of a folder of run files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchmark import __version__
from torchmark.cli.options import EXISTING_FOLDER, PriceOptions, argument, command, flag, option
from torchmark.cli.output import emit, headline_of, say
from torchmark.cli.progress import ProgressLine
from torchmark.errors import StoreError, UsageError
from torchmark.report.text import clean
from torchmark.report.units import size
from torchmark.store.files import write_whole

if TYPE_CHECKING:
    from torchmark.analyze.efficiency import Prices
    from torchmark.records import Run

PAGE, CARDS, TEXTS = "html", ("svg", "png"), ("md", "csv", "json")
FORMATS = (PAGE, *TEXTS, *CARDS)
STANDARD_OUTPUT = Path("-")
MANY = 500  # files that take more than a moment to read
_HEAD_BYTES = 4096  # the start of a file, in which a report says that it is one

EXAMPLES = """\b
Examples:
  torchmark report                                the latest run, as a page
  torchmark report last~1 last -o upgrade.html    two runs, before and after
  torchmark report last m1-chips                  next to published machines
  torchmark report last --baseline 'm1-chips/M1 GPU'
  torchmark report -o card.png                    a score card to post
  torchmark report last --format csv              for a spreadsheet, to stdout
  torchmark report --leaderboard runs -o board.html
"""


class ReportOptions(PriceOptions):
    names: tuple[str, ...] = argument(nargs=-1, metavar="[RUN]...")
    out: Path | None = option(
        "-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Output file; - is stdout."
    )
    baseline: str | None = option(
        "--baseline", metavar="RUN", help="Run to compare the others with; default: the first."
    )
    format: str | None = option(
        "--format", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html."
    )
    leaderboard: str | None = option(
        "--leaderboard", type=EXISTING_FOLDER, help="Rank all run files of this folder instead."
    )
    top: int = option("--top", type=click.IntRange(1, 1000), default=10, help="Places of a leaderboard.")
    force: bool = flag("Overwrite FILE even if it is not a report.")


@command(ReportOptions, epilog=EXAMPLES)
def report(options: ReportOptions) -> None:
    """Write a self-contained page about one or more RUNs.

    Without a RUN: the latest. A RUN is a file, `last`, `last~1`, a publication such as `m1-chips`, one machine of it, a
    label, or the beginning of an id.
    """
    format_ = options.format or _format_of(options.out)
    if options.leaderboard:
        content: str | bytes = _leaderboard(options, format_)
    else:
        content = _content(options, format_)
    _deliver(content, options.out or _usual_place(format_, bool(options.leaderboard)), options.force)


def _format_of(out: Path | None) -> str:
    suffix = out.suffix.lower().lstrip(".") if out else ""
    if suffix and suffix not in FORMATS:
        endings = ", ".join(f".{each}" for each in FORMATS)
        raise UsageError(f"{out}: .{suffix} is not a report format", f"Use one of {endings}, or name one with --format")
    return suffix or PAGE


def _usual_place(format_: str, is_leaderboard: bool) -> Path:
    """Text is mostly wanted by another program; a page or a picture is viewed from a file."""
    if format_ in TEXTS:
        return STANDARD_OUTPUT
    name = "torchmark-leaderboard" if is_leaderboard else "torchmark-report" if format_ == PAGE else "torchmark-card"
    return Path(f"{name}.{format_}")


def _content(options: ReportOptions, format_: str) -> str | bytes:
    runs = _load(options.names or ("last",), samples=format_ == PAGE)
    baseline = _load_baseline(options.baseline) if options.baseline else None
    if format_ in CARDS:
        return _card(runs, baseline, format_)
    ids = [run.header.id for run in runs]
    if baseline and baseline.header.id not in ids:
        runs, ids = [*runs, baseline], [*ids, baseline.header.id]
    if format_ == PAGE:
        return _page(runs, ids.index(baseline.header.id) if baseline else 0, options.prices)
    from torchmark.report import render
    from torchmark.report.run import runs_document

    return render(runs_document(runs, options.prices, [headline_of(run) for run in runs]), format_)


def _page(runs: Sequence[Run], baseline: int, prices: Prices | None) -> str:
    from torchmark.report import render
    from torchmark.report.page import page_document

    progress, number, headlines = ProgressLine(), count(1), [headline_of(run) for run in runs]

    def drawn() -> None:
        progress.note(f"drawing charts: {next(number)}")

    try:
        return render(page_document(runs, __version__, baseline, drawn, prices, headlines), PAGE)
    finally:
        progress.clear()


def _card(runs: Sequence[Run], baseline: Run | None, format_: str) -> str | bytes:
    if len(runs) != 1:
        raise UsageError(f"a card shows one run, not {len(runs)}", "Name one, and another with --baseline if wanted")
    from torchmark.report.card import draw_png, render_card

    card = render_card(runs[0], __version__, baseline, headline_of(runs[0]))
    return draw_png(card) if format_ == "png" else card


def _load(names: Sequence[str], samples: bool) -> list[Run]:
    """All runs that can be read. A damaged file is named and left out, unless nothing else is left."""
    from torchmark.store import load_runs

    runs: list[Run] = []
    faults: list[StoreError] = []
    for name in names:
        try:
            runs += load_runs(name, samples=samples)
        except StoreError as error:
            faults.append(error)
    if faults and not runs:
        raise faults[0]
    for fault in faults:
        say(clean(f"torchmark: left out: {fault}"))
    return runs


def _load_baseline(name: str) -> Run:
    from torchmark.store import load_runs

    runs = load_runs(name)
    if len(runs) != 1:
        labels = ", ".join(f"'{run.header.label or run.header.id}'" for run in runs)
        raise UsageError(f"'{name}' names {len(runs)} machines, and a baseline is one", f"Name one of {labels}")
    return runs[0]


def _leaderboard(options: ReportOptions, format_: str) -> str:
    if options.names or options.baseline:
        raise UsageError("a leaderboard is made of all run files of its folder", "Leave out RUN and --baseline")
    if format_ in CARDS:
        raise UsageError(f"a leaderboard is not drawn as {format_}", f"Take one of {PAGE}, {', '.join(TEXTS)}")
    from torchmark.analyze.machines import Board, Entry, Tally, order_boards, rank_boards
    from torchmark.report import render
    from torchmark.report.leaderboard import Source, leaderboard_document
    from torchmark.store.index import ask_folder

    folder, tally, progress = Path(options.leaderboard or ""), Tally(), ProgressLine()

    def show(done: int, total: int) -> None:
        if done < total and total >= MANY:
            progress.note(f"reading run files: {done:,} of {total:,}")

    def rank(entries: Iterator[Entry]) -> tuple[Board, ...]:
        return order_boards(rank_boards(entries, options.top, tally))

    boards, found = ask_folder(folder, Entry, rank, show, _why_unsound)
    progress.clear()
    if not found.files:
        raise UsageError(
            f"there are no run files in {folder}", "Name a folder with the .jsonl files of `torchmark run`"
        )
    if not boards:
        why = found.problems[0] if found.problems else "No case in them was measured"
        raise StoreError(f"there is nothing to rank in the {found.files:,} run files of {folder}", why)
    source = Source(found.files, found.extracts, found.problems)
    return render(leaderboard_document(boards, source, __version__, tally.overall(options.top)), format_)


def _why_unsound(path: Path) -> str:
    """Why `torchmark check` rejects a file; empty if it does not. Raw samples, most of its bytes, are left out."""
    from torchmark.cli.check import FileCheck

    flaws = FileCheck(path.name, path, samples=False).run().flaws
    if not flaws:
        return ""
    line = f"line {flaws[0].line}, " if flaws[0].line else ""
    more = f" (and {len(flaws) - 1} more)" if len(flaws) > 1 else ""
    return f"it fails the check: {line}{': '.join(filter(None, (flaws[0].place, flaws[0].cause)))}{more}"


def _deliver(content: str | bytes, out: Path, force: bool) -> None:
    """Write the report, and report on stderr where it is and how large."""
    if out == STANDARD_OUTPUT:
        if isinstance(content, str):
            emit(content)
        elif sys.stdout.isatty():
            raise UsageError("a picture cannot be shown in a terminal", "Write it to a file: --out card.png")
        else:
            sys.stdout.buffer.write(content)
        return
    if not force:
        _check_replaceable(out)
    whole = content.encode() if isinstance(content, str) else content
    try:
        if out.exists() and not out.is_file():  # a pipe or a device cannot be replaced
            out.write_bytes(whole)
        else:
            write_whole(out, [whole])
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}", "Name another place with --out") from error
    say(f"wrote {clean(str(out))} ({size(len(whole))})")


def _check_replaceable(out: Path) -> None:
    """A report or card may be replaced; any other file is kept."""
    if not out.is_file():
        return
    from torchmark.report.html import is_own_page

    try:
        with out.open("rb") as file:
            beginning = file.read(_HEAD_BYTES)
    except OSError as error:
        raise StoreError(f"cannot read {out}: {error.strerror}", "Name another place with --out") from error
    if beginning and not is_own_page(beginning):
        raise UsageError(f"{out} exists and is not a report", "Name another file, or add --force")
