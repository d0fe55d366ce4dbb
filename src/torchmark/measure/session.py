"""A session: measures the cases of a run in rounds of fresh processes, and yields each result at once."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze import spread
from torchmark.analyze.efficiency import IMPLAUSIBLE, NONE, Ceilings, case_again, ceilings_of, merge, with_peak
from torchmark.analyze.grades import margin_of
from torchmark.analyze.spread import LEAST_MARGIN, Spread, typical_spread, with_intervals
from torchmark.analyze.verdict import cautions_of, combine_results
from torchmark.errors import TorchmarkError
from torchmark.measure.cases import excess_memory, full_params, setting_of
from torchmark.measure.engine import DEFAULTS, FEWEST_SAMPLES
from torchmark.measure.messages import START, MeasureJob, Rendezvous
from torchmark.measure.process import Listen, ignore, measure_case, without_figure
from torchmark.measure.timing import with_flag
from torchmark.records import Case, Machine, Result, Rigor, Run, Work
from torchmark.workloads import find_workload

PROCESSES: dict[Rigor, int] = {"quick": 1, "default": 3, "rigorous": 5}
MOST_PROCESSES = 30
# Processes differ by more than the steps inside one, so the time goes to more processes.
STEPS_S: dict[Rigor, float] = {"quick": 60.0, "default": 1.0, "rigorous": 3.0}
SETTLED = 3.0  # the error inside a process may be this fraction of the spread between them
PREHEAT_S = 1.0
LEAST_SHARE_S = 0.2
LARGEST_SHARE = 0.2  # of the budget of a suite, for all processes of one case
REFERENCE = Case(workload="mlp", mode="infer", params={"batch": 32})
REFERENCE_PROCESSES = 3
REFERENCE_LEAST_BUDGET_S = 20.0  # a shorter run measures nothing else
EXTRA_SETTINGS = replace(DEFAULTS, budget_s=0.4, min_time_s=0.2)
FLOPS_PER_S, BYTES_PER_S = 50e9, 10e9  # of some machine: only for comparing two kinds of work


class Options(Struct, frozen=True, kw_only=True):  # of a run and of every study
    budget_s: float = 600.0
    timeout_s: float = 600.0  # for one answer of a process
    seed: int = 0
    data: str | None = None  # folder with the real data sets

    @property
    def command(self) -> str:
        """The command line that repeats it, without paths, names of hosts, or anything from the environment."""
        raise NotImplementedError


class Plan(Options, frozen=True):
    cases: tuple[Case, ...]
    rigor: Rigor = "default"
    target: float = 0.01
    steps: int | None = None
    sustain_s: float | None = None  # keep every case going for so long, for any precision
    guarded: bool = False  # leave out cases that would not fit; a named case is always tried
    rendezvous: Rendezvous | None = None  # where the nodes of the run meet, if there are several
    more: bool = False  # use the whole budget, for any precision

    @property
    def processes(self) -> int:
        """The fewest fresh processes of a case; a fixed number of steps or a fixed time takes one."""
        return 1 if self.steps is not None or self.sustain_s is not None else PROCESSES[self.rigor]

    @property
    def command(self) -> str:
        exact = f"--steps {self.steps}" if self.steps else f"--budget {self.budget_s:g}s --target {self.target:g}"
        exact = f"--sustain {self.sustain_s:g}s" if self.sustain_s else exact
        nodes = f" --nodes {self.rendezvous.nodes} --rendezvous HOST:PORT" if self.rendezvous else ""
        cases = " ".join(case.text for case in self.cases)
        return f"torchmark run {cases} --rigor {self.rigor} {exact} --seed {self.seed}{nodes}"


class Started(Struct, frozen=True):
    case: Case
    process: int  # that is about to measure it


class Finished(Struct, frozen=True):
    result: Result  # over all processes of the case so far
    process: int  # that is done
    samples_s: tuple[float, ...] = ()  # of this process


class Covered(Struct, frozen=True):
    """Every case has had its first process."""


class SpreadFound(Struct, frozen=True):
    value: float  # how far fresh processes of this machine differ


class Revised(Struct, frozen=True):
    result: Result  # judged by what was measured after it
    side: str = ""  # the run it belongs to, in a study that keeps several


Event = Started | Finished | Covered | SpreadFound | Revised


class Session:
    """One run. Use it once. `history` is the spread between processes in an earlier run on this machine."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine | None,
        listen: Listen,
        log: Path | None = None,
        ceilings: Ceilings = NONE,
        history: float | None = None,
    ) -> None:
        self._plan, self._machine, self._listen, self._log, self._borrowed = plan, machine, listen, log, history
        self._results, self._current = dict[str, list[Result]](), dict[str, Result]()
        self._judge = PeakJudge(ceilings, self._look, self._current)
        self._warm, self._exhausted = set[str](), set[str]()  # devices; cases without time for their next process
        self._under_way: Case | None = None
        self._deadline = 0.0
        self._is_fixed = plan.rendezvous is not None or plan.sustain_s is not None  # the time of each case

    def events(self, done: Mapping[str, Sequence[Result]] = {}) -> Iterator[Event]:
        """Measure what is not done yet: each case once and briefly, then fresh processes where they help most."""
        for text, results in done.items():
            self._results[text] = list(results)
            self._current[text] = self._combined(text)
        self._deadline = time.monotonic() + self._plan.budget_s
        for case in self._plan.cases:
            if self._results.get(case.text):
                continue
            if reason := self._why_left_out(case):
                yield self._add(case, without_figure(case, "skipped", reason))
            else:
                yield from self._measure(case)
        yield Covered()
        while following := self._next():
            yield from self._measure(following)
        yield from self._conclude()

    def interrupted(self) -> tuple[Result, ...]:
        """The first case without a result."""
        left = [case for case in self._plan.cases if not self._results.get(case.text)][:1]
        when = "while it was being measured" if left == [self._under_way] else "before its turn"
        return tuple(Result(case, "interrupted", reason=f"the run was stopped {when}") for case in left)

    def watch(self, case: Case) -> None:
        """Run one case until the session is interrupted; raise where it cannot run."""
        self._deadline = time.monotonic() + self._plan.timeout_s
        result = self._run(replace(self._job(case, 0), watch=True), self._listen)
        raise TorchmarkError(f"{case.text} ended as {result.status}: {result.reason}", detail=result.detail or "")

    def _measure(self, case: Case) -> Iterator[Event]:
        process, self._under_way = len(self._results.get(case.text, [])), case
        yield Started(case, process)
        result = self._run(self._job(case, process), self._listen)
        if process and result.status == "skipped":  # too little time left: no failure
            self._exhausted.add(case.text)
            yield Finished(self._current[case.text], process)
            return
        yield self._add(case, result)

    def _next(self) -> Case | None:
        """The case whose next process helps most: in rounds until each has the fewest, then by what it gains."""

        def count(case: Case) -> int:
            return len(self._results[case.text])

        def gain(case: Case) -> float:  # how much narrower the interval becomes in a second
            estimate = self._current[case.text].estimate
            if estimate is None or estimate.spread is None or estimate.freedom is None:
                return 0.0
            after = spread.with_interval(estimate, Spread(estimate.spread**2, estimate.freedom + 1), count(case) + 1)
            return (estimate.precision - after.precision) / self._cost_s(case)

        due = [case for case in self._plan.cases if self._wants_more(case)]
        behind = [case for case in due if count(case) < self._plan.processes]
        return min(behind, key=count) if behind else max(due, key=gain, default=None)

    def _wants_more(self, case: Case) -> bool:
        plan, count = self._plan, len(self._results.get(case.text, []))
        if not count or case.text in self._exhausted or not self._is_good(case):
            return False
        fixed = plan.processes == 1 or plan.rendezvous is not None
        fits = fixed or self._cost_s(case) <= self._left_s
        if count < plan.processes:
            return fits
        margin = margin_of(estimate) if (estimate := self._current[case.text].estimate) else None
        if fixed or margin is None or count >= MOST_PROCESSES:
            return False
        return fits and (plan.more or margin > max(plan.target, LEAST_MARGIN))

    def _cost_s(self, case: Case) -> float:
        """Seconds that another process of this case takes; 0.2 s to fork and end a worker."""
        once = (START, "preheat", "check", "job")  # phases of the first process only
        return fmean(_phases_s(result, *once) for result in self._results[case.text]) + 0.2

    @property
    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _room_s(self) -> float:
        """The time left for a case that has not begun; a suite reserves some for those that have."""
        if not self._plan.guarded:
            return self._left_s
        begun = [case for case in self._plan.cases if self._results.get(case.text) and self._is_good(case)]
        most = self._plan.processes
        reserved_s = sum(self._cost_s(case) * max(most - len(self._results[case.text]), 0) for case in begun)
        return min(self._left_s - reserved_s, LARGEST_SHARE * self._plan.budget_s)

    def _is_good(self, case: Case) -> bool:
        return all(result.status == "ok" for result in self._results[case.text])

    def _why_left_out(self, case: Case) -> str | None:
        """A suite leaves out what cannot fit or exceeds its share, every run what exceeds the budget."""
        plan = self._plan
        nodes = plan.rendezvous.nodes if plan.rendezvous else 1
        if plan.guarded and self._machine and (needs := excess_memory(case, self._machine.devices, nodes)):
            return f"{needs}. Name the case to try it"  # which then ends as `oom`
        room_s, needed_s = self._room_s(), (least_s(case, self._current.values()) or 0.0) * plan.processes
        if self._is_fixed or (room_s >= LEAST_SHARE_S and (not plan.guarded or needed_s <= room_s)):
            return None
        needs = f"it needs about {needed_s:.0f} s, and " if needed_s else ""
        left = f"{max(room_s, 0.0):.0f} s of the budget of {plan.budget_s:g} s are left for it"
        return f"{needs}{left}. Give it more time with --budget, or run it by itself"

    def _run(self, job: MeasureJob, listen: Listen = ignore) -> Result:
        return measure_case(job, self._plan.timeout_s, listen, self._log, fresh=self._plan.rigor == "rigorous")

    def _look(self, case: Case) -> Result:
        return self._run(MeasureJob(case, EXTRA_SETTINGS, seed=self._plan.seed))

    def _job(self, case: Case, process: int) -> MeasureJob:
        plan, time_left_s, preheat_s = self._plan, None, 0.0 if case.device in self._warm else PREHEAT_S
        self._warm.add(case.device)
        share_s = plan.budget_s / (len(plan.cases) * plan.processes)  # for the steps
        if not self._is_fixed:  # nodes must decide alike, although their clocks differ
            # In a suite, a first process must leave time for the other cases.
            first = plan.guarded and not self._results.get(case.text)
            time_left_s = self._room_s() / plan.processes if first else self._left_s
            # Half the timeout is for preparing, slow steps and whole jobs.
            share_s = max(min(share_s, STEPS_S[plan.rigor], 0.5 * plan.timeout_s), LEAST_SHARE_S)
            share_s = min(share_s, max(self._left_s, LEAST_SHARE_S))
        settings = replace(DEFAULTS, target=plan.target, budget_s=plan.sustain_s or share_s, steps=plan.steps)
        if plan.sustain_s is not None:
            settings = replace(settings, sustain=True, max_samples=20_000)  # enough for any slope, in a small file
        elif plan.rigor != "quick":
            known = self._current.get(case.text)
            between = known.estimate.spread or 0.0 if known and known.estimate else 0.0
            target = max(min(plan.target, DEFAULTS.target), between / SETTLED)
            settings = replace(settings, target=target, min_time_s=share_s / 2)
        preheat_s, deadline_s = min(preheat_s, settings.budget_s / 4), time.monotonic() + plan.timeout_s
        job = MeasureJob(case, settings, plan.seed, process, preheat_s, time_left_s, deadline_s)
        return replace(job, whole=plan.rigor == "rigorous" and process == 0, data=plan.data, rendezvous=plan.rendezvous)

    def _add(self, case: Case, result: Result) -> Finished:
        self._under_way, results = None, self._results.setdefault(case.text, [])
        results.append(result)
        self._current[case.text] = self._combined(case.text)
        self._widen()
        samples = result.processes[0].samples_s if result.processes else ()
        return Finished(self._judge.judge(self._current[case.text]), len(results) - 1, samples)

    def _widen(self) -> None:
        widened = with_intervals([*self._current.values()], self._borrowed)
        self._current.update((result.case.text, result) for result in widened)

    def _combined(self, text: str) -> Result:
        combined = replace(combine_results(self._results[text]), rigor=self._plan.rigor)
        if (estimate := combined.estimate) and self._machine and self._machine.on_battery:
            return replace(combined, estimate=with_flag(estimate, "on-battery"))
        return combined

    def _conclude(self) -> Iterator[Event]:
        before = dict(self._current)
        real = [result for result in before.values() if not result.case.device.startswith("fake")]
        unknown = any(result.estimate and len(result.processes) == 1 for result in real)
        if self._plan.budget_s >= REFERENCE_LEAST_BUDGET_S and self._plan.steps is None and unknown:
            self._borrowed = (None if typical_spread(real) else measure_spread(self._look)) or self._borrowed
        self._widen()
        if (found := typical_spread([*before.values()]) or self._borrowed) is not None:
            yield SpreadFound(found)
        yield from (Revised(result) for result in self._judge.revised() if result != before[result.case.text])


