"""Replays the tables of publications as they were measured, and with --steady also the right way."""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import product

from msgspec.structs import replace

from torchmark.analyze.jobs import Own, Printed, Replicated, Row, Sheet, find_bias
from torchmark.measure.cases import excess_memory
from torchmark.measure.messages import call
from torchmark.measure.process import Process, ProcessFailed, without_figure
from torchmark.measure.replay import PROCEDURES, Procedure
from torchmark.measure.session import Finished, Options, Plan, Revised, Session, Started
from torchmark.measure.training_script import MORE_TIME, Task, would_take
from torchmark.publications import Figure, Publication, PublishedTable
from torchmark.records import Case, Machine, Result, parse_case
from torchmark.studies.study import Event, Study

STEADY_SHARE = 0.45  # of the budget, with --steady
LEAST_S = 2.0  # with less time left, no process is started
GRACE_S = 30.0  # how late a process may be whose steps seemed to fit
CPU, NOT_ASKED = "cpu", "not asked for"


class ReplicateOptions(Options, frozen=True):
    publications: tuple[Publication, ...]
    devices: tuple[str, ...]
    scale: float = 1.0
    steady: bool = False

    @property
    def command(self) -> str:
        given = " ".join(publication.name for publication in self.publications)
        options = f"--device {','.join(self.devices)} --scale {self.scale:g} --budget {self.budget_s:g}s"
        return f"torchmark replicate {given} {options}{' --steady' if self.steady else ''} --seed {self.seed}"


def plan_tasks(options: ReplicateOptions) -> tuple[Task, ...]:
    """All that the tables hold and these devices can do, each once, in order."""
    found: dict[str, Task] = {}
    for publication in options.publications:
        procedure = PROCEDURES[publication.name]()
        for figure, device in product(publication.figures, options.devices):
            if _runs_on(procedure, figure, device):
                case, chosen = _here(figure, device), (options.scale, options.seed, options.data)
                for each in (case, *procedure.readings(case).values()):
                    found.setdefault(each.text, Task(publication.name, each, figure.steps, *chosen))
    return tuple(found.values())


def _runs_on(procedure: Procedure, figure: Figure, device: str) -> bool:
    return bool(figure.case) and procedure.runs_on(_here(figure, device), device.partition(":")[0])


def steady_case(case: Case) -> Case:
    return replace(case, protocol="steady")


def _here(figure: Figure, device: str) -> Case:
    return replace(parse_case(figure.case or ""), device=device)


