"""`torchmark tune`, `fit`, `limits` and `replicate`: studies that keep one run with its conclusion."""

import time
from collections.abc import Mapping

import click
import psutil
from msgspec.structs import replace

from torchmark.analyze.pairing import name_of
from torchmark.case import DTYPES
from torchmark.cli import options as opt
from torchmark.cli.execution import Ending, execute, exit_code_of, hint_at_limits, hold_machine, look, record_of
from torchmark.cli.options import argument, axes_field, command, flag, option, several
from torchmark.cli.output import emit, emit_plan, print_report
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, EXIT_NOTHING_MEASURED, UnknownName
from torchmark.library import find_case, locate, read_devices, stored_ceilings, usable_bytes
from torchmark.measure.cases import Axes, split_settings
from torchmark.publications import find_publication, names
from torchmark.records import DeviceInfo, Limiting, Machine, parse_case
from torchmark.report.publications import replication_document
from torchmark.report.searches import fitting_document, tuning_document
from torchmark.report.units import factor, rate, size
from torchmark.store import keep_limits
from torchmark.studies.fit import Fit, FitOptions, Probed, size_range
from torchmark.studies.limits import Limits, LimitsOptions
from torchmark.studies.limits import plan_cases as plan_limits
from torchmark.studies.replicate import ReplicateOptions, Replication, plan_tasks, published_tables
from torchmark.studies.tune import NUMBERS, News, Tune, TuneOptions, axes_of, combinations, variations

DEVICE_BUDGET_S = 50.0  # for a device; loading torch comes on top
_COUNT = click.IntRange(1, 1 << 40)


class CaseOptions(opt.ParamOptions, opt.DataOptions, opt.MeasureOptions, opt.FormatOptions):
    workload: str = argument(metavar="WORKLOAD|FILE|CASE")
    axes: Mapping[str, tuple[str, ...]] = axes_field("device", "mode", "dtype")
    budget_s: float = option("Time for all, at most.", "--budget", type=opt.DURATION, default="10m")

    @property
    def chosen(self) -> tuple[str, Axes, Axes]:
        return self.workload, self.axes, self.read_params()


class TuneArguments(CaseOptions):
    keep: tuple[str, ...] = several("Keep these settings: dtype, compile, threads, …", "NAME,…", read=opt.split_names)
    also: Axes = several("More values of a setting or parameter.", "NAME=V,…", read=split_settings)
    timeout_s: float = option("For one answer.", "--timeout", type=opt.DURATION, default="10m")


@command(TuneArguments)
def tune(options: TuneArguments) -> int:
    """Find the fastest settings for a workload on this machine.

    Number formats, layout, torch.compile, threads and more are tried against each other in rounds that all share; only
    what computes the right numbers takes part. The winner is confirmed against the default in fresh processes.

    Examples:
      torchmark tune resnet50                          what makes it fastest here?
      torchmark tune bert-encode -p batch=4 --keep dtype    ... in float32?
      torchmark tune mlp --also batch=256,512          a larger batch is allowed, too
      torchmark tune mlp/train:batch=64@cpu/float32    one case, as results print it
    """
    began, case = time.monotonic(), find_case(*options.chosen)
    if options.dry_run:
        cores = psutil.cpu_count(logical=False) or 1
        machine = Machine("", cores, psutil.cpu_count() or cores, 0, "", "")  # all that is known without looking at it
        axes = axes_of(case, machine, options.keep, options.also)
        rest = {name: values for name, values in axes.items() if name not in NUMBERS}
        tried = [case, *combinations(case, axes), *variations(case, rest)]
        return emit_plan((each.text for each in tried), "configurations to begin with; what helps is then combined")

    def announce(news: News) -> str:
        name = name_of(news.case, news.default)
        if news.event == "failed":
            return f"{name}: {news.reason}"
        event = "best so far" if news.event == "leads" else "measuring it again against the default"
        return f"{event}: {name}, {factor(news.gain)}"

    def show(ending: Ending) -> int:
        run = ending.run()
        if run.tuning is None:  # it was stopped before the default was measured
            return EXIT_FINE
        print_report(tuning_document(run), ending.format)
        if ending.format == "table":
            hint_at_limits(run)
        return exit_code_of(run)

    with hold_machine(options):
        machine, case = locate(look, *options.chosen)
        study = Tune(record_of(TuneOptions, options, case=case), machine, stored_ceilings(machine))
        study.began = began  # looking at the machine counts
        return execute(study, options, show, announce)


