"""Replays the tables of publications here, as published and, if wanted, rightly beside it, within one budget."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from torchmark.measure.launch import Ended, Launcher
from torchmark.measure.messages import Measured, Replayed
from torchmark.measure.procedures import make_procedure
from torchmark.measure.procedures.contract import Procedure, Task
from torchmark.measure.replay import ReplayJob, serve
from torchmark.measure.session import GIB, Event, Finished, Listen, Plan, Session, Started
from torchmark.measure.stopwatch import MORE_TIME, would_take
from torchmark.publications.contract import Publication
from torchmark.records import Case, Machine, Result, Status, parse_case

STEADY_SHARE = 0.45  # of the budget, where both ways are wanted
LEAST_S = 2.0  # less is not worth starting a process for
GRACE_S = 30.0  # by which a process may be late that has found its steps to fit


class Request(Struct, frozen=True):
    """What to replay, where, how much of it, and for how long."""

    publications: tuple[Publication, ...]
    devices: tuple[str, ...]
    scale: float = 1.0
    budget_s: float = 600.0
    steady: bool = False
    seed: int = 0
    data: str | None = None


class Replay(Struct, frozen=True):
    """One case of a publication on one device of this machine."""

    publication: str
    task: Task

    @property
    def case(self) -> Case:
        return self.task.case


def plan_replays(request: Request) -> tuple[Replay, ...]:
    """Everything that the tables hold and these devices can do, each once, in the order of the tables."""
    found: dict[str, Replay] = {}
    for publication in request.publications:
        procedure = make_procedure(publication.name)
        for figure in publication.figures:
            if figure.case is None:
                continue
            for device in request.devices:
                case = replace(parse_case(figure.case), device=device)
                if procedure.runs_on(case, device.partition(":")[0]):
                    for each in (case, *procedure.readings(case).values()):
                        task = Task(each, figure.steps, request.scale, request.seed, request.data)
                        found.setdefault(each.text, Replay(publication.name, task))
    return tuple(found.values())


def plan_cases(request: Request) -> tuple[Case, ...]:
    """All that may get a result."""
    published = tuple(each.case for each in plan_replays(request))
    return (*published, *map(steady_case, published)) if request.steady else published


def steady_case(case: Case) -> Case:
    """The same work, to be measured rightly."""
    return replace(case, protocol="steady")


class Replication:
    """One replication under way. Use it once."""

    def __init__(self, request: Request, machine: Machine, listen: Listen, log: Path | None = None) -> None:
        self.replays = plan_replays(request)
        self._request, self._machine, self._listen, self._log = request, machine, listen, log
        self._launcher = Launcher(log, serve=serve)
        self._procedures = {name: make_procedure(name) for name in {each.publication for each in self.replays}}
        self._results: dict[str, Result] = {}
        self._under_way: Case | None = None
        self._session: Session | None = None
        self._end = 0.0

    def events(self) -> Iterator[Event]:
        """Cheap rows first: they tell how long the dear ones would take, and most rows are there early."""
        budget_s = self._request.budget_s
        end = time.monotonic() + budget_s
        self._end = end - (STEADY_SHARE * budget_s if self._request.steady else 0.0)
        for group in sorted(self._groups(), key=self._cost_s):
            yield from self._replay(group)
        if self._request.steady:
            yield from self._measure_steadily(end)

    def interrupted(self) -> tuple[Result, ...]:
        """The case that an interrupt has dropped."""
        if self._session:
            return self._session.interrupted()
        case = self._under_way
        reason = "the run was stopped while it was being replayed"
        return (Result(case=case, status="interrupted", reason=reason),) if case else ()

    def _groups(self) -> list[list[Replay]]:
        """What belongs into one process stays together."""
        groups: dict[tuple[str, str], list[Replay]] = {}
        for each in self.replays:
            together = self._procedures[each.publication].shares_process(each.case)
            key = (each.case.device, each.case.workload) if together else (each.case.text, "")
            groups.setdefault(key, []).append(each)
        return list(groups.values())

    def _replay(self, group: Sequence[Replay]) -> Iterator[Event]:
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

    def _run(self, group: Sequence[Replay]) -> Generator[Result]:
        """What one process gives for each of its cases, as soon as it does and however it ends."""
        left_s, missing = self._end - time.monotonic(), list(group)
        tasks = tuple(each.task for each in group)
        job = ReplayJob(group[0].publication, tasks, left_s, take_apart=self._request.steady)
        with closing(self._launcher.follow(job, round(left_s + GRACE_S))) as heard:
            for said in heard:
                answer = said.answer if isinstance(said, Ended) else said
                if isinstance(answer, Replayed | Measured):
                    missing.pop(0)
                    yield answer.result
                elif isinstance(said, Ended):
                    yield from (self._without(each, said.status, said.reason) for each in missing)
                else:
                    self._listen(said)

    def _finish(self, result: Result) -> Finished:
        self._results[result.case.text] = result
        samples = result.estimate.samples_s if result.estimate else ()
        return Finished(result, 0, samples)

    def _refusal(self, each: Replay) -> Result | None:
        """A result for what cannot be done here, without trying."""
        needed = each.task.memory_bytes
        room = next((info.memory_bytes for info in self._machine.devices if info.name == each.case.device), None)
        if needed is not None and room is not None and needed > room:
            reason = f"needs about {needed / GIB:.0f} GiB. It was not tried, as there are {room / GIB:.0f}"
            return self._without(each, "skipped", reason)
        left_s, needed_s = self._end - time.monotonic(), self._predict_s(each)
        if needed_s is not None and needed_s > left_s:
            return self._without(each, "skipped", f"{would_take(needed_s)}. {MORE_TIME}")
        if left_s < LEAST_S:
            return self._without(each, "skipped", f"its turn did not come in time. {MORE_TIME}")
        return None

    def _without(self, each: Replay, status: Status, reason: str) -> Result:
        return Result(each.case, status, each.task.version, reason)

    def _cost_s(self, group: Sequence[Replay]) -> float:
        return sum(_cost_s(self._procedures[each.publication], each.task) for each in group)

    def _predict_s(self, each: Replay) -> float | None:
        """How long it would take, from what is known of the same work in other sizes; None where nothing is."""
        known = [
            (other.case.mode != each.case.mode, result, self._procedures[other.publication].step_cost_s(other.task))
            for other in self.replays
            if other.case.workload == each.case.workload and other.case.device == each.case.device
            for result in [self._results.get(other.case.text)]
            if result and result.estimate
        ]
        if not known:
            return None
        _, nearest, cost_s = max(known, key=lambda one: (not one[0], one[2]))
        assert nearest.estimate is not None
        around_s = nearest.phases_s.get("around it", 0.0)
        return around_s + nearest.estimate.center_s / cost_s * _cost_s(self._procedures[each.publication], each.task)

    def _measure_steadily(self, end: float) -> Iterator[Event]:
        for each in self.replays:
            if not self._has_figure(each):
                reason = "there is no figure of the published way to set it beside"
                yield self._finish(Result(steady_case(each.case), "skipped", each.task.version, reason))
        cases = tuple(steady_case(each.case) for each in self.replays if self._has_figure(each))
        if not cases:
            return
        request, left_s = self._request, max(end - time.monotonic(), 0.0)
        plan = Plan(cases, rigor="quick", budget_s=left_s, seed=request.seed, data=request.data, guarded=True)
        self._session = Session(plan, self._machine, self._listen, self._log)
        yield from self._session.events()

    def _has_figure(self, each: Replay) -> bool:
        result = self._results.get(each.case.text)
        return result is not None and result.status == "ok"


def _cost_s(procedure: Procedure, task: Task) -> float:
    """Of all steps that are due; on no machine in particular."""
    return procedure.steps(task) * procedure.step_cost_s(task)