class PeakJudge:
    """Adds the share of the machine's peak to the `results` of a run; measures a ceiling again that was exceeded."""

    def __init__(self, known: Ceilings, measure_again: Callable[[Case], Result], results: dict[str, Result]) -> None:
        self._known, self._measure_again, self._results, self._again = known, measure_again, results, set[str]()

    def judge(self, result: Result) -> Result:
        text = result.case.text
        self._results[text], tries = result, 0 if text in self._again else 3
        judged = self._judged(result)
        # A busy machine can hide its ceiling for a while.
        while tries and judged.peak and judged.peak.share > IMPLAUSIBLE:
            if (case := case_again(judged, self._ceilings)) is None:
                break
            tries -= 1
            self._again.add(text)
            self._known = merge(self._known, ceilings_of([self._measure_again(case)]))
            judged = self._judged(result)
        self._results[text] = judged
        return judged

    def revised(self) -> Iterator[Result]:
        """All results at the end: a later ceiling changes earlier ones."""
        for result in tuple(self._results.values()):
            self.judge(result)
        for text, result in tuple(self._results.items()):
            self._results[text] = self._judged(result)
            yield self._results[text]

    @property
    def _ceilings(self) -> Ceilings:
        return merge(self._known, ceilings_of(self._results.values()))

    def _judged(self, result: Result) -> Result:
        judged = with_peak(result, self._ceilings, again=result.case.text in self._again)
        return replace(judged, cautions=cautions_of(judged))


