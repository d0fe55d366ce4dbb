"""`torchmark limits`: the best that this machine can do, stored so that later results can be compared with it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from torchmark.cli.execution import exit_code_of
from torchmark.cli.machine_setup import look
from torchmark.cli.options import Duration, FormatOptions, MeasureOptions, SeedOptions, command, flag, option
from torchmark.cli.output import emit, print_report
from torchmark.cli.study import Done, record_of, run_study, split_names
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, UnknownName
from torchmark.measure.cases import check_device
from torchmark.records import DTYPES, DeviceInfo, Limiting, Machine
from torchmark.store import keep_limits
from torchmark.studies.limits import Limits, LimitsOptions, plan_cases

DEVICE_BUDGET_S = 50.0  # loading torch comes on top
EXAMPLES = """\b
Examples:
  torchmark limits                          every device, within a minute each
  torchmark limits --dtype float32          arithmetic in one dtype only
  torchmark limits --device cuda:0 --budget 3m
  torchmark limits --format json            for other programs
  torchmark run                             afterwards: results say how close they come
"""


class LimitsArguments(SeedOptions, MeasureOptions, FormatOptions):
    devices: tuple[str, ...] = option(
        "--device", multiple=True, metavar="NAME,…", help="Which devices; default: every device here."
    )
    dtypes: tuple[str, ...] = option(
        "--dtype", multiple=True, metavar="TYPE,…", help="Arithmetic in these; default: all four."
    )
    budget_s: float | None = option("--budget", type=Duration(), help="Time for all; default: 50s for each device.")
    tiny: bool = flag("The smallest sizes: tries that everything works, and finds no limits.")


@command(LimitsArguments, epilog=EXAMPLES)
def limits(options: LimitsArguments) -> int:
    """Find the limits of this machine, and keep them.

    The fastest matrix products in every dtype, bandwidth of memory and caches, what it costs to hand work over, links
    and exchanges between workers. From then on every result says what share of that it reaches, and what bounds it.
    """
    wanted, dtypes = split_names(options.devices), split_names(options.dtypes) or DTYPES
    for name in wanted:  # report mistakes before anything slow is done
        check_device(name)
    for name in dtypes:
        if name not in DTYPES:
            raise UnknownName("dtype", name, DTYPES)

    def chosen(machine: Machine) -> LimitsOptions:
        budget_s = options.budget_s or DEVICE_BUDGET_S * len(machine.devices)
        return record_of(LimitsOptions, options, machine=machine, dtypes=dtypes, budget_s=budget_s)

    if options.dry_run:
        devices = tuple(DeviceInfo(name, "") for name in wanted or ("cpu",))
        emit(_describe(chosen(Machine("", 1, 2, 1, "", "", devices=devices))))
        return EXIT_FINE
    return run_study(options, lambda: Limits(chosen(look(wanted or None, ()))), _show, stored=_keep)


def _describe(options: LimitsOptions) -> str:
    lines = [case.text for case in plan_cases(options)]
    more = f"{len(lines)} cases, then larger products as long as they pay, within {options.budget_s:g} s"
    return "\n".join([*lines, "", more])


def _keep(study: Limits, path: Path) -> None:
    """Limits that are kept are this machine's from now on."""
    found, options = study.conclusion(), study.options
    alongside = bool(found.missing) or len(options.dtypes) < len(DTYPES)
    for device in options.machine.devices if found.kept else ():
        keep_limits(options.machine, device, path, alongside)


def _show(done: Done[Limits]) -> int:
    run = done.run
    if done.ending.error:
        run = replace(run, limiting=Limiting(False, "incomplete"))  # what could not be stored is not kept
    assert run.limiting is not None
    print_report(run, done.format)
    return exit_code_of(run) or (EXIT_CHECK_FAILED if run.limiting.why == "doubted" else EXIT_FINE)
