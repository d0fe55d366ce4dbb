"""`run`, `tune` and `fit` for scripts and notebooks: what the commands do; they return the stored run."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from msgspec.structs import replace

from torchmark import store
from torchmark.analyze.efficiency import NONE, Ceilings, ceilings_of, merge, split_disturbed
from torchmark.devices import ACCELERATOR
from torchmark.errors import StoreError, UsageError
from torchmark.measure.cases import Axes, Part, check_device, expand, expand_suite, place
from torchmark.measure.machine import keep_awake, look_around
from torchmark.measure.session import Finished, Plan, Revised, Session, SpreadFound, Started
from torchmark.records import Case, Machine, Result, Rigor, Run, RunHeader, Value
from torchmark.store import lines
from torchmark.studies.fit import Fit, FitOptions, free_bytes
from torchmark.studies.study import Completed, Event, Study, check_single
from torchmark.studies.tune import Tune, TuneOptions

Params = Mapping[str, Value | Sequence[Value]]
Look = Callable[[Sequence[str] | None, Iterable[Case]], Machine]
WriterOf = Callable[[str], store.RunWriter]  # of the run of a side

# Quick means five minutes by the clock: looking at the machine and teardown come on top.
SUITE_BUDGETS = {"quick": 275.0, "standard": 1800.0, "full": 6 * 3600.0}
CASE_BUDGETS: dict[Rigor, float] = {"quick": 5.0, "default": 15.0, "rigorous": 60.0}
TARGET = 0.03  # of ±, which hardly ever gets below that


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

    The run is stored among the others, or in the new file `out`. Raises LockedError if another run is active, unless it
    is to `wait`. A case that fails is a result with a status and a reason, not an exception.
    """
    if not workloads and (mode or dtype or params):
        raise UsageError("mode, dtype and params need a workload", "Name one: `torchmark list` shows them")
    parts, named = choose(workloads, "quick", *_typed(device, mode, dtype, params), tiny=tiny)
    with _measuring(wait):
        machine = _look(named or None, place(parts, named or ["cpu"]))
        cases = place(parts, [info.name for info in machine.devices])
        plan = Plan(cases, rigor, target, steps, budget_s=budget_s or 0.0, timeout_s=timeout_s, seed=seed, data=data)
        plan = replace(plan, guarded=not workloads and not tiny)
        return _execute(Measurement(with_budget(plan, None if workloads else "quick"), machine), label, out)


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
        machine, case = locate(partial(_look, stacklevel=4), workload, *_typed(device, mode, dtype, params))
        options = TuneOptions(case, (*keep,), added, budget_s=budget_s, timeout_s=timeout_s, seed=seed, data=data)
        return _execute(Tune(options, machine, stored_ceilings(machine)), label, out)


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
        machine, case = locate(partial(_look, stacklevel=4), workload, *_typed(device, mode, dtype, params))
        bounds = usable_bytes(case, machine, limit_bytes), step, most
        options = FitOptions(case, vary, *bounds, budget_s=budget_s, timeout_s=timeout_s, seed=seed, data=data)
        return _execute(Fit(options, machine, stored_ceilings(machine)), label, out)


@contextlib.contextmanager
def _measuring(wait: bool) -> Iterator[None]:
    """Hold the machine; hide the main module, which `multiprocessing` would run in every process."""
    main = sys.modules["__main__"]
    with store.machine_lock(wait), keep_awake():
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _execute(study: Study, label: str | None, out: str | Path | None) -> Run:
    if label is not None:
        store.check_label(label)
    header = make_header(study, label)
    path = out or store.new_path(header)
    store.check_writable(path)
    with store.RunWriter.create(path, header) as writer:
        study.log = store.log_path(writer.path)
        store_events(study, lambda _: writer)
        conclude(study, writer)
    return store.load(path)


def _typed(device: str | None, mode: str | None, dtype: str | None, params: Params | None) -> tuple[Axes, Axes]:
    """Axes and parameters as typed on the command line."""

    def texts(values: Mapping[str, Any]) -> Axes:
        return {
            name: [*map(str, value)] if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)]
            for name, value in values.items()
            if value is not None
        }

    return texts({"device": device, "mode": mode, "dtype": dtype}), texts(params or {})


def _look(devices: Sequence[str] | None, cases: Iterable[Case], stacklevel: int = 3) -> Machine:
    """Look at the machine; its problems become warnings that point at the caller of this module."""
    machine, cautions = look_around(devices, cases)
    for caution in cautions:
        warnings.warn(f"{caution.cause}. {caution.fix}", stacklevel=stacklevel)
    return machine


def choose(
    workloads: Sequence[str], suite: str, axes: Axes, params: Axes, nodes: int = 1, tiny: bool = False
) -> tuple[tuple[Part, ...], Sequence[str]]:
    """The cases of workloads, or else of a suite, and the named devices; none means all that are here."""
    devices = read_devices(axes.get("device", ()))
    if not workloads:
        return expand_suite(suite, tiny), devices
    cases = expand(workloads, {**axes, "device": [ACCELERATOR]}, params, nodes, tiny)
    if not devices and all("@" in name for name in workloads):
        devices = tuple(sorted({case.device for case in cases}))
    return (Part(cases),), devices


def read_devices(texts: Iterable[str]) -> tuple[str, ...]:
    names = tuple(name for text in texts for name in text.split(",") if name)
    for name in names:
        check_device(name)
    return names