class FitArguments(CaseOptions):
    parameter: str = option("The parameter to fit.", "--vary", default="batch", metavar="NAME")
    limit_bytes: int | None = option("Memory it may take: 8GiB; default: what is free.", "--limit", type=opt.SIZE)
    step: int | None = option("How fine the answer is; default: about 3%.", type=_COUNT)
    most: int | None = option("The largest size to try.", type=_COUNT)
    timeout_s: float = option("For one process.", "--timeout", type=opt.DURATION, default="5m")


@command(FitArguments)
def fit(options: FitArguments) -> int:
    """Find the largest batch that fits into memory, and the most efficient one.

    Every size runs in a process of its own that is refused more memory than it may have. Also printed: memory as fixed
    plus per item, and the rate at every size.

    Examples:
      torchmark fit resnet50 --mode train              the largest batch that fits here
      torchmark fit resnet50 --mode train --limit 8GiB     ... on a smaller machine
      torchmark fit bert-encode --vary sequence -p batch=8
      torchmark fit my_model.py:build --input 'float32[8,3,224,224]'
    """
    case = find_case(*options.chosen)
    lowest, highest = size_range(case, options.parameter)
    if options.dry_run:
        sizes = f"{options.parameter} from {lowest} to at most {min(highest, options.most or highest)}"
        emit(f"{case.text}: {sizes}, doubling, then halving what is open")
        return EXIT_FINE

    def announce(news: Probed) -> str:
        probe, peak = news.probe, size(next(reversed(news.probe.peaks), None))
        figure = f"{peak}, {rate(probe.rate, 'item')}" if probe.fits else probe.result.status
        return f"{news.parameter} {probe.size}{' again' if probe.tries > 1 else ''}: {figure}"

    def show(ending: Ending) -> int:
        run = ending.run()
        assert run.fitting is not None
        print_report(fitting_document(run), ending.format)
        return EXIT_FINE if run.fitting.largest is not None else EXIT_NOTHING_MEASURED

    with hold_machine(options):
        machine, case = locate(look, *options.chosen)
        limit = usable_bytes(case, machine, options.limit_bytes)
        study = Fit(record_of(FitOptions, options, case=case, limit_bytes=limit), machine, stored_ceilings(machine))
        return execute(study, options, show, announce, "torchmark report {} draws the curve")


class LimitsArguments(opt.SeedOptions, opt.MeasureOptions, opt.FormatOptions):
    devices: tuple[str, ...] = several("Which; default: every device here.", "NAME,…", "--device", read=read_devices)
    dtypes: tuple[str, ...] = several("Number formats; default: all four.", "TYPE,…", "--dtype", read=opt.split_names)
    budget_s: float | None = option("Time for all; default: 50s for each device.", "--budget", type=opt.DURATION)
    tiny: bool = flag("The smallest sizes: tries that everything works, and finds no limits.")


