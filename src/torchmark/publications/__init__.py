"""Published figures: one data file per publication, with figures as printed, and the same figures as runs."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchmark.case import parse_case
from torchmark.errors import UnknownName, UsageError
from torchmark.records import DeviceInfo, Estimate, JobEstimate, Machine, Remark, Result, Run, RunHeader, Trend, Work

_FOLDER = Path(__file__).parent
Kind = Literal["measured", "power", "derived"]
DeviceKind = Literal["cpu", "cuda", "mps"]


class Note(Struct, frozen=True, forbid_unknown_fields=True):  # why figures should be read with care
    cause: str
    fix: str
    only: tuple[DeviceKind, ...] = ()  # the devices that it matters on; empty: all


class PublishedMachine(Struct, frozen=True, forbid_unknown_fields=True):  # one device of a machine
    name: str  # 'M1 Ultra GPU': after the publication and a slash it names a run
    hardware: str
    device: DeviceKind  # that was timed
    memory_gib: int = 0  # 0: the publication does not say
    cores: int = 0  # of the device
    known_as: str = ""  # 'RTX 3090', in every publication; empty if the hardware is unknown or unsound
    notes: tuple[str, ...] = ()  # doubts about the machine itself: kinds of Publication.notes

    @property
    def title(self) -> str:
        return self.known_as or self.name


class Figure(Struct, frozen=True, forbid_unknown_fields=True):  # one number of a table
    machine: str  # the name of a PublishedMachine
    labels: tuple[str, ...]  # the cells that name the row, as printed, one for each header
    column: str  # the heading that it stands under, as printed
    printed: str
    unit: Literal["s", "it/s", "ms/it", "s/it", "W", "x"]
    value: float | None = None  # for all steps together if the unit is seconds; None: out of memory
    kind: Kind = "measured"
    case: str | None = None  # the same work here; None if there is nothing to run
    steps: int = 1
    items: float = 1  # in one step
    item_unit: str = "iteration"
    item_bytes: float | None = None  # that must be moved for one item
    version: int = 1  # of the workload that does the same work
    notes: tuple[str, ...] = ()  # kinds of Publication.notes


class PublishedTable(Struct, frozen=True, forbid_unknown_fields=True):  # its figures share one procedure
    title: str
    headers: tuple[str, ...]  # of the cells that name a row
    protocol: str  # how it was timed, in words
    figures: tuple[Figure, ...]  # in printed order
    notes: tuple[str, ...] = ()  # kinds of Publication.notes that all its figures have


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # m1-chips
    title: str
    source: str  # where it was published, in words
    about: str  # one sentence
    machines: tuple[PublishedMachine, ...]
    tables: tuple[PublishedTable, ...]
    notes: dict[str, Note]  # by kind
    year: int = 0  # 0: it does not say

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(figure for table in self.tables for figure in table.figures)

    def of_kind(self, kind: Kind) -> tuple[Figure, ...]:
        return tuple(figure for figure in self.figures if figure.kind == kind)

    def machine(self, name: str) -> PublishedMachine:
        return next(machine for machine in self.machines if machine.name == name)


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def find_publication(name: str) -> Publication:
    if name not in names():
        raise UnknownName("publication", name, names())
    content = msgspec.toml.decode((_FOLDER / f"{name}.toml").read_bytes())
    for table in content["tables"]:
        shared = table.pop("shared", {})  # fields that all its figures have
        table["figures"] = [shared | figure for figure in table["figures"]]
    return msgspec.convert(content, Publication)


@cache
def all_runs() -> tuple[Run, ...]:
    return tuple(run for name in names() for run in as_runs(find_publication(name)))


def as_runs(publication: Publication, machine: str | None = None, repeats: bool = False) -> tuple[Run, ...]:
    """One run for each machine, or for the named one, with one figure for each case unless `repeats`."""
    return tuple(_run(publication, each, repeats) for each in publication.machines if machine in (None, each.name))


def find_published(text: str, repeats: bool = False) -> tuple[Run, ...]:
    """For `m1-chips` or `m1-chips/M1 Ultra GPU`, or one run for `M1 Ultra GPU` in all publications."""
    name, slash, machine = text.partition("/")
    places = find_hardware(text) if name not in names() else ()
    if not places:
        publication = find_publication(name)
        return as_runs(publication, _find_machine(publication, machine) if slash else None, repeats)
    first, *others = runs = [run for publication, each in places for run in as_runs(publication, each.name, repeats)]
    if not others:
        return (first,)
    kept = [*first.results]
    for run in others:
        known = {result.case.text for result in kept}
        kept += [result for result in run.results if result.case.text not in known]
    label = f"{places[0][1].title} ({', '.join(publication.name for publication, _ in places)})"
    years = " and ".join(dict.fromkeys(run.header.created for run in runs if run.header.created))
    header = replace(first.header, id=label, label=label, created=years, cases=tuple(each.case.text for each in kept))
    return (Run(header, tuple(kept)),)


def find_hardware(text: str) -> tuple[tuple[Publication, PublishedMachine], ...]:
    """The machines with this hardware in all publications, by its exact name, its words, or a part of its name."""
    plain, words = _plain(text), _words(text)
    tries: tuple[Callable[[PublishedMachine], bool], ...] = (
        lambda machine: bool(plain) and plain in (_plain(machine.name), _plain(machine.known_as)),
        lambda machine: bool(words) and any(words <= _words(term) for term in _search_terms(machine)),
        # Fewer than three letters are part of too many names.
        lambda machine: len(plain) >= 3 and any(plain in _plain(term) for term in _search_terms(machine)),
    )
    titles = ([machine.title for _, machine in _machines() if fits(machine)] for fits in tries)
    found = list(dict.fromkeys(next(filter(None, titles), [])))
    if len(found) > 1:
        listed = ", ".join(f"'{title}'" for title in found)
        raise UsageError(f"'{text}' could be {len(found)} published machines: {listed}", "Name one of them")
    return tuple(place for place in _machines() if place[1].title in found)


def hardware_titles() -> tuple[str, ...]:
    return tuple(dict.fromkeys(machine.title for _, machine in _machines()))


def is_published_name(text: str) -> bool:
    """Whether this names a publication or one of its machines, in any spacing and capitals."""
    return _plain(text) in map(_plain, (*names(), *(machine.name for _, machine in _machines())))


def _machines() -> list[tuple[Publication, PublishedMachine]]:
    return [(found, machine) for found in map(find_publication, names()) for machine in found.machines]


def _search_terms(machine: PublishedMachine) -> tuple[str, ...]:
    """One that is not known for sure is found by its name alone."""
    timed = machine.hardware.partition("(with ")[0]  # without other parts of the machine
    return (machine.name, machine.known_as, timed) if machine.known_as else (machine.name,)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.casefold()))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _find_machine(publication: Publication, text: str) -> str:
    """By its name, in any spacing and capitals, or by a beginning that no other has."""
    known, wanted = {_plain(each.name): each.name for each in publication.machines}, _plain(text)
    matching = [name for plain, name in known.items() if wanted and plain.startswith(wanted)]
    found = [known[wanted]] if wanted in known else matching
    if not found:
        raise UnknownName(f"machine of {publication.name}", text, known.values())
    if len(found) > 1:
        listed = ", ".join(f"'{publication.name}/{name}'" for name in found)
        raise UsageError(f"'{publication.name}/{text}' could be {len(found)} machines: {listed}", "Name one of them")
    return found[0]


def _run(publication: Publication, machine: PublishedMachine, repeats: bool) -> Run:
    """What the publication does not say stays empty."""
    figures = [(table, figure) for table in publication.tables for figure in table.figures if figure.case]
    found = [_result(publication, machine, *each) for each in figures if each[1].machine == machine.name]
    first = {result.case.text: result for result in reversed(found)}
    own_gib, shared_gib = (machine.memory_gib, 0) if machine.device == "cuda" else (0, machine.memory_gib)
    device = DeviceInfo(machine.device, machine.hardware, own_gib * 2**30 or None, cores=machine.cores or None)
    cpu, cores = (machine.hardware, machine.cores) if machine.device == "cpu" else ("", 0)
    described = Machine(cpu, cores, cores, shared_gib, os="", python="", devices=(device,))
    label, command = f"{publication.name}/{machine.name}", f"torchmark replicate {publication.name}"
    cases = tuple(dict.fromkeys(result.case.text for result in found))
    header = RunHeader(label, str(publication.year or ""), described, cases, command, version="", label=label)
    return Run(header, tuple(result for result in found if repeats or result is first[result.case.text]))


def _result(publication: Publication, machine: PublishedMachine, table: PublishedTable, figure: Figure) -> Result:
    case, value, estimate, cautions = parse_case(figure.case or ""), figure.value, None, dict[str, Remark]()
    total_s = value if figure.unit == "s" else None
    if value is not None:
        for kind in (*figure.notes, *machine.notes, *table.notes):  # the most specific first
            note = publication.notes[kind]
            if not note.only or machine.device in note.only:
                cautions[kind] = Remark(kind, note.cause, note.fix)
        step_s = {"s": value / figure.steps, "it/s": 1 / value, "ms/it": value / 1000, "s/it": value}[figure.unit]
        # One block of all its steps is all that was timed: there is no interval, no first step and no spread.
        about: Any = dict.fromkeys(("median_s", "mean_s", "mean_low_s", "mean_high_s", "min_s"), step_s)
        about |= {"sample_count": 1, "block_size": figure.steps, "duration_s": total_s or 0.0}
        about["evidence"] = ("a published figure: how sure it is was not said",)
        estimate = Estimate(step_s, step_s, step_s, "mean", "as-published", 0.0, 1.0, 0, Trend(0.0, 0.0), **about)
    settings = {"machine": machine.name, "table": table.title, "row": " / ".join(figure.labels)}
    settings |= {"column": figure.column, "printed": figure.printed, "unit": figure.unit}
    power = next((each.value for each in publication.of_kind("power") if each.machine == machine.name), None)
    return Result(
        case=case,
        status="oom" if value is None else "ok",
        reason=f"published as '{figure.printed}': out of memory" if value is None else None,
        params=case.params,
        estimate=estimate,
        version=figure.version,
        work=Work(figure.items, figure.item_unit, bytes=figure.item_bytes and figure.item_bytes * figure.items),
        job=JobEstimate(total_s, total_s, total_s, whole=True) if total_s is not None else None,
        metrics={} if power is None else {"peak_power_w": power},
        settings=settings | {"steps": figure.steps if figure.steps > 1 else None},
        cautions=tuple(cautions.values()),
    )
