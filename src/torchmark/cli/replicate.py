"""`torchmark replicate`: published tables once more, done here as the authors did, with this machine beside theirs."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import replace

from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.measuring import Ending, carry_out, exit_code_of, new_run, say_saved, tell_of_log, written
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.cli.run_options import data_option, run_options
from torchmark.cli.values import Duration, Share
from torchmark.errors import EXIT_FINE
from torchmark.measure.cases import check_device
from torchmark.publications import find_publication, names
from torchmark.publications.contract import Publication
from torchmark.records import Machine, RunHeader, parse_case
from torchmark.report.sheets import render_replicated
from torchmark.store import RunWriter, log_path, new_header
from torchmark.studies.beside import put_beside
from torchmark.studies.replicate import Replication, Request, plan_cases, plan_replays

EXAMPLES = """\b
Examples:
  torchmark replicate                              all publications, within ten minutes
  torchmark replicate m1-chips                     one of them, every step of it
  torchmark replicate m1-chips --scale 0.01        a hundredth of the steps, the rest extrapolated
  torchmark replicate simple-add --steady          beside it the right way, and what the difference is made of
  torchmark replicate apple-silicon-bert --budget 8h --device cpu
  torchmark compare last 'm1-chips/M1 CPU'         afterwards: this machine against one of theirs
"""


@click.command("replicate", epilog=EXAMPLES)
@click.argument("publications", nargs=-1, metavar="[PUBLICATION]...")
@click.option("--device", "devices", multiple=True, metavar="NAME,…", help="Where; default: CPU and accelerator.")
@click.option("--scale", type=Share(whole=True), default="1", show_default=True, help="Share of the steps, at least 5.")
@click.option("--steady", is_flag=True, help="Measure the right way too, and tell where the difference comes from.")
@click.option("--budget", "budget_s", type=Duration(), default="10m", show_default=True, help="For all, at most.")
@data_option
@run_options
@format_option
def command(publications: tuple[str, ...], **options: Any) -> int:
    """Replay published benchmarks here, exactly as their authors did.

    Same steps, same timed region, same missing warm-up, same unit: each table is printed as it was published, with
    this machine as a new column. A row that cannot be run here says why.
    """
    chosen = tuple(find_publication(name) for name in publications or names())
    wanted = [name for text in options["devices"] for name in text.split(",") if name]
    for name in wanted:  # a mistake is told before anything slow is done
        check_device(name)
    if options["dry_run"]:
        emit(_describe(chosen, wanted or ["cpu"], options))
        return EXIT_FINE
    with hold_machine(options["wait"], options["share"]):
        machine = _look(chosen, wanted)
        request = _request(chosen, tuple(device.name for device in machine.devices), options)
        header = _header(request, machine, options["label"])
        with new_run(header, options["out"]) as writer:
            ending = _replicate(request, machine, writer)
        return ending.report(lambda: _conclude(request, writer, options["format"], all_devices=not wanted))


def _request(chosen: tuple[Publication, ...], devices: tuple[str, ...], options: dict[str, Any]) -> Request:
    return Request(
        publications=chosen,
        devices=devices,
        scale=options["scale"],
        budget_s=options["budget_s"],
        steady=options["steady"],
        seed=options["seed"],
        data=options["data"],
    )


def _describe(chosen: tuple[Publication, ...], devices: list[str], options: dict[str, Any]) -> str:
    replays = plan_replays(_request(chosen, tuple(devices), options))
    lines = [f"{each.publication}: {each.case.text}" for each in replays]
    return "\n".join([*lines, "", f"{len(lines)} cases, {options['scale']:g} of the steps of each"])


def _look(chosen: tuple[Publication, ...], wanted: list[str]) -> Machine:
    """The machine with its CPU and its first accelerator, or with the devices that are named."""
    cases = [parse_case(figure.case) for each in chosen for figure in each.figures if figure.case]
    machine = look(wanted or None, cases)
    accelerators = [device for device in machine.devices if device.name != "cpu"]
    others = [] if wanted else accelerators[1:]  # one of them speaks for all that are not named
    return replace(machine, devices=tuple(device for device in machine.devices if device not in others))


def _header(request: Request, machine: Machine, label: str | None) -> RunHeader:
    given = [publication.name for publication in request.publications]
    options = f"--device {','.join(request.devices)} --scale {request.scale:g} --budget {request.budget_s:g}s"
    steady = " --steady" if request.steady else ""
    cases = plan_cases(request)
    return new_header(
        f"torchmark replicate {' '.join(given)} {options}{steady} --seed {request.seed}",
        machine,
        (case.text for case in cases),
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
    )


def _replicate(request: Request, machine: Machine, writer: RunWriter) -> Ending:
    progress = ProgressLine([case.text for case in plan_cases(request)])
    replication = Replication(request, machine, progress.heard, log_path(writer.path))
    return carry_out(replication.events(), replication.interrupted, writer, progress, request.budget_s)


def _conclude(request: Request, writer: RunWriter, format: str, all_devices: bool) -> int:  # noqa: A002
    run = written(writer, format)
    replicated = [put_beside(each, run.results, request.devices, all_devices) for each in request.publications]
    emit(render_replicated(run, replicated, format, terminal_width(), use_color()))
    if format == "table":
        say_saved(writer)
    tell_of_log(run, writer.path)
    return exit_code_of(run)
