"""torchmark from Python: `run`, `tune` and `fit` as functions for scripts and notebooks.

They do what the commands of the same names do: hold the machine's lock, measure in fresh processes, store every event
in a run file at once, and return the run. Advice about the machine comes as warnings.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from torchmark.analyze.efficiency import NONE, Ceilings, ceilings_of, merge, split_disturbed
from torchmark.errors import StoreError, UsageError
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.machine import keep_awake, look_around
from torchmark.measure.session import Finished, Plan, Revised, Session, SpreadFound, Started
from torchmark.measure.suites import suite
from torchmark.records import Case, Machine, Rigor, Run, RunHeader, Value
from torchmark.store import (
    RunWriter,
    check_label,
    check_writable,
    find_limits,
    load,
    log_path,
    machine_lock,
    new_header,
    new_path,
    scan_runs,
)
from torchmark.studies.fit import Fit, FitOptions, free_bytes, size_range
from torchmark.studies.study import Completed, Event, Study
from torchmark.studies.tune import Tune, TuneOptions, axes_of, check_tunable

Params = Mapping[str, Value | Sequence[Value]]

# Quick means five minutes by the clock: looking at the machine and the last case's teardown come on top.
SUITE_BUDGETS = {"quick": 275.0, "standard": 1800.0, "full": 6 * 3600.0}
CASE_BUDGETS: dict[Rigor, float] = {"quick": 5.0, "default": 15.0, "rigorous": 60.0}
TARGET = 0.03  # of ±, which runs of one machine hardly ever bring below that
_RECENT = 10  # runs that are searched for the spread between processes


def run(
    *workloads: str,
    device: str | None = None,
    mode: str | None = None,
    dtype: str | None = None,
    params: Params | None = None,
    budget_s: float | None = None,
    steps: int | None = None,
    target: float = TARGET,
    rigor: Rigor = "default",
    timeout_s: float = 600.0,
    tiny: bool = False,
    seed: int = 0,
    data: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    wait: bool = False,
) -> Run:
    """Measure workloads, cases or model files on a device, by default the quick suite on every device.

    The run is stored among the other runs, or in the new file `out`. Raises LockedError if another run is active,
    unless it is to `wait`. A case that fails is a result with a status and a reason, not an exception.
    """

    def cases_on(devices: Sequence[str]) -> tuple[Case, ...]:
        if workloads:
            return _expand(workloads, devices, mode, dtype, params, tiny)
        if mode or dtype or params:
            raise UsageError("mode, dtype and params need a workload", "Name one: `torchmark list` shows them")
        return suite("quick", devices, tiny=tiny)

    checked = cases_on([device or "cpu"])
    written_out = workloads and all("@" in name for name in workloads)
    named = sorted({each.device for each in checked}) if device or written_out else None
    with _measuring(wait):
        machine = _look(named, checked)
        cases = cases_on([info.name for info in machine.devices])
        usual_s = CASE_BUDGETS[rigor] * len(cases) if workloads else SUITE_BUDGETS["quick"]
        plan = Plan(
            cases,
            rigor,
            budget_s=budget_s or (timeout_s * len(cases) if steps else usual_s),
            timeout_s=timeout_s,
            target=target,
            steps=steps,
            seed=seed,
            data=data,
            guarded=not workloads and not tiny,
        )
        return _measure(plan, machine, label, out)


def tune(
    workload: str,
    *,
    device: str | None = None,
    mode: str | None = None,
    dtype: str | None = None,
    params: Params | None = None,
    keep: Sequence[str] = (),
    also: Mapping[str, Sequence[Value]] | None = None,
    budget_s: float = 600.0,
    timeout_s: float = 600.0,
    seed: int = 0,
    data: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    wait: bool = False,
) -> Run:
    """Find the fastest settings for a case on this machine; the answer is the run's `tuning`.

    `keep` names settings that must not change, `also` adds values to try. The rest is as for `run`.
    """
    added = {name: tuple(map(str, values)) for name, values in (also or {}).items()}
    with _measuring(wait):
        machine, case = _one_case(workload, device, mode, dtype, params)
        options = TuneOptions(
            check_tunable(case), axes_of(case, machine, keep, added), budget_s, timeout_s, seed, data, (*keep,), added
        )
        return _study(Tune(options, machine, stored_ceilings(machine)), label, out)


def fit(
    workload: str,
    *,
    vary: str = "batch",
    limit_bytes: int | None = None,
    step: int | None = None,
    most: int | None = None,
    device: str | None = None,
    mode: str | None = None,
    dtype: str | None = None,
    params: Params | None = None,
    budget_s: float = 600.0,
    timeout_s: float = 300.0,
    seed: int = 0,
    data: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    wait: bool = False,
) -> Run:
    """Find the largest size of a parameter that fits into memory; the answer is the run's `fitting`.

    `limit_bytes` is the memory it may use, by default all that is free. The rest is as for `run`.
    """
    with _measuring(wait):
        machine, case = _one_case(workload, device, mode, dtype, params)
        size_range(case, vary)
        there = free_bytes() if case.device == "cpu" else machine.devices[0].memory_bytes
        if limit_bytes and there and limit_bytes > there:
            raise UsageError(f"{limit_bytes} bytes are more than the {there:.0f} that are here", "Choose fewer")
        limit = limit_bytes or (None if case.device == "cpu" else machine.devices[0].memory_bytes)
        options = FitOptions(case, vary, limit, step, most, budget_s, timeout_s, seed, data)
        return _study(Fit(options, machine, stored_ceilings(machine)), label, out)


@contextlib.contextmanager
def _measuring(wait: bool) -> Iterator[None]:
    """Hold the machine. Meanwhile hide the main module: `multiprocessing` would import it in every process it starts,
    and so run the user's script again."""
    main = sys.modules["__main__"]
    with machine_lock(wait), keep_awake():
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _measure(plan: Plan, machine: Machine, label: str | None, out: str | Path | None) -> Run:
    with _new_run(make_header(plan, machine, label), out) as writer:
        log, ceilings, history = log_path(writer.path), stored_ceilings(machine), known_spread(machine, writer.path)
        session = Session(plan, machine, lambda _: None, log, ceilings, history)
        _store_all(session.events(), lambda: map(Revised, session.interrupted()), writer)
        writer.ended()
    return load(writer.path)


