"""`torchmark fit`: the largest batch that fits into memory here or into a given limit, and the most efficient one."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark import __version__
from torchmark.analyze.fitting import Fitted, Probe
from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.interrupts import Interrupted, orderly_end
from torchmark.cli.model_options import model_options, take_model_options
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import PHASES, ProgressLine
from torchmark.cli.tune import find_case
from torchmark.cli.values import Bytes, Duration
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED
from torchmark.measure.awake import keep_awake
from torchmark.measure.messages import Message, Phase
from torchmark.records import Machine, RunHeader
from torchmark.report.fitting import render_fitted
from torchmark.report.units import rate, size
from torchmark.store import RunWriter, check_writable, load, new_path
from torchmark.studies.fit import Request, Study, size_range

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
@click.option("--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, help="For one size.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="For weights and inputs.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False), help="Folder with the real MNIST and CIFAR-10 files."
)
@click.option("--label", help="A name for this run.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to keep it; default: with the others."
)
@click.option("--dry-run", is_flag=True, help="Show what would be looked for; measure nothing.")
@click.option("--wait", is_flag=True, help="Wait while another run measures on this machine.")
@click.option("--share", is_flag=True, help="Measure although another run does, too.")
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
        limit = options["limit_bytes"] or (None if case.device == "cpu" else machine.devices[0].memory_bytes)
        request = Request(case, limit_bytes=limit, **{name: options[name] for name in names})
        header = _header(request, machine, options["label"])
        path = options["out"] or new_path(header)
        check_writable(path)
        study, code = _probe(request)
        return _conclude(study, request, header, path, options["format"], code)


def _probe(request: Request) -> tuple[Study, int]:
    """An interrupt ends it in order, with what is known by then."""
    progress, now = ProgressLine(1), {"size": ""}

    def heard(message: Message) -> None:
        if isinstance(message, Phase):
            progress.note(f"{request.parameter} {now['size']} · {PHASES.get(message.name, message.name)}")

    def told(probe: Probe) -> None:
        figure = f"{size(probe.bytes)}, {rate(probe.rate, 'item')}" if probe.fits else probe.result.status
        progress.mark(f"{request.parameter} {probe.size}: {figure}")

    progress.expect(request.budget_s)
    study, code = Study(request, heard), EXIT_FINE
    try:
        with orderly_end(), keep_awake():
            study.run(lambda number: now.update(size=str(number)), told)
    except Interrupted as interrupt:
        code = interrupt.exit_code
    finally:
        progress.clear()
    return study, code


def _conclude(study: Study, request: Request, header: RunHeader, path: Path, format: str, code: int) -> int:  # noqa: A002
    fitted = study.outcome()
    with RunWriter.create(path, _complete(header, fitted)) as writer:
        for probe in fitted.probes:
            _write(writer, probe)
    emit(render_fitted(load(path), request.case, fitted, format, terminal_width(), use_color()))
    if format == "table":
        click.echo(f"Kept as {header.id}: torchmark report {header.id} draws the curve", err=True)
    return code or (EXIT_FINE if fitted.largest is not None else EXIT_NOTHING_MEASURED)


def _write(writer: RunWriter, probe: Probe) -> None:
    text = probe.result.case.text
    writer.started(text, 0)
    for estimate in probe.result.processes:
        writer.samples(text, 0, estimate.samples_s)
    writer.finished(probe.result)


def _complete(header: RunHeader, fitted: Fitted) -> RunHeader:
    return replace(header, cases=tuple(probe.result.case.text for probe in fitted.probes))


def _header(request: Request, machine: Machine, label: str | None) -> RunHeader:
    limit = f" --limit {request.limit_bytes}" if request.limit_bytes else ""
    return RunHeader(
        id=secrets.token_hex(4),
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine,
        cases=(),
        command=f"torchmark fit {request.case.text} --vary {request.parameter}{limit}",
        version=__version__,
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
    )
