"""Published figures as runs, so that they can be shown and compared like any other run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from msgspec.structs import replace

from torchmark.errors import UnknownName, UsageError
from torchmark.publications.contract import (
    Figure,
    Publication,
    PublishedMachine,
    PublishedTable,
    find_publication,
    names,
)
from torchmark.records import (
    DeviceInfo,
    Estimate,
    JobEstimate,
    Machine,
    Remark,
    Result,
    Run,
    RunHeader,
    Trend,
    Work,
    parse_case,
)

_SHORTEST_PART = 3  # letters; fewer are part of too many names

Place = tuple[Publication, PublishedMachine]


def find_published(text: str, repeats: bool = False) -> tuple[Run, ...]:
    """The runs that a person means by `m1-chips`, `m1-chips/M1 Ultra GPU`, or `M1 Ultra GPU` in any publication."""
    name, slash, machine = text.partition("/")
    places = find_hardware(text) if name not in names() else ()
    if places:
        return (_joined([as_runs(publication, each.name, repeats)[0] for publication, each in places], places),)
    publication = find_publication(name)
    return as_runs(publication, _find_machine(publication, machine).name if slash else None, repeats)


@cache
def all_runs() -> tuple[Run, ...]:
    """Every machine of every publication."""
    return tuple(run for name in names() for run in as_runs(find_publication(name)))


def find_hardware(text: str) -> tuple[Place, ...]:
    """The machines of all publications that are the hardware named by `text`: exactly, by its words or a part of it."""
    everywhere = [(find_publication(name), machine) for name in names() for machine in find_publication(name).machines]
    plain, words = _plain(text), set(_words(text))
    tries: tuple[Callable[[PublishedMachine], bool], ...] = (
        lambda machine: bool(plain) and plain in (_plain(machine.name), _plain(machine.known_as)),
        lambda machine: bool(words) and any(words <= set(_words(term)) for term in _search_terms(machine)),
        lambda machine: len(plain) >= _SHORTEST_PART and any(plain in _plain(term) for term in _search_terms(machine)),
    )
    titles = ([machine.title for _, machine in everywhere if fits(machine)] for fits in tries)
    found = list(dict.fromkeys(next(filter(None, titles), [])))
    if len(found) > 1:
        listed = ", ".join(f"'{title}'" for title in found)
        raise UsageError(f"'{text}' could be {len(found)} published machines: {listed}", "Name one of them")
    return tuple(place for place in everywhere if place[1].title in found)


def hardware_titles() -> tuple[str, ...]:
    """All names that `find_hardware` knows machines by."""
    return tuple(dict.fromkeys(machine.title for name in names() for machine in find_publication(name).machines))


def _search_terms(machine: PublishedMachine) -> tuple[str, ...]:
    """The names to search a machine by; one that is not known for sure is found by its name alone."""
    own = machine.hardware.partition("(with ")[0]  # what else is in the machine is not the hardware that was timed
    return (machine.name, machine.known_as, own) if machine.known_as else (machine.name,)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.casefold())


def _joined(runs: Sequence[Run], places: Sequence[Place]) -> Run:
    """All figures of one kind of hardware, which several publications may have, as one run."""
    first, *others = runs
    if not others:
        return first
    kept: list[Result] = []
    for run in runs:
        known = {result.case.text for result in kept}
        kept += [result for result in run.results if result.case.text not in known]
    label = f"{places[0][1].title} ({', '.join(publication.name for publication, _ in places)})"
    years = " and ".join(dict.fromkeys(run.header.created for run in runs if run.header.created))
    cases = tuple(result.case.text for result in kept)
    return Run(replace(first.header, id=label, label=label, created=years, cases=cases), tuple(kept))


def as_runs(publication: Publication, machine: str | None = None, repeats: bool = False) -> tuple[Run, ...]:
    """One run for each machine, or for the one that is named.

    A figure that stands in two tables is one result, as a run has one for each case; `repeats` keeps both.
    """
    chosen = [each for each in publication.machines if machine in (None, each.name)]
    return tuple(_run(publication, each, repeats) for each in chosen)


def _find_machine(publication: Publication, text: str) -> PublishedMachine:
    """By its name, however it is spaced and capitalised, or by the beginning that no other has."""
    by_name = {_plain(each.name): each for each in publication.machines}
    wanted = _plain(text)
    names = [wanted] if wanted in by_name else [name for name in by_name if wanted and name.startswith(wanted)]
    found = [by_name[name] for name in names]
    if not found:
        raise UnknownName(f"machine of {publication.name}", text, [each.name for each in publication.machines])
    if len(found) > 1:
        known = ", ".join(f"'{publication.name}/{each.name}'" for each in found)
        raise UsageError(f"'{publication.name}/{text}' could be {len(found)} machines: {known}", "Name one of them")
    return found[0]


def is_published_name(text: str) -> bool:
    """Whether this is the name of a publication or of one of its machines, however it is spaced and capitalised."""
    found = [find_publication(name) for name in names()]
    return _plain(text) in {
        _plain(name) for each in found for name in (each.name, *(one.name for one in each.machines))
    }


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _run(publication: Publication, machine: PublishedMachine, repeats: bool) -> Run:
    results = [
        _result(publication, table, figure)
        for table in publication.tables
        for figure in table.figures
        if figure.machine == machine.name and figure.case
    ]
    if not repeats:
        first = {result.case.text: result for result in reversed(results)}
        results = [result for result in results if result is first[result.case.text]]
    label = f"{publication.name}/{machine.name}"
    header = RunHeader(
        id=label,
        created=str(publication.year or ""),
        machine=_machine(machine),
        cases=tuple(dict.fromkeys(result.case.text for result in results)),
        command=f"torchmark replicate {publication.name}",
        version="",
        label=label,
    )
    return Run(header, tuple(results))


def _machine(machine: PublishedMachine) -> Machine:
    """The machine as published; what the publication does not say stays empty."""
    own = machine.device == "cuda"  # has memory of its own; the others share that of the machine
    memory = machine.memory_gib * 2**30 if own and machine.memory_gib else None
    cores = machine.cores if machine.device == "cpu" else 0
    return Machine(
        cpu=machine.hardware if machine.device == "cpu" else "",
        physical_cores=cores,
        logical_cores=cores,
        memory_gib=0 if own else machine.memory_gib,
        os="",
        python="",
        devices=(DeviceInfo(machine.device, machine.hardware, memory, cores=machine.cores or None),),
    )


def _result(publication: Publication, table: PublishedTable, figure: Figure) -> Result:
    case = parse_case(figure.case or "")
    total = figure.total_s
    notes = publication.notes_on(table, figure) if figure.value is not None else {}
    power = next((each.value for each in publication.of_kind("power") if each.machine == figure.machine), None)
    return Result(
        case=case,
        status="oom" if figure.value is None else "ok",
        reason=f"published as '{figure.printed}': out of memory" if figure.value is None else None,
        params=case.params,
        estimate=_estimate(figure),
        version=figure.version,
        work=Work(figure.items, figure.item_unit, bytes=figure.item_bytes and figure.item_bytes * figure.items),
        job=JobEstimate(total, total, total, whole=True) if total is not None else None,
        metrics={} if power is None else {"peak_power_w": power},
        settings={
            "machine": figure.machine,
            "table": table.title,
            "row": " / ".join(figure.labels),
            "column": figure.column,
            "printed": figure.printed,
            "unit": figure.unit,
            "steps": figure.steps if figure.steps > 1 else None,
        },
        cautions=tuple(Remark(kind, note.cause, note.fix) for kind, note in notes.items()),
    )


def _estimate(figure: Figure) -> Estimate | None:
    """One block of all its steps is all that was timed: there is no interval, no first step and no spread."""
    seconds = figure.step_s
    if seconds is None:
        return None
    return Estimate(
        center_s=seconds,
        low_s=seconds,
        high_s=seconds,
        estimand="mean",
        verdict="as-published",
        first_step_s=0.0,
        effective_samples=1.0,
        warmup_cut=0,
        trend=Trend(0.0, 0.0),
        evidence=("a published figure: how sure it is was not said",),
        sample_count=1,
        block_size=figure.steps,
        median_s=seconds,
        mean_s=seconds,
        mean_low_s=seconds,
        mean_high_s=seconds,
        min_s=seconds,
        duration_s=figure.total_s or 0.0,
    )