def _study(study: Study, label: str | None, out: str | Path | None) -> Run:
    with _new_run(study_header(study, label), out) as writer:
        study.log = log_path(writer.path)
        _store_all(study.events(), study.unfinished, writer)
        if conclusion := study.conclusion():
            writer.concluded(conclusion)
    return load(writer.path)


def _one_case(
    workload: str, device: str | None, mode: str | None, dtype: str | None, params: Params | None
) -> tuple[Machine, Case]:
    """The machine, and the only case, on the machine's first device unless one is named."""
    cases = _expand([workload], [device or "cpu"], mode, dtype, params)
    machine = _look([device] if device else [cases[0].device] if "@" in workload else None, cases)
    cases = _expand([workload], [machine.devices[0].name], mode, dtype, params)
    if len(cases) != 1:
        raise UsageError(f"that is {len(cases)} cases", "Name one value of each parameter")
    return machine, cases[0]


def _expand(
    workloads: Sequence[str],
    devices: Sequence[str],
    mode: str | None,
    dtype: str | None,
    params: Params | None,
    tiny: bool = False,
) -> tuple[Case, ...]:
    texts = {name: _texts(value) for name, value in (params or {}).items()}
    axes = {"device": devices, "mode": [mode] if mode else [], "dtype": [dtype] if dtype else []}
    given = {name: values for name, values in axes.items() if values}
    return expand(Sweep(workloads, given, texts, tiny=tiny))


def _texts(value: Value | Sequence[Value]) -> list[str]:
    return (
        [value]
        if isinstance(value, str)
        else [str(each) for each in (value if isinstance(value, Sequence) else [value])]
    )


