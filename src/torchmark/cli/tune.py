"""`torchmark tune`: finds the fastest settings for a workload on this machine, and what each of them gains."""

from __future__ import annotations

import time

from torchmark.analyze.pairing import name_of
from torchmark.analyze.search import recall_tuned
from torchmark.cli.execution import exit_code_of
from torchmark.cli.machine_setup import hint_at_limits
from torchmark.cli.options import Duration, command, option
from torchmark.cli.output import emit, print_report
from torchmark.cli.study import CaseOptions, Done, StudyOptions, record_of, run_study, split_names
from torchmark.errors import EXIT_FINE
from torchmark.library import stored_ceilings
from torchmark.measure.cases import split_settings
from torchmark.records import Case, Machine
from torchmark.report.tuning import tuning_document
from torchmark.report.units import factor
from torchmark.studies.tune import NUMBERS, News, Tune, TuneOptions, axes_of, combinations, variations

EXAMPLES = """\b
Examples:
  torchmark tune resnet50                          what makes it fastest here?
  torchmark tune bert-encode -p batch=4 --keep dtype    ... in float32?
  torchmark tune mlp --also batch=256,512          a larger batch is allowed, too
  torchmark tune mlp --also threads=1..4 --keep compile
  torchmark tune mlp/train:batch=64@cpu/float32    one case, as results print it
  torchmark tune my_model.py:build --input 'float32[8,3,224,224]'
"""


class TuneArguments(CaseOptions, StudyOptions):
    keep: tuple[str, ...] = option(
        "--keep", multiple=True, metavar="NAME,…", help="Hold a setting as it is: dtype, compile, threads, …"
    )
    also: tuple[str, ...] = option(
        "--also", multiple=True, metavar="NAME=V,…", help="More values to try, of any setting or parameter."
    )
    budget_s: float = option("--budget", type=Duration(), default="10m", help="Time for all, at most.")
    timeout_s: float = option("--timeout", type=Duration(), default="10m", help="For one answer.")


@command(TuneArguments, epilog=EXAMPLES)
def tune(options: TuneArguments) -> int:
    """Find the fastest settings for a workload on this machine.

    Number formats, layout, torch.compile, threads and more are tried against each other in rounds that all share; only
    what computes the right numbers takes part. The winner is confirmed against the default in fresh processes.
    """
    began = time.monotonic()
    keep, also = split_names(options.keep), split_settings(options.also)

    def chosen(case: Case, machine: Machine) -> TuneOptions:
        return record_of(
            TuneOptions, options, case=case, axes=axes_of(case, machine, keep, also), hold=keep, added=also
        )

    def prepare() -> Tune:
        machine = options.look()
        return Tune(chosen(options.find_case(machine), machine), machine, stored_ceilings(machine), began)

    case = options.find_case()  # report mistakes before anything slow is done
    if options.dry_run:
        emit(_describe(chosen(case, _unknown_machine())))
        return EXIT_FINE
    return run_study(options, prepare, _show, _announce)


def _unknown_machine() -> Machine:
    """For a plan that measures nothing: what is known of the machine without looking at it."""
    import psutil

    cores = psutil.cpu_count(logical=False) or 1
    return Machine("", cores, psutil.cpu_count() or cores, 0, "", "")


def _describe(options: TuneOptions) -> str:
    case, axes = options.case, options.axes
    rest = [name for name in axes if name not in NUMBERS]
    tried = [case, *combinations(case, axes, NUMBERS), *variations(case, axes, rest)]
    lines = [each.text for each in tried]
    return "\n".join([*lines, "", f"{len(lines)} configurations to begin with; what helps is then combined"])


def _announce(news: News) -> str:
    name = name_of(news.case, news.default)
    if news.event == "failed":
        return f"{name}: {news.reason}"
    best = f"{name}, {factor(news.gain)}"
    return f"best so far: {best}" if news.event == "leads" else f"measuring it again against the default: {best}"


def _show(done: Done[Tune]) -> int:
    run = done.run
    if run.tuning is None:  # it was stopped before the default was measured
        return EXIT_FINE
    print_report(tuning_document(run, recall_tuned(run)), done.format)
    if done.format == "table":
        hint_at_limits(run)
    return exit_code_of(run)
