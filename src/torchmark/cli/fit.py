"""`torchmark fit`: the largest batch that fits into memory here or into a given limit, and the most efficient one."""

from __future__ import annotations

import click

from torchmark.analyze.search import recall_fitted
from torchmark.cli.options import Bytes, Duration, command, option
from torchmark.cli.output import emit, print_report
from torchmark.cli.study import CaseOptions, Done, StudyOptions, record_of, run_study
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError
from torchmark.library import stored_ceilings
from torchmark.records import Case, Machine
from torchmark.report.fitting import fitting_document
from torchmark.report.units import memory_limit, rate, size
from torchmark.studies.fit import Fit, FitOptions, Probed, free_bytes, size_range

SIZE = click.IntRange(1, 1 << 40)
EXAMPLES = """\b
Examples:
  torchmark fit resnet50 --mode train              the largest batch that fits here
  torchmark fit resnet50 --mode train --limit 8GiB     ... on a smaller machine
  torchmark fit bert-encode --vary sequence -p batch=8
  torchmark fit mlp --most 4096                    only up to there, for the rate
  torchmark fit my_model.py:build --input 'float32[8,3,224,224]'
"""


class FitArguments(CaseOptions, StudyOptions):
    parameter: str = option("--vary", default="batch", metavar="NAME", help="The parameter to fit.")
    limit_bytes: int | None = option("--limit", type=Bytes(), help="Memory it may take: 8GiB; default: what is free.")
    step: int | None = option("--step", type=SIZE, help="How fine the answer is; default: about 3%.")
    most: int | None = option("--most", type=SIZE, help="The largest size to try.")
    budget_s: float = option("--budget", type=Duration(), default="10m", help="Time for all, at most.")
    timeout_s: float = option("--timeout", type=Duration(), default="5m", help="For one process.")


@command(FitArguments, epilog=EXAMPLES)
def fit(options: FitArguments) -> int:
    """Find the largest batch that fits into memory, and the most efficient one.

    Every size runs in a process of its own that is refused more memory than it may have: running out of it is an
    answer, not an accident. Also printed: memory as fixed plus per item, and the rate at every size.
    """
    case = options.find_case()  # report mistakes before anything slow is done
    lowest, highest = size_range(case, options.parameter)
    if options.dry_run:
        sizes = f"{options.parameter} from {lowest} to at most {min(highest, options.most or highest)}"
        emit(f"{case.text}: {sizes}, doubling, then halving what is open")
        return EXIT_FINE

    def prepare() -> Fit:
        machine = options.look()
        own = options.find_case(machine)
        limit = _limit(own, machine, options.limit_bytes)
        return Fit(record_of(FitOptions, options, case=own, limit_bytes=limit), machine, stored_ceilings(machine))

    return run_study(options, prepare, _show, _announce, then="torchmark report {} draws the curve")


def _limit(case: Case, machine: Machine, wanted: int | None) -> int | None:
    """The memory that may be used; None: all that is free on the host."""
    there = free_bytes() if case.device == "cpu" else machine.devices[0].memory_bytes
    if wanted and there and wanted > there:
        raise UsageError(
            f"{memory_limit(wanted)} is more than the {size(there)} that are here",
            "Leave --limit out, or choose a smaller one: what fits into more can only be found where there is more",
        )
    return wanted or (None if case.device == "cpu" else machine.devices[0].memory_bytes)


def _announce(news: Probed) -> str:
    probe = news.probe
    peak = size(next(reversed(probe.peaks), None))
    figure = f"{peak}, {rate(probe.rate, 'item')}" if probe.fits else probe.result.status
    return f"{news.parameter} {probe.size}{' again' if probe.tries > 1 else ''}: {figure}"


def _show(done: Done[Fit]) -> int:
    run = done.run
    assert run.fitting is not None
    fitted = recall_fitted(run)
    print_report(fitting_document(run, run.fitting.case, fitted), done.format)
    return EXIT_FINE if fitted.largest is not None else EXIT_NOTHING_MEASURED
