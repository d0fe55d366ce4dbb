"""`torchmark report`: runs as a self-contained page, a picture or text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchmark import __version__
from torchmark.cli.delivery import STANDARD_OUTPUT, ChartCount, deliver
from torchmark.cli.headlines import headline_of
from torchmark.cli.output import say
from torchmark.cli.prices import price_options, prices_of
from torchmark.errors import StoreError, UsageError

if TYPE_CHECKING:
    from torchmark.analyze.money import Prices
    from torchmark.records import Run

PAGE, CARDS, TEXTS = "html", ("svg", "png"), ("md", "csv", "json")
FORMATS = (PAGE, *TEXTS, *CARDS)

_EPILOG = """\b
Examples:
  torchmark report                                the latest run, as a page
  torchmark report last~1 last -o upgrade.html    two runs, before and after
  torchmark report last m1-chips                  next to published machines
  torchmark report last --baseline 'm1-chips/M1 GPU'
  torchmark report -o card.png                    a score card to post
  torchmark report last --format csv              for a spreadsheet, to stdout
  torchmark report --leaderboard runs -o board.html
"""


@click.command("report", epilog=_EPILOG)
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Output file; - is stdout.")
@click.option("--baseline", metavar="RUN", help="Run to compare the others with. [default: the first]")
@click.option("--format", "format", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html.")
@click.option(
    "--leaderboard",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Rank all run files of this folder instead.",
)
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Places of a leaderboard.")
@click.option("--force", is_flag=True, help="Overwrite FILE even if it is not a report.")
@price_options
def command(
    names: tuple[str, ...],
    out: Path | None,
    baseline: str | None,
    format: str | None,  # noqa: A002
    folder: Path | None,
    top: int,
    force: bool,
    price_per_hour: float | None,
    watt_price: float | None,
) -> None:
    """Write a self-contained page about one or more RUNs.

    Without a RUN: the latest. A RUN is a file, `last`, `last~1`, a publication such as `m1-chips`, one machine of it, a
    label, or the beginning of an id.
    """
    chosen = format or _format_of(out)
    if folder:
        content: str | bytes = _leaderboard(folder, chosen, top, names, baseline)
    else:
        content = _content(names or ("last",), baseline, chosen, prices_of(price_per_hour, watt_price))
    deliver(content, out or _usual_place(chosen, folder), force)


def _format_of(out: Path | None) -> str:
    suffix = out.suffix.lower().lstrip(".") if out else ""
    if suffix and suffix not in FORMATS:
        endings = ", ".join(f".{each}" for each in FORMATS)
        raise UsageError(f"{out}: .{suffix} is not a report format", f"Use one of {endings}, or name one with --format")
    return suffix or PAGE


def _usual_place(format: str, folder: Path | None) -> Path:  # noqa: A002
    """Text is mostly wanted by another program; a page or a picture needs a file to be looked at."""
    if format in TEXTS:
        return STANDARD_OUTPUT
    name = "torchmark-leaderboard" if folder else "torchmark-report" if format == PAGE else "torchmark-card"
    return Path(f"{name}.{format}")


def _leaderboard(folder: Path, format: str, top: int, names: Sequence[str], baseline: str | None) -> str:  # noqa: A002
    if names or baseline:
        raise UsageError("a leaderboard is made of all run files of its folder", "Leave out RUN and --baseline")
    if format in CARDS:
        raise UsageError(f"a leaderboard is not drawn as {format}", f"Take one of {PAGE}, {', '.join(TEXTS)}")
    from torchmark.cli.leaderboard import leaderboard_text

    return leaderboard_text(folder, format, top)


def _content(names: Sequence[str], baseline: str | None, format: str, prices: Prices | None) -> str | bytes:  # noqa: A002
    runs = _load(names, samples=format == PAGE)
    against = _load_baseline(baseline) if baseline else None
    if format in CARDS:
        return _card(runs, against, format)
    if against:
        runs = runs if against.header.id in {run.header.id for run in runs} else [*runs, against]
    if format == PAGE:
        place = next((index for index, run in enumerate(runs) if against and run.header.id == against.header.id), 0)
        return _page(runs, place, prices)
    from torchmark.report import render_all

    return render_all(runs, format, prices, [headline_of(run) for run in runs])


def _page(runs: Sequence[Run], baseline: int, prices: Prices | None) -> str:
    from torchmark.report.html import render_report

    with ChartCount(sys.stderr) as count:
        headlines = [headline_of(run) for run in runs]
        return render_report(runs, __version__, baseline, count.add, prices, headlines)


def _card(runs: Sequence[Run], baseline: Run | None, format: str) -> str | bytes:  # noqa: A002
    if len(runs) != 1:
        raise UsageError(f"a card shows one run, not {len(runs)}", "Name one, and another with --baseline if wanted")
    from torchmark.report.card import draw_png, render_card

    card = render_card(runs[0], __version__, baseline, headline_of(runs[0]))
    return draw_png(card) if format == "png" else card


def _load(names: Sequence[str], samples: bool) -> list[Run]:
    """All runs that can be read; a damaged file is named and left out, as long as another one is left."""
    from torchmark.report.text import clean
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
