"""`torchmark replicate`: published tables replayed here as the authors measured them, with this machine as a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from torchmark.cli.execution import exit_code_of
from torchmark.cli.machine_setup import look
from torchmark.cli.options import Duration, Share, argument, command, flag, option
from torchmark.cli.output import emit, print_report
from torchmark.cli.study import Done, StudyOptions, record_of, run_study, split_names
from torchmark.errors import EXIT_FINE
from torchmark.measure.cases import check_device
from torchmark.publications import Publication, find_publication, names
from torchmark.records import Machine, parse_case
from torchmark.report.replication import replication_document
from torchmark.studies.published_tables import published_tables
from torchmark.studies.replicate import ReplicateOptions, Replication, plan_tasks

EXAMPLES = """\b
Examples:
  torchmark replicate                              all publications, within ten minutes
  torchmark replicate m1-chips                     one of them, every step of it
  torchmark replicate m1-chips --scale 0.01        a hundredth of the steps, the rest extrapolated
  torchmark replicate simple-add --steady          also the right way, and where the difference comes from
  torchmark replicate apple-silicon-bert --budget 8h --device cpu
  torchmark compare last 'm1-chips/M1 CPU'         afterwards: this machine against one of theirs
"""


class ReplicateArguments(StudyOptions):
    publications: tuple[str, ...] = argument(nargs=-1, metavar="[PUBLICATION]...")
    devices: tuple[str, ...] = option(
        "--device", multiple=True, metavar="NAME,…", help="Where; default: CPU and accelerator."
    )
    scale: float = option("--scale", type=Share(whole=True), default="1", help="Share of the steps, at least 5.")
    steady: bool = flag("Also measure the right way, and show where the difference comes from.")
    budget_s: float = option("--budget", type=Duration(), default="10m", help="For all, at most.")


@command(ReplicateArguments, epilog=EXAMPLES)
def replicate(options: ReplicateArguments) -> int:
    """Replay published benchmarks here, exactly as their authors did.

    Same steps, same timed region, same missing warm-up, same unit: each table is printed as it was published, with
    this machine as a new column. A row that cannot be run here says why.
    """
    chosen = tuple(find_publication(name) for name in options.publications or names())
    wanted = split_names(options.devices)
    for name in wanted:  # report mistakes before anything slow is done
        check_device(name)

    def replication(devices: Iterable[str]) -> ReplicateOptions:
        return record_of(ReplicateOptions, options, publications=chosen, devices=tuple(devices))

    def prepare() -> Replication:
        machine = _look(chosen, wanted)
        return Replication(replication(device.name for device in machine.devices), machine)

    if options.dry_run:
        emit(_describe(replication(wanted or ["cpu"])))
        return EXIT_FINE
    return run_study(options, prepare, partial(_show, all_devices=not wanted))


def _describe(options: ReplicateOptions) -> str:
    lines = [f"{each.publication}: {each.case.text}" for each in plan_tasks(options)]
    return "\n".join([*lines, "", f"{len(lines)} cases, {options.scale:g} of the steps of each"])


def _look(chosen: Sequence[Publication], wanted: Sequence[str]) -> Machine:
    """The machine with its CPU and its first accelerator, or with the devices that are named."""
    cases = [parse_case(figure.case) for each in chosen for figure in each.figures if figure.case]
    machine = look(wanted or None, cases)
    accelerators = [device for device in machine.devices if device.name != "cpu"]
    others = [] if wanted else accelerators[1:]  # the first one stands for all
    return replace(machine, devices=tuple(device for device in machine.devices if device not in others))


def _show(done: Done[Replication], all_devices: bool) -> int:
    run, options = done.run, done.study.options
    tables = [published_tables(each, run.results, options.devices, all_devices) for each in options.publications]
    print_report(replication_document(run, tables), done.format)
    return exit_code_of(run)