def _look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    machine, cautions = look_around(devices, cases)
    for caution in cautions:
        warnings.warn(f"{caution.cause}. {caution.fix}", stacklevel=3)
    return machine


# What commands and functions share.


def make_header(plan: Plan, machine: Machine, label: str | None) -> RunHeader:
    """The header of a run that follows a plan."""
    texts = tuple(case.text for case in plan.cases)
    exact = f"--steps {plan.steps}" if plan.steps else f"--budget {plan.budget_s:g}s --target {plan.target:g}"
    exact = f"--sustain {plan.sustain_s:g}s" if plan.sustain_s else exact
    nodes = f" --nodes {plan.rendezvous.nodes} --rendezvous HOST:PORT" if plan.rendezvous else ""  # never a real name
    return new_header(
        f"torchmark run {' '.join(texts)} --rigor {plan.rigor} {exact} --seed {plan.seed}{nodes}",
        machine,
        texts,
        label=label,
        rigor=plan.rigor,
        processes=plan.processes,
        budget_s=plan.budget_s,
        target=plan.target,
        steps=plan.steps,
        sustain_s=plan.sustain_s,
        guarded=plan.guarded,
        seed=plan.seed,
    )


def study_header(study: Study, label: str | None, side: str = "") -> RunHeader:
    """The header of the run of one side of a study."""
    machine, cases = study.place(side)
    return new_header(
        study.options.command,
        machine,
        cases,
        label=label,
        rigor=study.rigor,
        budget_s=study.options.budget_s,
        seed=study.options.seed,
        open_ended=study.open_ended,
    )


def store_event(event: Event, writer_of: Callable[[str], RunWriter]) -> None:
    """Write an event of a session or a study to the run of its side."""
    match event:
        case Started(case, process):
            writer_of("").started(case.text, process)
        case Finished(result, process, samples_s):
            if samples_s:
                writer_of("").samples(result.case.text, process, samples_s)
            writer_of("").finished(result)
        case Completed(process, newest, result, side):
            writer_of(side).measured(process, newest, result)
        case Revised(result, side):
            writer_of(side).finished(result)
        case SpreadFound(value):
            writer_of("").spread(value)


def stored_ceilings(machine: Machine) -> Ceilings:
    """The ceilings of the machine's devices, as far as they were measured with the same hardware and torch."""
    found = NONE
    for device in machine.devices:
        for path in find_limits(machine, device):
            with contextlib.suppress(StoreError):  # the file is gone or damaged
                known = load(path)
                own = [result for result in known.results if result.case.device == device.name]
                results, _ = split_disturbed(own)  # a run of an older version may hold some
                found = merge(found, ceilings_of(results, known.header.id))
    return found


def known_spread(machine: Machine, path: Path) -> float | None:
    """How much fresh processes differed in the last run on this machine, apart from the run at `path`."""
    for stored in islice(scan_runs(), _RECENT):
        if stored.path != path and stored.header and stored.header.machine == machine:
            with contextlib.suppress(StoreError):  # a damaged file is ignored
                spread = load(stored.path).process_spread
                if spread is not None:
                    return spread
    return None


@contextlib.contextmanager
def _new_run(header: RunHeader, out: str | Path | None) -> Iterator[RunWriter]:
    if header.label is not None:
        check_label(header.label)
    path = Path(out) if out else new_path(header)
    check_writable(path)
    with RunWriter.create(path, header) as writer:
        yield writer
        writer.seal()


def _store_all(events: Iterable[Any], unfinished: Callable[[], Iterable[Any]], writer: RunWriter) -> None:
    """Store every event before the next one is asked for; after an interrupt, also what is left."""
    try:
        for event in events:
            store_event(event, lambda _: writer)
    except BaseException:
        if isinstance(events, Generator):
            events.close()  # ends its processes
        for event in unfinished():
            store_event(event, lambda _: writer)
        raise
