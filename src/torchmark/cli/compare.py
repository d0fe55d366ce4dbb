"""`torchmark compare`: runs and published figures side by side, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.values import Share
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError

if TYPE_CHECKING:
    from torchmark.analyze.comparison import Comparison

_SHOWN = 5  # cases that a message names

_EPILOG = """\b
Examples:
  torchmark compare last~1 last                     before against after
  torchmark compare last m1-chips                   beside published machines
  torchmark compare last 'm1-chips/M1 Ultra GPU'    beside one of them
  torchmark compare last --by device                the GPU against the CPU
  torchmark compare last --by transfer              what per-step copies cost
  torchmark compare last~1 last --fail-if-slower 5%   exit 1 where it is
"""


@click.command("compare", epilog=_EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="RUN...")
@click.option("--by", metavar="WHAT", help="Compare what differs in this: device, dtype, compile, transfer, batch, …")
@click.option("--fail-if-slower", "share", type=Share(), help="Exit 1 where it is slower by more than this, or gone.")
@format_option
def command(names: tuple[str, ...], by: str | None, share: float | None, format: str) -> int:  # noqa: A002
    """Compare RUNs case by case: each later one with the first.

    Only equal work is compared, and what else differs is named. With one RUN, --by compares inside it: each device with
    the CPU, each dtype with float32, each count of workers with one. A RUN is a file, `last`, `last~1`, a publication
    such as `m1-chips`, one machine of it, a label, or the beginning of an id.
    """
    from torchmark.analyze.comparison import compare_all, compare_within
    from torchmark.analyze.pairing import join_machines
    from torchmark.report.comparison import render_comparisons
    from torchmark.report.ratios import place
    from torchmark.store import load_runs

    runs = [run for name in names for run in load_runs(name)]
    if by and len(names) == 1:
        runs = join_machines(runs)
        comparisons = compare_within(runs, by)
    elif len(runs) == 1:
        raise UsageError(
            f"'{names[0]}' is one run, and there is nothing to compare it with",
            "Name another one, or what to compare inside it with --by device, dtype, transfer, batch, …",
        )
    else:
        comparisons = compare_all(runs, by, [place(index) for index in range(len(runs))])
    emit(render_comparisons(comparisons, runs, format, terminal_width(), use_color()))
    return _conclude(comparisons, share, inside=len(comparisons) == len(runs))


def _conclude(comparisons: Sequence[Comparison], share: float | None, inside: bool) -> int:
    """The exit code, and where it is not 0 the reason on stderr."""
    paired = any(comparison.pairs for comparison in comparisons)
    complaints = _complaints(comparisons, share, inside) if share is not None else []
    for text in (*complaints, *(_unjudged(comparisons) if share is not None else ())):
        click.echo(f"torchmark: {text}", err=True)
    if not paired and not any(each.kind == "failed" for comparison in comparisons for each in comparison.unpaired):
        click.echo("torchmark: nothing could be compared: no case has a partner", err=True)
        return EXIT_NOTHING_MEASURED
    if share is not None and complaints:
        return EXIT_CHECK_FAILED
    return EXIT_FINE if paired else EXIT_NOTHING_MEASURED


def _complaints(comparisons: Sequence[Comparison], share: float, inside: bool) -> list[str]:
    """What --fail-if-slower fails for. Inside one run nothing can have gone missing."""
    from torchmark.analyze.comparison import Family, find_lost, find_slower
    from torchmark.report.ratios import speed
    from torchmark.report.units import percent

    slower = [
        f"{row.name if isinstance(row, Family) else row.b.case.text} ({speed(row)})"
        for row in find_slower(comparisons, share)
    ]
    lost = [f"{each.case} ({each.reason})" for each in find_lost(comparisons) if each.kind == "failed" or not inside]
    found = {f"slower by more than {percent(share)}": slower, "failed or missing now": lost}
    return [f"{title}: {_some(names)}" for title, names in found.items() if names]


def _unjudged(comparisons: Sequence[Comparison]) -> list[str]:
    """A check that passes because it could not look must not do so in silence."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    blind = sum(pair.error is None for pair in pairs)
    return [f"{blind} of {len(pairs)} pairs have no interval, so that they could not be checked"] if blind else []


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
