"""`torchmark limits`: the best that this machine can do, kept so that later results can be held against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark.analyze.roofline import ceilings_of, split_disturbed
from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.measuring import Ending, carry_out, exit_code_of, new_run, say_saved, tell_of_log, written
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.cli.run_options import run_options
from torchmark.cli.values import Duration
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, UnknownName
from torchmark.measure.cases import check_device
from torchmark.records import DTYPES, DeviceInfo, Limiting, Machine, Result, RunHeader
from torchmark.report import render
from torchmark.store import RunWriter, keep_limits, log_path, new_header
from torchmark.studies.limits import Limits, Request, plan_cases

DEVICE_BUDGET_S = 50.0  # beside the seconds in which torch is loaded
EXAMPLES = """\b
Examples:
  torchmark limits                          every device, within a minute each
  torchmark limits --dtype float32          arithmetic in one dtype only
  torchmark limits --device cuda:0 --budget 3m
  torchmark limits --format json            for other programs
  torchmark run                             afterwards: results say how close they come
"""


@click.command("limits", epilog=EXAMPLES)
@click.option("--device", "devices", multiple=True, metavar="NAME,…", help="Of what; default: every device here.")
@click.option("--dtype", "dtypes", multiple=True, metavar="TYPE,…", help="Arithmetic in these; default: all four.")
@click.option("--budget", "budget_s", type=Duration(), help="Time for all; default: 50s for each device.")
@click.option("--tiny", is_flag=True, help="The smallest sizes: tries that everything works, and finds no limits.")
@run_options
@format_option
def command(**options: Any) -> int:
    """Find the limits of this machine, and keep them.

    The fastest matrix products in every dtype, bandwidth of memory and caches, what it costs to hand work over, links
    and exchanges between workers. From then on every result says what share of that it reaches, and what bounds it.
    """
    wanted, dtypes = _split(options["devices"]), tuple(_split(options["dtypes"])) or DTYPES
    for name in wanted:  # a mistake is told before anything slow is done
        check_device(name)
    for name in dtypes:
        if name not in DTYPES:
            raise UnknownName("dtype", name, DTYPES)
    if options["dry_run"]:
        emit(_describe(wanted or ["cpu"], dtypes, options))
        return EXIT_FINE
    with hold_machine(options["wait"], options["share"]):
        machine = look(wanted or None, ())
        request = _request(machine, dtypes, options)
        header = _header(request, options["label"])
        with new_run(header, options["out"]) as writer:
            ending = _measure(request, writer)
            found = _judge(request, writer.run.results, ending.code)
            with ending:
                writer.concluded(found)
                _keep(request, found, writer.path)
        return ending.report(lambda: _conclude(writer, options["format"], ending))


def _split(texts: tuple[str, ...]) -> list[str]:
    return [name for text in texts for name in text.split(",") if name]


def _request(machine: Machine, dtypes: tuple[str, ...], options: dict[str, Any]) -> Request:
    budget_s = options["budget_s"] or DEVICE_BUDGET_S * len(machine.devices)
    return Request(machine, tuple(dtypes), budget_s, seed=options["seed"], tiny=options["tiny"])


def _describe(names: list[str], dtypes: tuple[str, ...], options: dict[str, Any]) -> str:
    machine = Machine("", 1, 2, 1, "", "", devices=tuple(DeviceInfo(name, "") for name in names))
    request = _request(machine, dtypes, options)
    lines = [case.text for case in plan_cases(request)]
    return "\n".join(
        [*lines, "", f"{len(lines)} cases, then larger products as long as they pay, within {request.budget_s:g} s"]
    )


def _header(request: Request, label: str | None) -> RunHeader:
    names = ",".join(device.name for device in request.machine.devices)
    chosen = f"--device {names} --dtype {','.join(request.dtypes)} --budget {request.budget_s:g}s --seed {request.seed}"
    return new_header(
        f"torchmark limits {chosen}{' --tiny' if request.tiny else ''}",
        request.machine,
        (case.text for case in plan_cases(request)),
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
        open_ended=True,
    )


def _measure(request: Request, writer: RunWriter) -> Ending:
    progress = ProgressLine()
    limits = Limits(request, progress.heard, log_path(writer.path))
    return carry_out(limits.events(), limits.interrupted, writer, progress, request.budget_s)


def _judge(request: Request, results: Sequence[Result], code: int) -> Limiting:
    """Limits are kept unless the search was broken off or does not add up; those that were disturbed never are."""
    if request.tiny:
        return Limiting(False, "tiny")
    if code or not any(device.flops for device in ceilings_of(results).devices.values()):
        return Limiting(False, "incomplete")
    if any("implausible" in result.estimate.flags for result in results if result.estimate):
        return Limiting(False, "doubted")
    sound, missing = split_disturbed(results)
    known = any(device.flops for device in ceilings_of(sound).devices.values())
    return Limiting(known, "" if known else "disturbed", tuple(missing))


def _keep(request: Request, found: Limiting, path: Path) -> None:
    """Limits that are kept are this machine's from now on."""
    beside = bool(found.missing) or len(request.dtypes) < len(DTYPES)
    for device in request.machine.devices if found.kept else ():
        keep_limits(request.machine, device, path, beside)


def _conclude(writer: RunWriter, format: str, ending: Ending) -> int:  # noqa: A002
    run = written(writer, format)
    if ending.error:
        run = replace(run, limiting=Limiting(False, "incomplete"))  # what could not be stored is not kept
    assert run.limiting is not None
    emit(render(run, format, terminal_width(), use_color()))
    if format == "table":
        say_saved(writer)
        tell_of_log(run, writer.path)
    return exit_code_of(run) or (EXIT_CHECK_FAILED if run.limiting.why == "doubted" else EXIT_FINE)
