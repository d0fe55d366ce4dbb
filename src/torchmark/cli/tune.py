"""`torchmark tune`: finds the fastest settings for a workload on this machine, and says what each of them brings."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark import __version__
from torchmark.analyze.tuning import Tuned
from torchmark.cli.beginning import hold_machine, look
from torchmark.cli.interrupts import Interrupted, orderly_end
from torchmark.cli.model_options import model_options, take_model_options
from torchmark.cli.output import emit, format_option, terminal_width, use_color
from torchmark.cli.progress import PHASES, ProgressLine
from torchmark.cli.values import Duration
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError
from torchmark.measure.awake import keep_awake
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.messages import Phase
from torchmark.measure.parameters import split_settings
from torchmark.records import Case, Machine, Result, RunHeader
from torchmark.report.tuning import name_of, render_tuned
from torchmark.report.units import factor
from torchmark.store import RunWriter, check_writable, load, new_path
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
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="For weights and order.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False), help="Folder with the real MNIST and CIFAR-10 files."
)
@click.option("--label", help="A name for this run.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to keep it; default: with the others."
)
@click.option("--dry-run", is_flag=True, help="Show what would be tried at first; measure nothing.")
@click.option("--wait", is_flag=True, help="Wait while another run measures on this machine.")
@click.option("--share", is_flag=True, help="Measure although another run does, too.")
@format_option
def command(workload: str, **options: Any) -> int:
    """Find the fastest settings for a workload on this machine.

    Number formats, layout, torch.compile, threads and more are tried against each other in rounds that all share; only
    what computes the right numbers takes part. The winner is confirmed against the default in fresh processes.
    """
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
        )
        header = _header(request, machine, options["label"], keep, also)
        path = options["out"] or new_path(header)
        check_writable(path)
        search, code = _search(request)
        return _conclude(search, header, path, options["format"], code)


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


def _search(request: Request) -> tuple[Search, int]:
    """An interrupt ends it in order, with what is known by then."""
    progress = ProgressLine(1)
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

    progress.expect(request.budget_s)
    search, code = Search(request, tell, listen), EXIT_FINE
    try:
        with orderly_end(), keep_awake():
            search.run()
    except Interrupted as interrupt:
        code = interrupt.exit_code
    finally:
        progress.clear()
    return search, code


def _conclude(search: Search, header: RunHeader, path: Path, format: str, code: int) -> int:  # noqa: A002
    tuned = search.outcome()
    with RunWriter.create(path, _complete(header, tuned)) as writer:
        for result in tuned.results:
            _write(writer, search.processes[result.case.text], result)
    emit(render_tuned(load(path), tuned, format, terminal_width(), use_color()))
    if format == "table":
        click.echo(f"Kept as {header.id}: torchmark show {header.id}", err=True)
    return code or (EXIT_FINE if any(result.status == "ok" for result in tuned.results) else EXIT_NOTHING_MEASURED)


def _write(writer: RunWriter, processes: list[Result], whole: Result) -> None:
    samples = [each.samples_s for result in processes if result.status == "ok" for each in result.processes]
    for number, values in enumerate(samples):
        writer.started(whole.case.text, number)
        writer.samples(whole.case.text, number, values)
    if not samples:
        writer.started(whole.case.text, 0)
    writer.finished(whole)


def _complete(header: RunHeader, tuned: Tuned) -> RunHeader:
    processes = max((len(result.processes) for result in tuned.results), default=1)
    return replace(header, cases=tuple(result.case.text for result in tuned.results), processes=max(processes, 1))


def _header(
    request: Request, machine: Machine, label: str | None, keep: list[str], also: dict[str, tuple[str, ...]]
) -> RunHeader:
    given = [f" --keep {','.join(keep)}"] if keep else []
    given += [f" --also {name}={','.join(values)}" for name, values in also.items()]
    return RunHeader(
        id=secrets.token_hex(4),
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine,
        cases=(),
        command=f"torchmark tune {request.case.text}{''.join(given)} --budget {request.budget_s:g}s",
        version=__version__,
        label=label,
        rigor="quick",
        budget_s=request.budget_s,
        seed=request.seed,
    )
