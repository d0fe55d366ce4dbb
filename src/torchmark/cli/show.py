"""`torchmark show`: a stored run as it was printed, a publication, or some of their cases in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from torchmark.cli.headlines import headline_of
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.prices import price_options, prices_of
from torchmark.errors import UsageError

if TYPE_CHECKING:
    from torchmark.analyze.money import Prices
    from torchmark.records import Run

_EPILOG = """\b
Examples:
  torchmark show last
  torchmark show last~1 --case mlp/train
  torchmark show nightly --details
  torchmark show 3f9c --samples --format json
  torchmark show last --price-per-hour 2.50
  torchmark show m1-chips
  torchmark show 'm1-chips/M1 Ultra GPU'
"""


@click.command("show", epilog=_EPILOG)
@click.argument("run")
@click.option("--case", "case", metavar="TEXT", help="Only the cases whose text has TEXT in it, in full.")
@click.option("--details", is_flag=True, help="Every case in full.")
@click.option("--samples", is_flag=True, help="With the raw samples: drawn in a table, as numbers in json and jsonl.")
@price_options
@format_option
def command(
    run: str,
    case: str | None,
    details: bool,
    samples: bool,
    price_per_hour: float | None,
    watt_price: float | None,
    format: str,  # noqa: A002
) -> None:
    """Show a stored RUN.

    RUN is a file, `last`, `last~1`, a publication or one of its machines, a label, or the beginning of an id.
    """
    from torchmark.report.details import render_details
    from torchmark.report.text import Drawn
    from torchmark.store import load_runs

    found = load_runs(run, samples=samples, repeats=format == "csv", local=format == "table")
    prices = prices_of(price_per_hour, watt_price)
    if case is not None:
        found = _only(found, case)
    if format == "table" and (details or samples or case is not None):
        named, width, color = len(found) > 1, terminal_width(), use_color()
        emit(Drawn("\n".join(render_details(each, width, color, named, prices) for each in found)))
    else:
        emit(_render(found, run, format, prices))


def _render(runs: Sequence[Run], name: str, format: str, prices: Prices | None) -> str:  # noqa: A002
    from torchmark.publications import find_publication
    from torchmark.report import render
    from torchmark.report.machines import render_machines

    if len(runs) == 1:
        headline = headline_of(runs[0], name)
        return render(runs[0], format, terminal_width(), use_color(), prices, headline)
    if prices:
        raise UsageError(f"{name} has several machines, and a price is that of one", "Name one of them")
    publication = find_publication(name)
    title = " · ".join(part for part in (name, publication.title, str(publication.year or "")) if part)
    power = ", ".join(f"{figure.machine} {figure.printed}" for figure in publication.of_kind("power"))
    about = [publication.about, *([f"Peak power: {power}."] if power else [])]
    return render_machines(runs, [title, *about], format, terminal_width(), use_color())


def _only(runs: Sequence[Run], case: str) -> tuple[Run, ...]:
    """The runs with the cases that were asked for: the very one, else all that hold the text."""
    from msgspec.structs import replace

    from torchmark.errors import UnknownName

    known = [result.case.text for run in runs for result in run.results]
    wanted = {case} & set(known) or {text for text in known if case in text}
    if not wanted:
        raise UnknownName("case", case, known)
    found = [replace(run, results=tuple(each for each in run.results if each.case.text in wanted)) for run in runs]
    return tuple(run for run in found if run.results)
