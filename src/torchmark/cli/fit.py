"""`torchmark fit`: the largest batch that fits into memory here or into a given limit, and the most efficient one."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from torchmark.analyze.fitting import Probe, recall_fitted
from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.ceilings import stored_ceilings
from torchmark.cli.measuring import Ending, measure_until_stopped, new_run, say_saved, tell_of_log, written
from torchmark.cli.model_options import model_options, take_model_options
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import PHASES, ProgressLine
from torchmark.cli.run_options import data_option, run_options
from torchmark.cli.tune import find_case
from torchmark.cli.values import Bytes, Duration
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError
from torchmark.measure.messages import Message, Phase
from torchmark.records import Case, Machine, Result, RunHeader
from torchmark.report.fitting import render_fitted
from torchmark.report.units import memory_limit, rate, size
from torchmark.store import RunWriter, log_path, new_header
from torchmark.studies.fit import Request, Study, free_bytes, size_range

EXAMPLES = """\b
Examples:
  torchmark fit resnet50 --mode train              the largest batch that fits here
  torchmark fit resnet50 --mode train --limit 8GiB     ... on a smaller machine
  torchmark fit bert-encode --vary sequence -p batch=8
  torchmark fit mlp --most 4096                    only up to there, for the rate
  torchmark fit my_model.py:build --input 'float32[8,3,224,224]'
"""


@click.command(epilog=EXAMPLES)
@click.argument("workload", metavar="WORKLOAD|FILE|CASE")
@click.option("--vary", "parameter", default="batch", show_default=True, metavar="NAME", help="What is to fit.")
@click.option("--limit", "limit_bytes", type=Bytes(), help="Memory it may take: 8GiB; default: what is free.")
@click.option("--step", type=click.IntRange(1, 1 << 40), help="How fine the answer is; default: about 3%.")
@click.option("--most", type=click.IntRange(1, 1 << 40), help="The largest size to try.")
@click.option("--device", metavar="NAME", help="Where to run; default: the first device here.")
@click.option("--mode", metavar="MODE", help="infer, train; default: the workload's first.")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=V", help="Another parameter: -p sequence=512.")
@model_options
@click.option("--dtype", metavar="TYPE", help="float32 unless given.")
@click.option("--budget", "budget_s", type=Duration(), default="10m", show_default=True, help="Time for all, at most.")
@click.option("--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, help="For one process.")
@data_option
@run_options
@format_option
def command(workload: str, **options: Any) -> int:
    """Find the largest batch that fits into memory, and the most efficient one.

    Every size runs in a process of its own that is refused more memory than it may have: running out of it is an
    answer, not an accident. Also printed: memory as fixed plus per item, and the rate at every size.
    """
    options = take_model_options(options | {"workload": workload})
    case = find_case(workload, options, options["device"] or "cpu")  # a mistake is told before anything slow is done
    lowest, highest = size_range(case, options["parameter"])
    if options["dry_run"]:
        most = min(highest, options["most"] or highest)
        emit(
            f"{case.text}: {options['parameter']} from {lowest} to at most {most}, doubling, then halving what is open"
        )
        return EXIT_FINE
    with hold_machine(options["wait"], options["share"]):
        named = options["device"] or (case.device if "@" in workload else None)
        machine = look([named] if named else None, [case])
        case = find_case(workload, options, machine.devices[0].name)
        names = ("parameter", "step", "most", "budget_s", "timeout_s", "seed", "data")
        limit = _limit(case, machine, options["limit_bytes"])
        chosen = {name: options[name] for name in names}
        request = Request(case, limit_bytes=limit, ceilings=stored_ceilings(machine), **chosen)
        header = _header(request, machine, options["label"])
        with new_run(header, options["out"]) as writer:
            study, ending = _probe(request, writer)
            with ending:
                writer.concluded(study.outcome().conclusion(case))
        return ending.report(lambda: _conclude(writer, options["format"]))


def _limit(case: Case, machine: Machine, wanted: int | None) -> int | None:
    """What may be taken, None for all that is free on the host. More than there is cannot be tried."""
    there = free_bytes() if case.device == "cpu" else machine.devices[0].memory_bytes
    if wanted and there and wanted > there:
        raise UsageError(
            f"{memory_limit(wanted)} is more than the {size(there)} that are here",
            "Leave --limit out, or choose a smaller one: what fits into more can only be found where there is more",
        )
    return wanted or (None if case.device == "cpu" else machine.devices[0].memory_bytes)


def _probe(request: Request, writer: RunWriter) -> tuple[Study, Ending]:
    """What a size has shown is on the disk at once."""
    progress, now = ProgressLine(), {"size": ""}

    def heard(message: Message) -> None:
        if isinstance(message, Phase):
            progress.note(f"{request.parameter} {now['size']} · {PHASES.get(message.name, message.name)}")

    def told(probe: Probe, newest: Result) -> None:
        writer.measured(probe.tries - 1, newest, probe.result)
        peak = size(next(reversed(probe.peaks), None))
        figure = f"{peak}, {rate(probe.rate, 'item')}" if probe.fits else probe.result.status
        progress.mark(f"{request.parameter} {probe.size}{' again' if probe.tries > 1 else ''}: {figure}")

    study = Study(request, heard, log_path(writer.path))
    probe_all = partial(study.run, lambda number: now.update(size=str(number)), told)
    return study, measure_until_stopped(probe_all, progress, request.budget_s)


def _conclude(writer: RunWriter, format: str) -> int:  # noqa: A002
    run = written(writer, format)
    assert run.fitting is not None
    fitted = recall_fitted(run)
    emit(render_fitted(run, run.fitting.case, fitted, format, terminal_width(), use_color()))
    if format == "table":
        say_saved(writer, then="torchmark report {} draws the curve")
    tell_of_log(run, writer.path)
    return EXIT_FINE if fitted.largest is not None else EXIT_NOTHING_MEASURED


def _header(request: Request, machine: Machine, label: str | None) -> RunHeader:
    limit = request.limit_bytes and f"{request.limit_bytes}B"
    given = {"limit": limit, "step": request.step, "most": request.most, "seed": request.seed}
    chosen = "".join(f" --{name} {value}" for name, value in given.items() if value)
    return new_header(
        f"torchmark fit {request.case.text} --vary {request.parameter}{chosen} --budget {request.budget_s:g}s",
        machine,
        (),
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
        open_ended=True,
    )
