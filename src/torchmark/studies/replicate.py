"""Replays the tables of publications here as they were measured, and with --steady also the right way."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from torchmark.measure.cases import memory_needed
from torchmark.measure.machine import GIB
from torchmark.measure.messages import Found, call
from torchmark.measure.procedures import PROCEDURES, Task
from torchmark.measure.process import Process, ProcessFailed
from torchmark.measure.replay import ReplayJob
from torchmark.measure.session import Finished, Plan, Revised, Session, Started
from torchmark.measure.stopwatch import MORE_TIME, would_take
from torchmark.publications import Publication
from torchmark.records import Case, Machine, Result, Status, parse_case
from torchmark.studies.study import Event, Study

STEADY_SHARE = 0.45  # of the budget, with --steady
LEAST_S = 2.0  # with less time left, no process is started
GRACE_S = 30.0  # how late a process may be after it has found its steps to fit


class ReplicateOptions(Struct, frozen=True):
    """What to replay, where, how much of it, and for how long."""

    publications: tuple[Publication, ...]
    devices: tuple[str, ...]
    scale: float = 1.0
    budget_s: float = 600.0
    steady: bool = False
    seed: int = 0
    data: str | None = None

    @property
    def command(self) -> str:
        given = " ".join(publication.name for publication in self.publications)
        options = f"--device {','.join(self.devices)} --scale {self.scale:g} --budget {self.budget_s:g}s"
        return f"torchmark replicate {given} {options}{' --steady' if self.steady else ''} --seed {self.seed}"


def plan_tasks(options: ReplicateOptions) -> tuple[Task, ...]:
    """Everything that the tables hold and these devices can do, each once, in the order of the tables."""
    found: dict[str, Task] = {}
    for publication in options.publications:
        procedure = PROCEDURES[publication.name]()
        for figure in publication.figures:
            if figure.case is None:
                continue
            for device in options.devices:
                case = replace(parse_case(figure.case), device=device)
                if procedure.runs_on(case, device.partition(":")[0]):
                    for each in (case, *procedure.readings(case).values()):
                        chosen = (options.scale, options.seed, options.data)
                        found.setdefault(each.text, Task(publication.name, each, figure.steps, *chosen))
    return tuple(found.values())


def plan_cases(options: ReplicateOptions) -> tuple[Case, ...]:
    """All that may get a result."""
    published = tuple(each.case for each in plan_tasks(options))
    return (*published, *map(steady_case, published)) if options.steady else published


def steady_case(case: Case) -> Case:
    """The same work, measured the right way."""
    return replace(case, protocol="steady")


class Replication(Study):
    """A replication of publications."""

    options: ReplicateOptions

    def __init__(self, options: ReplicateOptions, machine: Machine) -> None:
        self.tasks = plan_tasks(options)
        super().__init__(options, machine, plan_cases(options))
        self._procedures = {name: PROCEDURES[name]() for name in {each.publication for each in self.tasks}}
        self._results: dict[str, Result] = {}
        self._under_way: Case | None = None
        self._session: Session | None = None
        self._end = 0.0

    def events(self) -> Iterator[Event]:
        """Cheap rows come first: expensive ones are predicted from them, and most rows are there early."""
        budget_s = self.options.budget_s
        end = time.monotonic() + budget_s
        self._end = end - (STEADY_SHARE * budget_s if self.options.steady else 0.0)
        for group in sorted(self._groups(), key=lambda group: sum(map(self._cost_s, group))):
            yield from self._replay(group)
        if self.options.steady:
            yield from self._measure_steadily(end)

    def unfinished(self) -> tuple[Event, ...]:
        """The case that an interrupt has dropped."""
        if self._session:
            return tuple(map(Revised, self._session.interrupted()))
        case = self._under_way
        reason = "the run was stopped while it was being replayed"
        return (Revised(Result(case=case, status="interrupted", reason=reason)),) if case else ()

    def _groups(self) -> list[list[Task]]:
        """Tasks that share a process."""
        groups: dict[tuple[str, str], list[Task]] = {}
        for task in self.tasks:
            together = self._procedures[task.publication].shares_process(task.case)
            key = (task.case.device, task.case.workload) if together else (task.case.text, "")
            groups.setdefault(key, []).append(task)
        return list(groups.values())

    def _replay(self, group: Sequence[Task]) -> Iterator[Event]:
        fitting = []
        for each in group:
            refusal = self._refusal(each)
            if refusal:
                yield self._finish(refusal)
            else:
                fitting.append(each)
        if not fitting:
            return
        with closing(self._run(fitting)) as results:
            for each in fitting:
                self._under_way = each.case
                yield Started(each.case, 0)
                yield self._finish(next(results))
        self._under_way = None

    def _run(self, group: Sequence[Task]) -> Generator[Result]:
        """What one process gives for each of its cases, as soon as it does and however it ends."""
        left_s, missing = self._end - time.monotonic(), list(group)
        job = ReplayJob(tuple(group), left_s, take_apart=self.options.steady)
        end = self._end + GRACE_S
        try:
            with Process(log=self.log, timeout_s=round(left_s + GRACE_S), listen=self.listen) as process:
                process.send(call("torchmark.measure.replay:replay_all", job))
                while missing:
                    process.timeout_s = max(end - time.monotonic(), 0.0)
                    result = decode(process.receive(Found).record, type=Result)
                    missing.pop(0)
                    yield result
                process.leave()
        except ProcessFailed as failure:
            yield from (self._without(each, failure.result.status, failure.result.reason or "") for each in missing)

    def _finish(self, result: Result) -> Finished:
        self._results[result.case.text] = result
        samples = result.estimate.samples_s if result.estimate else ()
        return Finished(result, 0, samples)

    def _refusal(self, task: Task) -> Result | None:
        """A result for what cannot be done here, without trying."""
        needed = memory_needed(task.case)
        room = next((info.memory_bytes for info in self.machine.devices if info.name == task.case.device), None)
        if needed is not None and room is not None and needed > room:
            reason = f"needs about {needed / GIB:.0f} GiB. It was not tried, as there are {room / GIB:.0f}"
            return self._without(task, "skipped", reason)
        left_s, needed_s = self._end - time.monotonic(), self._predict_s(task)
        if needed_s is not None and needed_s > left_s:
            return self._without(task, "skipped", f"{would_take(needed_s)}. {MORE_TIME}")
        if left_s < LEAST_S:
            return self._without(task, "skipped", f"its turn did not come in time. {MORE_TIME}")
        return None

    def _without(self, task: Task, status: Status, reason: str) -> Result:
        return Result(task.case, status, task.workload.version, reason)

    def _cost_s(self, task: Task) -> float:
        """Of all steps that are due, on no machine in particular."""
        procedure = self._procedures[task.publication]
        return procedure.steps(task) * procedure.step_cost_s(task)

    def _predict_s(self, task: Task) -> float | None:
        """How long it would take, judged by the same work in other sizes; None where none was replayed."""
        known = [
            (other.case.mode != task.case.mode, result, self._procedures[other.publication].step_cost_s(other))
            for other in self.tasks
            if other.case.workload == task.case.workload and other.case.device == task.case.device
            for result in [self._results.get(other.case.text)]
            if result and result.estimate
        ]
        if not known:
            return None
        _, nearest, cost_s = max(known, key=lambda one: (not one[0], one[2]))
        assert nearest.estimate is not None
        around_s = nearest.phases_s.get("around it", 0.0)
        return around_s + nearest.estimate.center_s / cost_s * self._cost_s(task)

    def _measure_steadily(self, end: float) -> Iterator[Event]:
        for task in self.tasks:
            if not self._has_figure(task):
                reason = "there is no figure of the published way to compare it with"
                yield self._finish(Result(steady_case(task.case), "skipped", task.workload.version, reason))
        cases = tuple(steady_case(task.case) for task in self.tasks if self._has_figure(task))
        if not cases:
            return
        options, left_s = self.options, max(end - time.monotonic(), 0.0)
        plan = Plan(cases, rigor="quick", budget_s=left_s, seed=options.seed, data=options.data, guarded=True)
        self._session = Session(plan, self.machine, self.listen, self.log)
        yield from self._session.events()

    def _has_figure(self, task: Task) -> bool:
        result = self._results.get(task.case.text)
        return result is not None and result.status == "ok"
