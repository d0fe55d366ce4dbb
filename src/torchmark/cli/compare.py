"""`torchmark compare`: runs and published figures side by side, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchmark.cli.options import FormatOptions, GateOptions, argument, command, option
from torchmark.cli.output import print_report, say
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError

if TYPE_CHECKING:
    from torchmark.analyze.comparison import Comparison

EXAMPLES = """\b
Examples:
  torchmark compare last~1 last                     before against after
  torchmark compare last 3090 'M1 CPU'              with published machines
  torchmark compare last m1-chips                   with all of a publication
  torchmark compare last --by device                the GPU against the CPU
  torchmark compare last --by transfer              what per-step copies cost
  torchmark compare last~1 last --fail-if-slower 5%   exit 1 where it is
"""


class CompareOptions(GateOptions, FormatOptions):
    names: tuple[str, ...] = argument(nargs=-1, required=True, metavar="RUN...")
    by: str | None = option(
        "--by", metavar="WHAT", help="Compare what differs in this: device, dtype, compile, transfer, batch, …"
    )


@command(CompareOptions, epilog=EXAMPLES)
def compare(options: CompareOptions) -> int:
    """Compare RUNs case by case: each later one with the first.

    Only equal work is compared, and what else differs is named. With one RUN, --by compares inside it: each device with
    the CPU, each dtype with float32, each count of workers with one. A RUN is a file, `last`, `last~1`, a publication
    such as `m1-chips`, a label, the beginning of an id, or a published machine such as `3090` or `M1 CPU`.
    """
    from torchmark.analyze.comparison import compare_all, compare_within
    from torchmark.analyze.pairing import join_machines
    from torchmark.report.comparison import comparison_document, place
    from torchmark.store import load_runs

    runs = [run for name in options.names for run in load_runs(name)]
    if options.by and len(options.names) == 1:
        runs = join_machines(runs)
        comparisons = compare_within(runs, options.by)
    elif len(runs) == 1:
        raise UsageError(
            f"'{options.names[0]}' is one run, and there is nothing to compare it with",
            "Name another one, or what to compare inside it with --by device, dtype, transfer, batch, …",
        )
    else:
        comparisons = compare_all(runs, options.by, [place(index) for index in range(len(runs))])
    print_report(comparison_document(comparisons, runs), options.format)
    return _exit_code(comparisons, options, is_within=len(comparisons) == len(runs))


def _exit_code(comparisons: Sequence[Comparison], options: CompareOptions, is_within: bool) -> int:
    is_paired = any(comparison.pairs for comparison in comparisons)
    has_failed = any(each.kind == "failed" for comparison in comparisons for each in comparison.unpaired)
    code = EXIT_FINE
    if options.limit is not None and (is_paired or has_failed):
        from torchmark.analyze.comparison import gate_runs
        from torchmark.report.comparison import complaints_of, gate_lines

        gate = gate_runs(comparisons, options.limit, is_within)
        for line in gate_lines(gate, complaints_of(gate)):
            say(f"torchmark: {line}")
        code = options.gate_code(gate.word)
    if not is_paired and not has_failed:
        say("torchmark: nothing could be compared: no case has a partner")
    return code if code or is_paired else EXIT_NOTHING_MEASURED
