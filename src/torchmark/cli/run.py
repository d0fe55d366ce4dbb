"""`torchmark run`: measures workloads on this machine and keeps what it finds."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import click
from msgspec.structs import replace

from torchmark.analyze.money import Prices
from torchmark.cli.beginning import hold_machine
from torchmark.cli.interrupts import Interrupted, orderly_end
from torchmark.cli.measuring import announced, measure_plan, new_run, show_complete
from torchmark.cli.model_options import model_options, take_model_options
from torchmark.cli.output import emit, format_option
from torchmark.cli.planning import (
    check_options,
    check_resumable,
    describe_plan,
    find_cases,
    make_header,
    make_plan,
    plan_rest,
)
from torchmark.cli.prices import price_options, prices_of
from torchmark.cli.run_options import data_option, run_options
from torchmark.cli.values import Duration, Share
from torchmark.errors import EXIT_FINE, UsageError
from torchmark.measure.awake import keep_awake
from torchmark.measure.session import Plan, Session
from torchmark.measure.suites import SUITES
from torchmark.records import RIGORS
from torchmark.store import RunWriter, find_run, keep_origin, load
from torchmark.workloads.own.files import file_paths

EXAMPLES = """\b
Examples:
  torchmark run                                    the quick suite on every device
  torchmark run mlp matmul --budget 1m             two workloads
  torchmark run mlp --mode infer,train -p batch=16,64 --dtype float32,bfloat16
  torchmark run matmul --threads 1..4 --label after-upgrade
  torchmark run mlp/infer:batch=64@cpu/float32     one case, as results print it
  torchmark run mnist-ddp-mlp --workers 1,2,4      how it scales
  torchmark run resnet50 --sustain 2m              does it slow down when hot?
  torchmark run my_model.py                        a model of your own
  torchmark run my_model.py:Net --input 'float32[8,3,224,224]' --mode train
  torchmark run tensor-add --watch                 live rate until Ctrl-C
  torchmark run --resume last                      go on where a run was stopped
"""


@click.command(epilog=EXAMPLES)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD|FILE|CASE]...")
@click.option("--suite", "suite_name", type=click.Choice(tuple(SUITES)), help="A set of cases instead of workloads.")
@click.option("--device", "devices", multiple=True, metavar="NAME,…", help="Where to run; default: every device here.")
@click.option("--mode", "modes", multiple=True, metavar="MODE,…", help="infer, train; default: the workload's first.")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=V,…", help="A parameter: -p batch=16,64 or 1..8.")
@model_options
@click.option("--dtype", "dtypes", multiple=True, metavar="TYPE,…", help="float32, bfloat16, float16, float64.")
@click.option(
    "--compile", "compile_", multiple=True, metavar="off,on", help="With torch.compile; its time is kept apart."
)
@click.option("--transfer", multiple=True, metavar="HOW,…", help="resident, per-step (copies every time), pinned.")
@click.option("--threads", multiple=True, metavar="N,…", help="CPU threads; default: torch's choice.")
@click.option("--workers", multiple=True, metavar="N,…", help="Ranks that share the work, on all nodes together.")
@click.option("--way", "ways", multiple=True, metavar="NAME=HOW,…", help="How: layout=channels-last, attention=eager.")
@click.option("--nodes", type=click.IntRange(1, 4096), default=1, help="Machines that share them; needs --rendezvous.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Where they meet: the same command is given on each of them.")
@click.option("--budget", "budget_s", type=Duration(), help="Time for the whole run, at most.")
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Exactly this many steps, however precise.")
@click.option("--sustain", "sustain_s", type=Duration(), help="Keep each case going for so long: burst or lasting?")
@click.option("--target", type=Share(), help="The ± at which a case is done; default: 3%.")
@click.option(
    "--rigor",
    type=click.Choice(RIGORS),
    default="default",
    show_default=True,
    help="At least 1, 3 or 5 processes each.",
)
@click.option("--timeout", "timeout_s", type=Duration(), default="10m", show_default=True, help="For one process.")
@click.option(
    "--resume",
    "resumed",
    metavar="RUN",
    help="Continue a run that was stopped; with --budget, add processes to a complete one.",
)
@click.option("--watch", is_flag=True, help="Show the live rate of one case until stopped; keeps nothing.")
@click.option("--tiny", is_flag=True, help="The smallest sizes: tries that everything works.")
@data_option
@run_options
@price_options
@format_option
def command(**options: Any) -> int:
    """Measure how fast this machine is at PyTorch.

    Without a WORKLOAD: the quick suite, within five minutes. A WORKLOAD may be a file of your own: a Python file with a
    model, FILE.py:FUNCTION, or a model's config.json. Every case is measured once, then in more fresh processes until
    its ± reaches the target or the budget is spent. ± is where a repeat of the same command would land (95%).
    """
    options = take_model_options(options)
    lock = nullcontext() if options["dry_run"] else hold_machine(options["wait"], options["share"])
    if options["resumed"]:
        with lock:
            return _resume(options)
    wanted = check_options(options)
    with lock:  # before looking at the machine: importing torch would disturb a run that measures
        cases, machine = find_cases(options, wanted)
        plan = make_plan(cases, options)
        if options["dry_run"]:
            emit(describe_plan(plan))
            return EXIT_FINE
        if options["watch"]:
            return _watch(plan)
        header = make_header(plan, machine, options["label"])
        with new_run(header, options["out"]) as writer:
            keep_origin(header.id, file_paths())
            return measure_plan(plan, machine, writer, {}, options["format"], _prices(options))


def _resume(options: dict[str, Any]) -> int:
    """Measure what a run that was stopped still lacks, into the same file."""
    check_resumable(options)
    path = find_run(options["resumed"])
    run = load(path)
    rest = plan_rest(run, path, options)
    if rest is None:
        return show_complete(run, options["resumed"], options["format"], _prices(options))
    plan, done = rest
    if options["dry_run"]:
        emit(describe_plan(plan))
        return EXIT_FINE
    with announced(RunWriter.resume(path)) as writer:
        if writer.run.results == run.results:
            return measure_plan(plan, run.header.machine, writer, done, options["format"], _prices(options), run)
    return _resume(options)  # until just now, another process has added to the file


def _prices(options: dict[str, Any]) -> Prices | None:
    return prices_of(options["price_per_hour"], options["watt_price"])


def _watch(plan: Plan) -> int:
    """One line a second with the live rate, until the user has seen enough."""
    if len(plan.cases) != 1:
        raise UsageError(
            f"--watch shows one case, not {len(plan.cases)}", "Name one case, such as " + plan.cases[0].text
        )
    from torchmark.cli.watch import RateLine

    line = RateLine(plan.cases[0], sys.stdout)
    session = Session(replace(plan, timeout_s=30 * 24 * 3600.0), None, line.heard)
    try:
        with orderly_end(), keep_awake():
            session.watch(plan.cases[0])
    except Interrupted as interrupt:
        line.end()
        return EXIT_FINE if interrupt.exit_code == 130 else interrupt.exit_code
    return EXIT_FINE