@command(LimitsArguments)
def limits(options: LimitsArguments) -> int:
    """Find the limits of this machine, and keep them.

    The fastest matrix products in every dtype, bandwidth of memory and caches, what it costs to hand work over, links
    and exchanges between workers. From then on every result says what share of that it reaches, and what bounds it.

    Examples:
      torchmark limits                          every device, within a minute each
      torchmark limits --dtype float32          arithmetic in one dtype only
      torchmark limits --device cuda:0 --budget 3m
    """
    wanted, dtypes = options.devices or None, options.dtypes or DTYPES
    if unknown := [name for name in dtypes if name not in DTYPES]:
        raise UnknownName("dtype", unknown[0], DTYPES)
    with hold_machine(options):
        devices = tuple(DeviceInfo(name, "") for name in wanted or ("cpu",))
        machine = Machine("", 1, 2, 1, "", "", devices=devices) if options.dry_run else look(wanted, ())
        budget_s = options.budget_s or DEVICE_BUDGET_S * len(machine.devices)
        chosen = record_of(LimitsOptions, options, machine=machine, dtypes=dtypes, budget_s=budget_s)
        if options.dry_run:
            rest = f"cases, then larger products as long as they pay, within {budget_s:g} s"
            return emit_plan((each.text for each in plan_limits(chosen)), rest)
        study = Limits(chosen)

        def show(ending: Ending) -> int:
            found = study.conclusion()
            if found.kept and not ending.error:
                alongside = bool(found.missing) or len(dtypes) < len(DTYPES)
                with ending.storing():
                    for device in machine.devices:
                        keep_limits(machine, device, ending.writers[""].path, alongside)
            run = ending.run()
            if ending.error:
                run = replace(run, limiting=Limiting(False, "incomplete"))
            print_report(run, ending.format)
            doubted = run.limiting is not None and run.limiting.why == "doubted"
            return exit_code_of(run) or (EXIT_CHECK_FAILED if doubted else EXIT_FINE)

        return execute(study, options, show, then="torchmark show {} --details")


class ReplicateArguments(opt.DataOptions, opt.MeasureOptions, opt.FormatOptions):
    publications: tuple[str, ...] = argument(nargs=-1, metavar="[PUBLICATION]...")
    devices: tuple[str, ...] = several("Where; default: CPU and accelerator.", "NAME,…", "--device", read=read_devices)
    scale: float = option("Share of the steps, at least 5.", type=opt.WHOLE_SHARE, default="1")
    steady: bool = flag("Also measure the right way, and show where the difference comes from.")
    budget_s: float = option("For all, at most.", "--budget", type=opt.DURATION, default="10m")


@command(ReplicateArguments)
def replicate(options: ReplicateArguments) -> int:
    """Replay published benchmarks here, exactly as their authors did.

    Same steps, same timed region, same missing warm-up, same unit: each table is printed as it was published, with
    this machine as a new column. A row that cannot be run here says why.

    Examples:
      torchmark replicate                              all publications, within ten minutes
      torchmark replicate m1-chips --scale 0.01        a hundredth of the steps, the rest extrapolated
      torchmark replicate simple-add --steady          also the right way, and where the difference comes from
      torchmark replicate apple-silicon-bert --budget 8h --device cpu
      torchmark compare last 'm1-chips/M1 CPU'         afterwards: this machine against one of theirs
    """
    chosen, wanted = tuple(map(find_publication, options.publications or names())), options.devices
    plan = record_of(ReplicateOptions, options, publications=chosen, devices=wanted or ("cpu",))
    if options.dry_run:
        lines = [f"{each.publication}: {each.case.text}" for each in plan_tasks(plan)]
        return emit_plan(lines, f"cases, {options.scale:g} of the steps of each")

    def show(ending: Ending) -> int:
        run = ending.run()
        tables = [published_tables(each, run.results, plan.devices, not wanted) for each in chosen]
        print_report(replication_document(run, tables), ending.format)
        return exit_code_of(run)

    with hold_machine(options):
        machine = look(wanted or None, [parse_case(each.case) for one in chosen for each in one.figures if each.case])
        if not wanted:  # the first accelerator stands for all
            others = [device for device in machine.devices if device.name != "cpu"][1:]
            machine = replace(machine, devices=tuple(each for each in machine.devices if each not in others))
        plan = replace(plan, devices=tuple(device.name for device in machine.devices))
        return execute(Replication(plan, machine), options, show)
