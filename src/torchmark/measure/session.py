"""A session: takes the cases of a run in turn, each in fresh processes, and hands out what they gave at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.roofline import NONE, Ceilings
from torchmark.analyze.summary import combine_results, process_spread
from torchmark.errors import DeviceError, TorchmarkError
from torchmark.measure.cases import memory_needed
from torchmark.measure.foresight import least_s, preparing_s
from torchmark.measure.launch import Ended, Launcher
from torchmark.measure.messages import Measured, MeasureJob, Message, Refused, Rendezvous, Surveyed, SurveyJob
from torchmark.measure.roof import Roof
from torchmark.measure.sampling import DEFAULTS, Settings
from torchmark.measure.ways import environment_of
from torchmark.records import Case, Machine, Result, Rigor, Run
from torchmark.workloads import find_workload

PROCESSES: dict[Rigor, int] = {"quick": 1, "default": 3, "rigorous": 5}
SURVEY_TIMEOUT_S = 120.0
GIB = 1024**3
PREHEAT_S = 1.0
LEAST_SHARE_S = 0.2
FIRST_LOOK = 0.7  # of an even share, where many cases are due: building and slow steps take more than theirs
TIMEOUT_SHARE = 0.5  # preparing, slow steps and whole jobs come on top
MOST_NEED_S = 60.0  # no case may starve the others, however noisy it is
MOST_SUSTAINED = 20_000  # samples: enough for any slope, and a file that can be sent around
MOST_MISSED = 5.0  # a target that is missed by more than this is out of reach
REFERENCE = Case(workload="mlp", mode="infer", params={"batch": 32})
BESIDE_SETTINGS = replace(DEFAULTS, budget_s=0.4, min_time_s=0.2)
REFERENCE_PROCESSES = 3
REFERENCE_LEAST_BUDGET_S = 20.0  # a shorter run has no time to measure anything beside what was asked for


class Plan(Struct, frozen=True):
    """What a run is going to measure, and how."""

    cases: tuple[Case, ...]
    rigor: Rigor = "default"
    budget_s: float = 300.0
    timeout_s: float = 600.0
    target: float = 0.01
    steps: int | None = None
    sustain_s: float | None = None  # keep every case going for so long, however precise it is by then
    seed: int = 0
    data: str | None = None  # folder with the real data sets
    guarded: bool = False  # leave out what would not fit into memory: nobody asked for it by name
    rendezvous: Rendezvous | None = None  # where the nodes of the run meet, if there are several

    @property
    def processes(self) -> int:
        """Fresh processes for each case; a fixed number of steps, or a fixed time, is one procedure in one process."""
        return 1 if self.steps is not None or self.sustain_s is not None else PROCESSES[self.rigor]

    @property
    def needs_torch(self) -> bool:
        return any(
            not case.device.startswith("fake") or find_workload(case.workload).needs_torch for case in self.cases
        )


class Started(Struct, frozen=True):
    """A process is about to measure this case."""

    case: Case
    process: int


class Finished(Struct, frozen=True):
    """A process is done with this case: the result over all its processes so far, and the new raw samples."""

    result: Result
    process: int
    samples_s: tuple[float, ...] = ()


class SpreadFound(Struct, frozen=True):
    """How far fresh processes of this machine differ."""

    value: float


class Revised(Struct, frozen=True):
    """A result in the light of what was measured after it."""

    result: Result


Event = Started | Finished | SpreadFound | Revised
Listen = Callable[[Message], None]


class Session:
    """One run under way. Use it once."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine | None,
        listen: Listen,
        log: Path | None = None,
        ceilings: Ceilings = NONE,
    ) -> None:
        self._plan, self._machine, self._listen = plan, machine, listen
        self._roof = Roof(ceilings, self._measure_beside)
        self._launcher = Launcher(log, imports_torch=plan.needs_torch, fresh=plan.rigor == "rigorous")
        self._log = log
        self._results: dict[str, list[Result]] = {}
        self._wanted = {case.text: plan.processes for case in plan.cases}
        self._warm: set[str] = set()
        self._under_way: Case | None = None
        self._deadline = 0.0

    def events(self, done: Mapping[str, Sequence[Result]] | None = None) -> Iterator[Event]:
        """Measure everything that is not done yet, one process after another, each round over all cases."""
        for text, results in (done or {}).items():
            self._results[text] = list(results)
            self._roof.remember(self._combined(results))
            if len(results) == 1 and text in self._wanted and _is_costly(results[0]):
                self._wanted[text] = 1
        self._deadline = time.monotonic() + self._plan.budget_s
        references: list[Result] = []
        for process in range(self._plan.processes):
            for case in self._plan.cases:
                if self._is_due(case, process):
                    yield from self._measure(case, process)
            if process < REFERENCE_PROCESSES and self._wants_reference():
                references += self._reference(1 if self._plan.processes > 1 else REFERENCE_PROCESSES)
        estimates = [estimate for result in references for estimate in result.processes]
        spread = process_spread(estimates) if len(estimates) >= REFERENCE_PROCESSES else None
        if spread is not None:
            yield SpreadFound(spread)
        yield from map(Revised, self._roof.revised())

    def interrupted(self) -> tuple[Result, ...]:
        """The first case without any result, which an interrupt has dropped or left out."""
        case = next((case for case in self._plan.cases if not self._results.get(case.text)), None)
        if case is None:
            return ()
        when = "while it was being measured" if case == self._under_way else "before its turn"
        return (Result(case=case, status="interrupted", reason=f"the run was stopped {when}"),)

    def watch(self, case: Case) -> None:
        """Run one case until the session is interrupted; raises where it cannot run."""
        self._deadline = time.monotonic() + self._plan.timeout_s
        job = replace(self._job(case, 0, self._plan.budget_s), watch=True)
        result = result_of(case, self._launcher_of(case).run(job, self._plan.timeout_s, self._listen))
        raise TorchmarkError(f"{case.text} ended as {result.status}: {result.reason}")

    def _is_due(self, case: Case, process: int) -> bool:
        return len(self._results.get(case.text, [])) <= process and self._due(case) > 0

    def _measure(self, case: Case, process: int) -> Iterator[Event]:
        share = self._share(case)
        if share < LEAST_SHARE_S:
            if process == 0:
                yield self._add(case, self._skipped(case))
            return
        too_large = self._plan.guarded and self._too_large(case)
        if too_large:
            yield self._add(case, too_large)
            return
        self._under_way = case
        yield Started(case, process)
        launcher = self._launcher_of(case)
        ended = launcher.run(self._job(case, process, share), self._plan.timeout_s, self._listen)
        result = result_of(case, ended)
        samples = result.processes[0].samples_s if result.processes else ()
        if process == 0 and _is_costly(result):
            self._wanted[case.text] = 1
        yield replace(self._add(case, result), process=process, samples_s=samples)

    def _launcher_of(self, case: Case) -> Launcher:
        """What must stand in the environment before torch is loaded asks for a process that has not loaded it."""
        environment = environment_of(case.ways)
        return Launcher(self._log, fresh=True, environment=environment) if environment else self._launcher

    def _share(self, case: Case) -> float:
        """Time for the next process: in the first round alike for all, then by what each case was found to need."""
        if self._plan.sustain_s is not None:
            return self._plan.sustain_s
        if self._plan.rendezvous:  # every node must come to the same decisions, whatever its clock says
            return self._plan.budget_s / (len(self._plan.cases) * self._plan.processes)
        left = self._deadline - time.monotonic()
        unknown = sum(1 for other in self._plan.cases if not self._results.get(other.text))
        if not self._results.get(case.text):
            share = left / (unknown * self._plan.processes) * (FIRST_LOOK if unknown > self._plan.processes else 1.0)
        else:
            needs = sum(self._need(other) * self._due(other) for other in self._plan.cases)
            share = left * self._need(case) / max(needs, self._need(case))
        # Never so little that nothing comes of it: rather the first cases, which tell most, than none or the last.
        # Never so much that a noisy one, which takes all of it, would be ended for being late.
        return min(max(min(share, TIMEOUT_SHARE * self._plan.timeout_s), LEAST_SHARE_S), left)

    def _due(self, case: Case) -> int:
        """How many processes a case still lacks; none where one has failed."""
        so_far = self._results.get(case.text, [])
        good = all(result.status == "ok" for result in so_far)
        return max(self._wanted[case.text] - len(so_far), 0) if good else 0

    def _need(self, case: Case) -> float:
        """Seconds that another process of this case takes to reach the target, judged by the last one."""
        so_far = [result for result in self._results.get(case.text, []) if result.estimate]
        if not so_far:
            return 0.0
        last = so_far[-1]
        assert last.estimate is not None
        missed = max(last.estimate.precision / self._plan.target, 1.0) if last.estimate.center_s > 0 else 1.0
        steps_s: float = min(last.phases_s.get("steps", 0.0) * min(missed, MOST_MISSED) ** 2, MOST_NEED_S)
        return preparing_s(last) + max(steps_s, 1.0)

    def _job(self, case: Case, process: int, share: float) -> MeasureJob:
        first_on_device = case.device not in self._warm
        self._warm.add(case.device)
        return MeasureJob(
            case=case,
            settings=self._settings(share),
            seed=self._plan.seed,
            process=process,
            preheat_s=min(PREHEAT_S, share / 4) if first_on_device else 0.0,
            time_left_s=None if self._is_fixed() else self._deadline - time.monotonic(),
            deadline_s=time.monotonic() + self._plan.timeout_s,
            whole=self._plan.rigor == "rigorous" and process == 0,
            data=self._plan.data,
            rendezvous=self._plan.rendezvous,
        )

    def _is_fixed(self) -> bool:
        """Whether each case has its time, whatever the others take."""
        return self._plan.rendezvous is not None or self._plan.sustain_s is not None

    def _settings(self, share: float) -> Settings:
        settings = replace(DEFAULTS, target=self._plan.target, budget_s=share, steps=self._plan.steps)
        return settings if self._plan.sustain_s is None else replace(settings, sustain=True, max_samples=MOST_SUSTAINED)

    def _add(self, case: Case, result: Result) -> Finished:
        self._under_way = None
        results = self._results.setdefault(case.text, [])
        results.append(result)
        return Finished(self._roof.judge(self._combined(results)), len(results) - 1)

    def _combined(self, results: Sequence[Result]) -> Result:
        combined = replace(combine_results(results), rigor=self._plan.rigor)
        if combined.estimate and self._machine and self._machine.on_battery:
            flags = (*combined.estimate.flags, "on-battery")
            combined = replace(combined, estimate=replace(combined.estimate, flags=flags))
        return combined

    def _skipped(self, case: Case) -> Result:
        known = [self._combined(results) for results in self._results.values()]
        needed_s = least_s(case, known)
        needs = "" if needed_s is None else f"; judged by the others, it needs about {needed_s:.3g} s"
        reason = (
            f"the budget of {self._plan.budget_s:g} s was spent before its turn{needs}. Give it more time with --budget"
        )
        return Result(case=case, status="skipped", reason=reason, version=find_workload(case.workload).version)

    def _too_large(self, case: Case) -> Result | None:
        """A suite leaves out what cannot fit; named by itself, the case is tried and ends as `oom`."""
        nodes = self._plan.rendezvous.nodes if self._plan.rendezvous else 1
        needed, room = memory_needed(case, nodes), self._room(case.device)
        if needed is None or room is None or needed <= room:
            return None
        reason = f"it needs about {needed / GIB:.0f} GiB where there are {room / GIB:.0f}. Name the case to try it"
        return Result(case=case, status="skipped", reason=reason, version=find_workload(case.workload).version)

    def _room(self, device: str) -> float | None:
        found = [info.memory_bytes for info in (self._machine.devices if self._machine else ()) if info.name == device]
        return found[0] if found else None

    def _wants_reference(self) -> bool:
        roomy = self._plan.budget_s >= REFERENCE_LEAST_BUDGET_S and self._plan.steps is None
        return roomy and any(not case.device.startswith("fake") for case in self._plan.cases)

    def _reference(self, count: int) -> list[Result]:
        """A small case in fresh processes, for the spread between processes; not a result of the run."""
        return _repeat(self._launcher, self._beside_job(REFERENCE), count, self._plan.timeout_s)

    def _measure_beside(self, case: Case) -> Result:
        """A short look at a case that is not one of the run."""
        (result,) = _repeat(self._launcher, self._beside_job(case), 1, self._plan.timeout_s)
        return result

    def _beside_job(self, case: Case) -> MeasureJob:
        return MeasureJob(case, BESIDE_SETTINGS, seed=self._plan.seed)