class Replication(Study):
    options: ReplicateOptions

    def __init__(self, options: ReplicateOptions, machine: Machine) -> None:
        self.tasks = plan_tasks(options)
        published = [task.case for task in self.tasks]
        super().__init__(options, machine, published + [steady_case(case) for case in published if options.steady])
        self._procedures = {name: procedure() for name, procedure in PROCEDURES.items()}
        self._results: dict[str, Result] = {}
        self._session: Session | None = None
        self._end = 0.0  # of replaying

    def events(self) -> Iterator[Event]:
        """Cheap rows come first: expensive ones are predicted from them."""
        options = self.options
        end = time.monotonic() + options.budget_s
        self._end = end - (STEADY_SHARE * options.budget_s if options.steady else 0.0)
        groups: dict[tuple[str, str], list[Task]] = {}  # those that share a process
        for task in self.tasks:
            together = task.case.workload == self._procedures[task.publication].shared
            key = (task.case.device, task.case.workload) if together else (task.case.text, "")
            groups.setdefault(key, []).append(task)
        for group in sorted(groups.values(), key=lambda group: sum(map(self._cost_s, group))):
            yield from self._replay(group)
        cases = []
        for case in (task.case for task in self.tasks if options.steady):
            if self._results[case.text].status == "ok":
                cases.append(steady_case(case))
            else:
                reason = "there is no figure of the published way to compare it with"
                yield self._finish(without_figure(steady_case(case), "skipped", reason))
        if cases:
            left_s = max(end - time.monotonic(), 0.0)
            plan = Plan(tuple(cases), "quick", budget_s=left_s, seed=options.seed, data=options.data, guarded=True)
            self._session = Session(plan, self.machine, self.listen, self.log)
            yield from self._session.events()

    def unfinished(self) -> Iterable[Event]:
        return map(Revised, self._session.interrupted()) if self._session else super().unfinished()

    def _replay(self, group: Sequence[Task]) -> Iterator[Event]:
        refusals = [self._refusal(each) for each in group]
        for each, refusal in zip(group, refusals, strict=True):
            if refusal:
                yield self._finish(without_figure(each.case, "skipped", refusal))
        fitting = [each for each, refusal in zip(group, refusals, strict=True) if not refusal]
        with closing(self._run(fitting)) as results:
            for each in fitting:
                self.under_way = each.case
                yield Started(each.case, 0)
                yield self._finish(next(results))
        self.under_way = None

    def _run(self, group: Sequence[Task]) -> Generator[Result]:
        """The result of each case in one process, however that ends."""
        left_s, missing = self._end - time.monotonic(), list(group)
        try:
            with Process(log=self.log, timeout_s=round(left_s + GRACE_S), listen=self.listen) as process:
                process.send(call("torchmark.measure.replay:replay_all", group, left_s, self.options.steady))
                while missing:
                    process.timeout_s = max(self._end + GRACE_S - time.monotonic(), 0.0)
                    result = process.next_record(Result)
                    missing.pop(0)
                    yield result
                process.leave()
        except ProcessFailed as failure:
            status, reason = failure.result.status, failure.result.reason or ""
            yield from (without_figure(each.case, status, reason) for each in missing)

    def _finish(self, result: Result) -> Finished:
        self._results[result.case.text] = result
        return Finished(result, 0, result.estimate.samples_s if result.estimate else ())

    def _refusal(self, task: Task) -> str:
        if needs := excess_memory(task.case, self.machine.devices):
            return f"{needs}, and was not tried"
        left_s = self._end - time.monotonic()
        known = [  # predicted by the same work in other sizes
            (other.case.mode == task.case.mode, self._procedures[other.publication].step_cost_s(other), result)
            for other in self.tasks
            if other.case.workload == task.case.workload and other.case.device == task.case.device
            if (result := self._results.get(other.case.text)) and result.estimate
        ]
        if known:
            _, cost_s, nearest = max(known, key=lambda one: one[:2])
            assert nearest.estimate is not None
            needed_s = nearest.phases_s.get("around it", 0.0) + nearest.estimate.center_s / cost_s * self._cost_s(task)
            if needed_s > left_s:
                return f"{would_take(needed_s)}. {MORE_TIME}"
        return f"its turn did not come in time. {MORE_TIME}" if left_s < LEAST_S else ""

    def _cost_s(self, task: Task) -> float:
        procedure = self._procedures[task.publication]
        return procedure.steps(task) * procedure.step_cost_s(task)


def published_tables(
    publication: Publication, results: Sequence[Result], devices: Sequence[str], all_devices: bool = True
) -> Replicated:
    """All tables with something to replay, next to the results here."""
    view = _View(publication, results, devices, "no accelerator here" if all_devices else NOT_ASKED)
    tables = [table for table in publication.tables if any(figure.case for figure in table.figures)]
    workloads = {parse_case(figure.case).workload for figure in publication.figures if figure.case}
    biases = [
        bias
        for result in results
        if result.case.protocol == "as-published" and result.case.workload in workloads
        if (right := view.results.get(steady_case(result.case).text)) and (bias := find_bias(result, right))
    ]
    return Replicated(publication.name, publication.title, (*map(view.sheet, tables), *view.readings()), tuple(biases))