def measure_spread(measure: Callable[[Case], Result] | None = None) -> float | None:
    """How far fresh processes of this machine differ; None where they could not be started."""
    measure = measure or (lambda case: measure_case(MeasureJob(case, EXTRA_SETTINGS), timeout_s=120.0))
    centers = [each.center_s for _ in range(REFERENCE_PROCESSES) for each in measure(REFERENCE).processes]
    return spread.relative_spread(centers) if len(centers) >= REFERENCE_PROCESSES else None


def results_so_far(run: Run) -> dict[str, list[Result]]:
    """A run's results by case and process, but interrupted or skipped ones. The first gets sums: budget and phases."""
    return {
        result.case.text: [
            replace(result, processes=result.processes[:1]),
            *(replace(result, processes=(other,), phases_s={}, budget_s=None) for other in result.processes[1:]),
        ]
        for result in run.results
        if result.processes or result.status not in ("interrupted", "skipped")
    }


def _phases_s(result: Result, *but: str) -> float:
    return sum(seconds for name, seconds in result.phases_s.items() if name not in but)


def cost_s(work: Work | None) -> float:
    """How long a step takes on some machine, for comparisons; 0 where its work is not known."""
    return max((work.flops or 0.0) / FLOPS_PER_S, (work.bytes or 0.0) / BYTES_PER_S) if work else 0.0


def least_s(case: Case, known: Iterable[Result]) -> float | None:
    """Seconds to prepare a case and run the fewest steps, judged by its workload, or others, on its device."""
    known = list(known)
    there = [(each, each.estimate) for each in known if each.estimate and each.case.device == case.device]
    seen = [pair for pair in there if pair[0].case.workload == case.workload] or there
    if not seen:
        return None
    cost = cost_s(find_workload(case.workload).work(full_params(case), setting_of(case)))
    paces = [estimate.center_s / cost_s(each.work) for each, estimate in seen if cost_s(each.work)]
    step_s = cost * median(paces) if cost and paces else median(estimate.center_s for _, estimate in seen)
    # Of one process; the first start also waits for what all later ones share.
    apart = (START, "steps", "preheat", "job", "ranks")
    preparing_s = median(_phases_s(each, *apart) / max(1, len(each.processes)) for each, _ in seen)
    if case.workers > 1:  # every rank imports torch for itself
        ranks = [each for each in known if each.phases_s.get("ranks")]
        preparing_s += median([each.phases_s["ranks"] / max(1, len(each.processes)) for each in ranks] or [5.0])
    return max(1.0, float(math.ceil(preparing_s + (FEWEST_SAMPLES + 1) * step_s)))