def measure_spread(timeout_s: float = SURVEY_TIMEOUT_S) -> float | None:
    """How far fresh processes of this machine differ, by itself; None where they could not be started."""
    results = _repeat(Launcher(), MeasureJob(REFERENCE, BESIDE_SETTINGS), REFERENCE_PROCESSES, timeout_s)
    estimates = [estimate for result in results for estimate in result.processes]
    return process_spread(estimates) if len(estimates) >= REFERENCE_PROCESSES else None


def _repeat(launcher: Launcher, job: MeasureJob, count: int, timeout_s: float) -> list[Result]:
    return [result_of(job.case, launcher.run(job, timeout_s, lambda _: None)) for _ in range(count)]


def survey(devices: Sequence[str] | None, workloads: Iterable[str] = ()) -> Surveyed:
    """The machine and what is wrong with it; found out in a worker, so that this process needs no torch.

    Workers to come share what is imported for this one, so it is told which workloads will be measured.
    """
    imports_torch = devices is None or any(not name.startswith("fake") for name in devices)
    imports = dict.fromkeys(module for name in workloads for module in find_workload(name).imports)
    ended = Launcher(imports_torch=imports_torch, imports=imports if imports_torch else ()).run(
        SurveyJob(None if devices is None else tuple(devices)), SURVEY_TIMEOUT_S, lambda _: None
    )
    if isinstance(ended.answer, Surveyed):
        return ended.answer
    if isinstance(ended.answer, Refused):
        raise DeviceError(ended.answer.cause, ended.answer.cure)
    raise DeviceError(f"the machine could not be looked at: {ended.reason}", "See what `torchmark devices` says")


def results_so_far(run: Run) -> dict[str, list[Result]]:
    """What a stored run has already, by case and process; a case that was interrupted or skipped has nothing."""
    return {
        result.case.text: _by_process(result)
        for result in run.results
        if result.processes or result.status not in ("interrupted", "skipped")
    }


def _by_process(result: Result) -> list[Result]:
    """The budget and the times of the phases are sums over the processes, so they go to the first alone."""
    first, *others = result.processes or (None,)
    return [
        replace(result, processes=(first,) if first else ()),
        *(replace(result, processes=(other,), phases_s={}, budget_s=None) for other in others if other),
    ]


def result_of(case: Case, ended: Ended) -> Result:
    """What a worker gave, or the result that says why it gave nothing."""
    if isinstance(ended.answer, Measured):
        return ended.answer.result
    return Result(case=case, status=ended.status, reason=ended.reason, version=find_workload(case.workload).version)


def _is_costly(result: Result) -> bool:
    """Preparing took more than its share of the budget: to do that three times would leave no time for steps."""
    return result.budget_s is not None and preparing_s(result) > result.budget_s
