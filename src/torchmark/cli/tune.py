"""`torchmark tune`: finds the fastest settings for a workload on this machine, and says what each of them brings."""

from __future__ import annotations

import time
from typing import Any

import click

from torchmark.analyze.configurations import name_of
from torchmark.analyze.tuning import recall_tuned
from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.ceilings import stored_ceilings, tell_of_limits
from torchmark.cli.measuring import (
    Ending,
    exit_code_of,
    measure_until_stopped,
    new_run,
    say_saved,
    tell_of_log,
    written,
)
from torchmark.cli.model_options import model_options, take_model_options
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import PHASES, ProgressLine
from torchmark.cli.run_options import data_option, run_options
from torchmark.cli.values import Duration
from torchmark.errors import EXIT_FINE, UsageError
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.messages import Phase
from torchmark.measure.parameters import split_settings
from torchmark.records import Case, Machine, RunHeader
from torchmark.report.tuning import render_tuned
from torchmark.report.units import factor
from torchmark.store import RunWriter, new_header
from torchmark.studies.axes import NUMBERS, axes_of, check_tunable, combinations, variations
from torchmark.studies.tune import News, Request, Search

EXAMPLES = """\b
Examples:
  torchmark tune resnet50                          what makes it fastest here?
  torchmark tune bert-encode -p batch=4 --keep dtype    ... in float32?
  torchmark tune mlp --also batch=256,512          a larger batch is allowed, too
  torchmark tune mlp --also threads=1..4 --keep compile
  torchmark tune mlp/train:batch=64@cpu/float32    one case, as results print it
  torchmark tune my_model.py:build --input 'float32[8,3,224,224]'
"""


@click.command(epilog=EXAMPLES)
@click.argument("workload", metavar="WORKLOAD|FILE|CASE")
@click.option("--device", metavar="NAME", help="Where to run; default: the first device here.")
@click.option("--mode", metavar="MODE", help="infer, train; default: the workload's first.")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=V", help="A parameter of the work: -p batch=4.")
@model_options
@click.option("--dtype", metavar="TYPE", help="The default's number format; float32 unless given.")
@click.option("--keep", multiple=True, metavar="NAME,…", help="Hold a setting as it is: dtype, compile, threads, …")
@click.option("--also", multiple=True, metavar="NAME=V,…", help="More values to try, of any setting or parameter.")
@click.option("--budget", "budget_s", type=Duration(), default="10m", show_default=True, help="Time for all, at most.")
@click.option("--timeout", "timeout_s", type=Duration(), default="10m", show_default=True, help="For one answer.")
@data_option
@run_options
@format_option
def command(workload: str, **options: Any) -> int:
    """Find the fastest settings for a workload on this machine.

    Number formats, layout, torch.compile, threads and more are tried against each other in rounds that all share; only
    what computes the right numbers takes part. The winner is confirmed against the default in fresh processes.
    """
    began = time.monotonic()
    options = take_model_options(options | {"workload": workload})
    keep = [name for text in options["keep"] for name in text.split(",") if name]
    also = split_settings(options["also"])
    case = find_case(workload, options, options["device"] or "cpu")  # a mistake is told before anything slow is done
    if options["dry_run"]:
        emit(_describe(case, axes_of(case, _unknown_machine(), keep, also)))
        return EXIT_FINE
    with hold_machine(options["wait"], options["share"]):
        named = options["device"] or (case.device if "@" in workload else None)
        machine = look([named] if named else None, [case])
        case = find_case(workload, options, machine.devices[0].name)
        request = Request(
            case,
            axes_of(case, machine, keep, also),
            **{name: options[name] for name in ("budget_s", "timeout_s", "seed", "data")},
            hold=tuple(keep),
            ceilings=stored_ceilings(machine),
        )
        header = _header(request, machine, options["label"], keep, also)
        with new_run(header, options["out"]) as writer:
            search, ending = _search(request, writer, began)
            if case.text in search.processes:
                with ending:
                    writer.concluded(search.outcome().conclusion)
        return ending.report(lambda: _conclude(writer, options["format"]))


def find_case(workload: str, options: dict[str, Any], device: str) -> Case:
    """The one case that is meant."""
    sweep = Sweep(
        [workload],
        devices=[device],
        modes=[options["mode"]] if options["mode"] else (),
        params=split_settings(options["params"]),
        dtypes=[options["dtype"] or "float32"],
        workers=["1"],
    )
    cases = expand(sweep)
    if len(cases) != 1:
        raise UsageError(f"that is {len(cases)} cases", "Name one value of each parameter, and one device")
    return check_tunable(cases[0])


def _unknown_machine() -> Machine:
    """For a plan that measures nothing: what can be known of the machine without looking at it."""
    import psutil

    cores = psutil.cpu_count(logical=False) or 1
    return Machine("", cores, psutil.cpu_count() or cores, 0, "", "")


def _describe(case: Case, axes: dict[str, tuple[Any, ...]]) -> str:
    rest = [name for name in axes if name not in NUMBERS]
    tried = [case, *combinations(case, axes, NUMBERS), *variations(case, axes, rest)]
    lines = [each.text for each in tried]
    return "\n".join([*lines, "", f"{len(lines)} configurations to begin with; what helps is then combined"])


def _search(request: Request, writer: RunWriter, began: float) -> tuple[Search, Ending]:
    """What a process has shown is on the disk at once."""
    progress = ProgressLine()
    known = {"best": "default"}

    def tell(news: News) -> None:
        if news.event == "failed":
            progress.mark(f"{name_of(news.case, request.case)}: {news.reason}")
        elif news.event == "leads":
            known["best"] = f"{name_of(news.case, request.case)}, {factor(news.gain)}"
            progress.mark(f"best so far: {known['best']}")
        else:
            progress.mark(f"measuring it anew against the default: {known['best']}")

    def listen(name: str, phase: Phase) -> None:
        trying = name_of(expand(Sweep([name]))[0], request.case)
        progress.note(f"{trying} · {PHASES.get(phase.name, phase.name)} · best so far: {known['best']}")

    search = Search(request, tell, listen, kept=lambda text: _write(writer, search, text), began=began)
    return search, measure_until_stopped(search.run, progress, request.budget_s)


def _conclude(writer: RunWriter, format: str) -> int:  # noqa: A002
    run = written(writer, format)
    if run.tuning is None:  # it was stopped before the default was measured
        return EXIT_FINE
    emit(render_tuned(run, recall_tuned(run), format, terminal_width(), use_color()))
    if format == "table":
        say_saved(writer)
        tell_of_limits(run)
        tell_of_log(run, writer.path)
    return exit_code_of(run)


def _write(writer: RunWriter, search: Search, text: str) -> None:
    """The process that has just ended, and what is known of its case with it."""
    *earlier, last = search.processes[text]
    writer.measured(sum(result.status == "ok" for result in earlier), last, search.result(text))


def _header(
    request: Request, machine: Machine, label: str | None, keep: list[str], also: dict[str, tuple[str, ...]]
) -> RunHeader:
    given = [f" --keep {','.join(keep)}"] if keep else []
    given += [f" --also {name}={','.join(values)}" for name, values in also.items()]
    return new_header(
        f"torchmark tune {request.case.text}{''.join(given)} --budget {request.budget_s:g}s --seed {request.seed}",
        machine,
        [request.case.text],
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
        open_ended=True,
    )