class _View:
    def __init__(self, publication: Publication, results: Sequence[Result], devices: Sequence[str], missing: str):
        self._publication, self._procedure = publication, PROCEDURES[publication.name]()
        self.results = {result.case.text: result for result in results}
        self._devices, self._missing = sorted(devices, key=lambda device: device != CPU), missing
        self._accelerators = [device for device in devices if device != CPU]
        # One column, unless there are several accelerators that a row could mean.
        places = tuple(f"this {name}" for name in self._accelerators)
        self._places = places if len(places) > 1 else ("this machine",)

    def sheet(self, table: PublishedTable) -> Sheet:
        rows: dict[tuple[str, ...], list[Figure]] = {}
        for figure in table.figures:
            rows.setdefault(figure.labels, []).append(figure)
        works = [_here(figures[0], CPU).text for figures in rows.values() if figures[0].case]
        by_machine = len(set(works)) < len(works)  # rows are machines with the same work
        devices = [] if by_machine else self._devices  # where any of its work can be replayed
        devices = [each for each in devices if any(_runs_on(self._procedure, figure, each) for figure in table.figures)]
        places = tuple(f"this {'CPU' if device == CPU else device}" for device in devices) or self._places
        columns = tuple(dict.fromkeys(figure.column for figure in table.figures))
        return Sheet(
            *(self._publication.name, table.title, table.protocol, table.headers, columns, places),
            rows=tuple(self._row(labels, figures, devices) for labels, figures in rows.items()),
            is_comparable="not-comparable" not in table.notes,
            by_machine=by_machine,
            has_speedup=len(places) > 1 and any(figure.kind == "derived" for figure in table.figures),
        )

    def readings(self) -> Iterator[Sheet]:
        """One more table for a listing whose text and effect differ: all that it can be read as."""
        figure = next(figure for figure in self._publication.figures if figure.case)
        for device in self._devices:
            cases, title = self._procedure.readings(_here(figure, device)), "What the listing can be read as, on "
            found = {name: self.results[case.text] for name, case in cases.items() if case.text in self.results}
            if cases:
                rows = tuple(Row((name,), (), (self._own(case, figure),), figure.unit) for name, case in cases.items())
                about = self._publication.name, title + device, "", ("reading",), (), (f"{figure.unit} here",)
                yield Sheet(*about, rows, notes=self._procedure.explain(found))

    def _row(self, labels: tuple[str, ...], figures: Sequence[Figure], devices: Sequence[str]) -> Row:
        """A row of a published CPU gets this CPU's figure, one of another machine the accelerator's."""
        figure = next(figure for figure in figures if figure.case)
        printed = tuple(Printed(each.machine, each.column, each.printed, each.value, each.unit) for each in figures)
        is_cpu = not devices and self._publication.machine(figure.machine).device == CPU
        places = [each for each in self._devices if each == CPU] if is_cpu else devices or self._accelerators
        own = [self._own(_here(figure, device), figure) for device in places]
        own = own or [Own(reason=NOT_ASKED if is_cpu else self._missing)]
        own += [Own()] * (len(self._places) - 1 if is_cpu else 0)
        return Row(labels, printed, tuple(own), figure.unit)

    def _own(self, case: Case, figure: Figure) -> Own:
        result, right = self.results.get(case.text), self.results.get(steady_case(case).text)
        if result is None:
            return Own(case.text, case.device, reason="not replayed")
        if result.status != "ok" or result.estimate is None:
            return Own(case.text, case.device, result.status, reason=result.explanation)

        def in_unit(step_s: float) -> float:
            return {"it/s": 1 / step_s, "ms/it": 1000 * step_s, "s": step_s * figure.steps}.get(figure.unit, step_s)

        step_s, bias, job = result.estimate.center_s, find_bias(result, right) if right else None, result.job
        own = Own(case.text, case.device, result.status, in_unit(step_s))
        if job and not job.whole:
            low, high = (in_unit(seconds / job.seconds * step_s) for seconds in (job.low_s, job.high_s))
            own = replace(own, low=low, high=high, extrapolated=True)
        return replace(
            own,
            disturbed="; ".join(each.cause for each in result.cautions if each.kind in ("contended", "paused")),
            steady=(bias.steady_s if bias.whole_job else in_unit(bias.steady_s)) if bias else None,
        )
