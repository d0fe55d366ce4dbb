"""The tables of a publication with the results of a replication next to them, in the same shape and units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from torchmark.analyze.jobs import Bias, Own, Printed, Replicated, Row, Sheet, find_bias
from torchmark.measure.procedures import PROCEDURES
from torchmark.publications import Figure, Publication, PublishedTable
from torchmark.records import Case, Result, parse_case
from torchmark.studies.replicate import steady_case

CPU = "cpu"
NO_RATIO = "not-comparable"  # the kind of note on figures that were got by other code
DISTURBANCES = ("contended", "paused")  # kinds of cautions: such a figure is too slow
NO_ACCELERATOR = "no accelerator here"
NOT_ASKED = "not asked for"


def published_tables(
    publication: Publication, results: Sequence[Result], devices: Sequence[str], all_devices: bool = True
) -> Replicated:
    """All tables of the publication that have something to replay; `all_devices`: none of this machine was left out."""
    view = _View(publication, results, devices, NO_ACCELERATOR if all_devices else NOT_ASKED)
    tables = [table for table in publication.tables if any(figure.case for figure in table.figures)]
    sheets = (*map(view.sheet, tables), *view.readings())
    return Replicated(publication.name, publication.title, sheets, tuple(view.biases()))


class _View:
    """One publication and its results here."""

    def __init__(
        self, publication: Publication, results: Sequence[Result], devices: Sequence[str], missing: str
    ) -> None:
        self._publication, self._procedure = publication, PROCEDURES[publication.name]()
        self._results = {result.case.text: result for result in results}
        self._devices, self._missing = sorted(devices, key=lambda device: device != CPU), missing
        self._accelerators = [device for device in devices if device != CPU]

    def sheet(self, table: PublishedTable) -> Sheet:
        rows: dict[tuple[str, ...], list[Figure]] = {}
        for figure in table.figures:
            rows.setdefault(figure.labels, []).append(figure)
        by_machine = _is_by_machine(list(rows.values()))
        devices = [] if by_machine else self._devices_of(table)
        places = tuple(f"this {_shown(device)}" for device in devices) or self._machine_places()
        return Sheet(
            publication=self._publication.name,
            title=table.title,
            protocol=table.protocol,
            headers=table.headers,
            columns=tuple(dict.fromkeys(figure.column for figure in table.figures)),
            places=places,
            rows=tuple(self._row(labels, figures, devices) for labels, figures in rows.items()),
            is_comparable=NO_RATIO not in table.notes,
            by_machine=by_machine,
            has_speedup=len(places) > 1 and any(figure.kind == "derived" for figure in table.figures),
        )

    def readings(self) -> Iterator[Sheet]:
        """One more table where text and effect of a listing differ: all that it can be understood to do."""
        figure = next(figure for figure in self._publication.figures if figure.case)
        for device in self._devices:
            cases = self._procedure.readings(_here(figure, device))
            found = {name: self._results[case.text] for name, case in cases.items() if case.text in self._results}
            if cases:
                yield Sheet(
                    publication=self._publication.name,
                    title=f"What the listing can be read as, on {device}",
                    protocol="",
                    headers=("reading",),
                    columns=(),
                    places=(f"{figure.unit} here",),
                    rows=tuple(
                        Row((name,), (), (self._own(case, figure),), figure.unit) for name, case in cases.items()
                    ),
                    notes=self._procedure.explain(found),
                )

    def biases(self) -> Iterator[Bias]:
        workloads = {parse_case(figure.case).workload for figure in self._publication.figures if figure.case}
        for result in self._results.values():
            right = self._results.get(steady_case(result.case).text)
            if result.case.protocol == "as-published" and result.case.workload in workloads and right:
                bias = find_bias(result, right)
                if bias:
                    yield bias

    def _machine_places(self) -> tuple[str, ...]:
        """One column, unless there are several accelerators that a row could mean."""
        several = len(self._accelerators) > 1
        return tuple(f"this {name}" for name in self._accelerators) if several else ("this machine",)

    def _devices_of(self, table: PublishedTable) -> list[str]:
        """Those on which any of its work can be replayed."""
        figures = [figure for figure in table.figures if figure.case]
        return [device for device in self._devices if any(self._runs_on(figure, device) for figure in figures)]

    def _runs_on(self, figure: Figure, device: str) -> bool:
        return self._procedure.runs_on(_here(figure, device), device.partition(":")[0])

    def _row(self, labels: tuple[str, ...], figures: Sequence[Figure], devices: Sequence[str]) -> Row:
        figure = next(figure for figure in figures if figure.case)
        printed = tuple(Printed(each.machine, each.column, each.printed, each.value, each.unit) for each in figures)
        own = tuple(self._own(_here(figure, device), figure) for device in devices) or self._own_by_machine(figure)
        return Row(labels, printed, own, figure.unit)

    def _own_by_machine(self, figure: Figure) -> tuple[Own, ...]:
        """A CPU's row is this CPU's, any other row this machine's accelerator's."""
        if self._publication.machine(figure.machine).device == CPU:
            first = self._own(_here(figure, CPU), figure) if CPU in self._devices else Own(reason=NOT_ASKED)
            return (first, *[Own()] * (len(self._machine_places()) - 1))
        if not self._accelerators:
            return (Own(reason=self._missing),)
        return tuple(self._own(_here(figure, device), figure) for device in self._accelerators)

    def _own(self, case: Case, figure: Figure) -> Own:
        result = self._results.get(case.text)
        about = Own(case=case.text, device=case.device)
        if result is None:
            return replace(about, reason="not replayed")
        about = replace(about, status=result.status)
        if result.status != "ok" or result.estimate is None:
            return replace(about, reason=result.explanation)
        step_s, job = result.estimate.center_s, result.job
        steady = self._results.get(steady_case(case).text)
        return replace(
            about,
            value=_in_unit(step_s, figure),
            low=_in_unit(job.low_s / job.seconds * step_s, figure) if job and not job.whole else None,
            high=_in_unit(job.high_s / job.seconds * step_s, figure) if job and not job.whole else None,
            extrapolated=job is not None and not job.whole,
            disturbed="; ".join(caution.cause for caution in result.cautions if caution.kind in DISTURBANCES),
            steady=_steady_value(result, steady, figure) if steady else None,
        )


def _is_by_machine(rows: Sequence[Sequence[Figure]]) -> bool:
    """Whether rows are machines, so that several of them have the same work."""
    works = [_here(figures[0], CPU).text for figures in rows if figures[0].case]
    return len(set(works)) < len(works)


def _here(figure: Figure, device: str) -> Case:
    return replace(parse_case(figure.case or ""), device=device)


def _shown(device: str) -> str:
    return "CPU" if device == CPU else device


def _in_unit(step_s: float, figure: Figure) -> float:
    """Seconds for a step in the unit of a published figure."""
    values = {"it/s": 1 / step_s, "ms/it": 1000 * step_s, "s": step_s * figure.steps}
    return values.get(figure.unit, step_s)


def _steady_value(result: Result, steady: Result, figure: Figure) -> float | None:
    bias = find_bias(result, steady)
    if bias is None:
        return None
    return bias.steady_s if bias.whole_job else _in_unit(bias.steady_s, figure)