def with_budget(plan: Plan, suite: str | None) -> Plan:
    """The plan; without a budget, with the usual one of its suite or cases."""
    if plan.sustain_s:
        usual_s = (plan.sustain_s + CASE_BUDGETS["default"]) * len(plan.cases)  # preparing comes on top
    elif plan.steps:
        usual_s = plan.timeout_s * len(plan.cases)  # all steps are done, however long they take
    else:
        usual_s = SUITE_BUDGETS[suite] if suite else CASE_BUDGETS[plan.rigor] * len(plan.cases)
    return replace(plan, budget_s=plan.budget_s or usual_s)


class Measurement(Study):
    """What `torchmark run` does; `done` are the results of the run that it continues."""

    options: Plan

    def __init__(self, plan: Plan, machine: Machine, done: Mapping[str, Sequence[Result]] = {}) -> None:
        super().__init__(plan, machine, plan.cases)
        self.rigor, self._done = plan.rigor, done
        self._session: Session | None = None

    def events(self) -> Iterator[Event]:
        ceilings, history = stored_ceilings(self.machine), known_spread(self.machine, self.log)
        self._session = Session(self.options, self.machine, self.listen, self.log, ceilings, history)
        return self._session.events(self._done)

    def unfinished(self) -> Iterable[Event]:
        return map(Revised, self._session.interrupted()) if self._session else ()


def make_header(study: Study, label: str | None, side: str = "") -> RunHeader:
    machine, cases = study.place(side)
    options = study.options
    planned = ("processes", "target", "steps", "sustain_s", "guarded") if isinstance(options, Plan) else ()
    details = {name: getattr(options, name) for name in ("budget_s", "seed", *planned)}
    details |= {"label": label, "rigor": study.rigor, "open_ended": study.open_ended}
    return store.new_header(options.command, machine, cases, **details)


def store_events(study: Study, writer_of: WriterOf, seen: Callable[[Event], object] = lambda _: None) -> None:
    """Store every event, then call `seen`; after an interrupt, store what is left."""
    with contextlib.closing(cast("Generator[Event]", study.events())) as events:
        try:
            for event in events:
                _store(event, writer_of)
                seen(event)
        except BaseException as error:
            events.close()  # ends its processes
            for event in study.unfinished() if not isinstance(error, StoreError) else ():
                _store(event, writer_of)
            raise


def _store(event: Event, writer_of: WriterOf) -> None:
    match event:
        case Started(case, process):
            writer_of("").write(lines.Started(case.text, process))
        case Finished(result, process, samples_s):
            if samples_s:
                writer_of("").write(lines.Samples(result.case.text, process, samples_s))
            writer_of("").finished(result)
        case Completed(process, newest, result, side):
            writer_of(side).measured(process, newest, result)
        case Revised(result, side):
            writer_of(side).finished(result)
        case SpreadFound(value):
            writer_of("").write(lines.Spread(value))


def conclude(study: Study, writer: store.RunWriter, side: str = "") -> None:
    if conclusion := study.conclusion(side):
        writer.concluded(conclusion)
    elif isinstance(study, Measurement):
        writer.write(lines.Ended())


def find_case(workload: str, axes: Axes, params: Axes) -> Case:
    """The one case that this means; on the CPU unless a device is named."""
    cases = expand([workload], {"device": ["cpu"], **axes, "workers": ["1"]}, params)
    if len(cases) != 1:
        raise UsageError(f"that is {len(cases)} cases", "Name one value of each parameter, and one device")
    return check_single(cases[0])


def locate(look: Look, workload: str, axes: Axes, params: Axes) -> tuple[Machine, Case]:
    """The machine with the named device, or all, and the one case on the first of them."""
    case = find_case(workload, axes, params)
    machine = look([case.device] if "device" in axes or "@" in workload else None, [case])
    return machine, find_case(workload, {**axes, "device": [machine.devices[0].name]}, params)


def usable_bytes(case: Case, machine: Machine, limit_bytes: int | None) -> int | None:
    """The memory that a case may use; None: all that is free on the host."""
    there = free_bytes() if case.device == "cpu" else machine.devices[0].memory_bytes
    if limit_bytes and there and limit_bytes > there:
        cause = f"a limit of {limit_bytes / 2**30:,.1f} GiB is more than the {there / 2**30:,.1f} GiB of memory here"
        raise UsageError(cause, "Choose a smaller limit, or a machine with more memory")
    return limit_bytes or (None if case.device == "cpu" else machine.devices[0].memory_bytes)


def stored_ceilings(machine: Machine) -> Ceilings:
    """The ceilings that were measured with the same hardware and torch."""
    found = NONE
    for device in machine.devices:
        for path in store.find_limits(machine, device):
            with contextlib.suppress(StoreError):  # the file is gone or damaged
                known = store.load(path)  # an older version kept disturbed results
                results, _ = split_disturbed([each for each in known.results if each.case.device == device.name])
                found = merge(found, ceilings_of(results, known.header.id))
    return found


def known_spread(machine: Machine, log: Path | None) -> float | None:
    """How much fresh processes differed in the last run on this machine other than that with this log."""
    for stored in islice(store.scan_runs(), 10):
        if store.log_path(stored.path) != log and stored.header and stored.header.machine == machine:
            with contextlib.suppress(StoreError):  # a damaged file is ignored
                if (spread := store.load(stored.path).process_spread) is not None:
                    return spread
    return None
