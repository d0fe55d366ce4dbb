"""`torchmark compare`: runs and published figures side by side, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from torchmark.cli.gates import allow_option, gate_code
from torchmark.cli.output import emit, format_option, say, terminal_width, use_color
from torchmark.cli.values import Share
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError

if TYPE_CHECKING:
    from torchmark.analyze.comparison import Comparison

_EPILOG = """\b
Examples:
  torchmark compare last~1 last                     before against after
  torchmark compare last 3090 'M1 CPU'              with published machines
  torchmark compare last m1-chips                   with all of a publication
  torchmark compare last --by device                the GPU against the CPU
  torchmark compare last --by transfer              what per-step copies cost
  torchmark compare last~1 last --fail-if-slower 5%   exit 1 where it is
"""


@click.command("compare", epilog=_EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="RUN...")
@click.option("--by", metavar="WHAT", help="Compare what differs in this: device, dtype, compile, transfer, batch, …")
@click.option("--fail-if-slower", "share", type=Share(), help="Exit 1 where it is slower by more than this, or gone.")
@allow_option
@format_option
def command(names: tuple[str, ...], by: str | None, share: float | None, allow: bool, format: str) -> int:  # noqa: A002
    """Compare RUNs case by case: each later one with the first.

    Only equal work is compared, and what else differs is named. With one RUN, --by compares inside it: each device with
    the CPU, each dtype with float32, each count of workers with one. A RUN is a file, `last`, `last~1`, a publication
    such as `m1-chips`, a label, the beginning of an id, or a published machine such as `3090` or `M1 CPU`.
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
    return _conclude(comparisons, share, len(comparisons) == len(runs), allow)


def _conclude(comparisons: Sequence[Comparison], share: float | None, inside: bool, allow: bool) -> int:
    """The exit code, with what a gate says on stderr."""
    paired = any(comparison.pairs for comparison in comparisons)
    failed = any(each.kind == "failed" for comparison in comparisons for each in comparison.unpaired)
    code = _pass_gate(comparisons, share, inside, allow) if share is not None and (paired or failed) else EXIT_FINE
    if not paired and not failed:
        say("torchmark: nothing could be compared: no case has a partner")
    return code if code or paired else EXIT_NOTHING_MEASURED


def _pass_gate(comparisons: Sequence[Comparison], share: float, inside: bool, allow: bool) -> int:
    from torchmark.analyze.gates import gate_runs
    from torchmark.report.gates import complaints_of, gate_lines

    gate = gate_runs(comparisons, share, inside)
    for line in gate_lines(gate, complaints_of(gate)):
        say(f"torchmark: {line}")
    return gate_code(gate.word, allow)
