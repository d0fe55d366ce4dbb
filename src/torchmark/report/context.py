"""The parts of a page around the figures: caveats and machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from torchmark.errors import UsageError
from torchmark.records import DeviceInfo, Run, parse_case
from torchmark.report import figures, units
from torchmark.report.charts.series import plain_model
from torchmark.report.headings import moment
from torchmark.report.names import Names, shared_place
from torchmark.report.notes import Note, find_notes
from torchmark.report.text import shorten

_SHOWN = 30  # lines of a note, and cases of a line
_NAMED = 3  # machines that are named before they are counted
_CASE = 80
_LONGEST_COMMAND = 10_000
_MEASURING = ("run", "limits", "tune", "fit", "ab", "replicate")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.,:+=%-]*")  # no shell takes it for more, and it leads to no folder


class PageNote(Struct, frozen=True):
    """One caveat: its cause (the first one as an example), its fix, and the machines and cases it applies to."""

    title: str
    kind: str
    cause: str
    cure: str = ""
    where: str = ""
    cases: tuple[str, ...] = ()  # one line per machine; one per case where their causes differ


class MachineCard(Struct, frozen=True):
    """Who measured, how, and the command that does it again."""

    name: str
    facts: tuple[tuple[str, str], ...]
    command: str


def notes(runs: Sequence[Run], names: Sequence[str]) -> list[PageNote]:
    """Failures, then cautions, then file problems. Equal ones of several machines are one note."""
    found: dict[tuple[str, str, str], list[tuple[str, Note]]] = {}
    named = list(zip(runs, names, strict=True))
    for kind, find in (("bad", _failures), ("mixed", find_notes)):
        for run, name in named:
            for note in find(run, Names(shared_place(run.results))):
                found.setdefault((note.kind, kind, note.cure), []).append((name, note))
    about_files = [PageNote("file", "quiet", shorten(each), where=name) for run, name in named for each in run.problems]
    return [_page_note(title, kind, alike) for (title, kind, _), alike in found.items()] + about_files


def _failures(run: Run, names: Names) -> list[Note]:
    return [Note(result.status, reason, "", (names.of(result),)) for result, reason in figures.failures(run)]


def _page_note(title: str, kind: str, alike: Sequence[tuple[str, Note]]) -> PageNote:
    first = alike[0][1]
    varied = len({note.cause for _, note in alike}) > 1
    return PageNote(
        title=shorten(title, 40),
        kind=kind,
        cause="For example: " * varied + shorten(first.cause),
        cure=shorten(first.cure),
        where=_where(alike),
        cases=tuple(_cut([*(_by_case(alike) if varied else _by_machine(alike))])),
    )


def _where(alike: Sequence[tuple[str, Note]]) -> str:
    """all cases; mlp/infer; 3 cases; M1 GPU: 3 cases; M1 GPU, M1 CPU; 6 machines"""
    machines = list(dict.fromkeys(name for name, _ in alike))
    if len(machines) > 1:
        return ", ".join(machines) if len(machines) <= _NAMED else f"{len(machines)} machines"
    cases = [case for _, note in alike for case in note.cases]
    counted = "all cases" if not cases else shorten(cases[0], _CASE) if len(cases) == 1 else f"{len(cases)} cases"
    return f"{machines[0]}: {counted}" if machines[0] else counted


def _by_case(alike: Sequence[tuple[str, Note]]) -> Iterator[str]:
    for name, note in alike:
        for case in note.cases or ("all cases",):
            parts = (name, shorten(case, _CASE), shorten(note.cause, 160))
            yield ": ".join(filter(None, parts))


def _by_machine(alike: Sequence[tuple[str, Note]]) -> Iterator[str]:
    """Nothing where `_where` names the cases already."""
    if len(alike) == 1 and len(alike[0][1].cases) < 2:
        return
    cases: dict[str, list[str]] = {}
    for name, note in alike:
        cases.setdefault(name, []).extend(shorten(case, _CASE) for case in note.cases or ("all cases",))
    for name, called in cases.items():
        yield f"{name}: " * bool(name) + ", ".join(_cut(called))


def _cut(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _SHOWN
    return [*texts[:_SHOWN], *([f"{more} more"] if more > 0 else [])]


def machine_card(run: Run, name: str) -> MachineCard:
    """What is known of the machine; nothing is said about what is not."""
    header = run.header
    facts = [(title, shorten(text, 160)) for title, text in _facts(run) if text]
    return MachineCard(name, tuple(facts), header.command if _can_be_pasted(header.command) else "")


def _can_be_pasted(command: str) -> bool:
    """People paste what they are shown, and a file may come from anybody: only what measures, in words and cases."""
    program, *words = command.split(" ")
    if len(command) > _LONGEST_COMMAND or program != "torchmark" or not words or words[0] not in _MEASURING:
        return command == "pytest"
    return all(_PLAIN_WORD.fullmatch(word) or _is_case(word) for word in words[1:])


def _is_case(text: str) -> bool:
    try:
        parse_case(text)
    except UsageError:
        return False
    return True


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    header, machine = run.header, run.header.machine
    yield "Processor", plain_model(machine.cpu) if machine.cpu else ""
    if machine.physical_cores:
        yield "Cores", f"{machine.physical_cores} ({machine.logical_cores} threads)"
    yield "Memory", f"{machine.memory_gib} GiB" if machine.memory_gib else ""
    for device in machine.devices:
        if device.name != "cpu":
            yield shorten(device.name, 24), _device(device)
    yield "System", machine.os
    yield "Python", machine.python
    yield "torch", " ".join(part for part in (machine.torch, machine.torch_build) if part)
    yield "Power", ", ".join(_power(run))
    yield "Meters", "; ".join(_sources(run))
    yield "Measured", moment(header.created)
    yield "Run", header.id
    yield "Interval", figures.interval_note(run) or ""
    yield "torchmark", header.version


def _device(device: DeviceInfo) -> str:
    memory = units.size(device.memory_bytes) if device.memory_bytes else ""
    driver = f"driver {device.driver}" if device.driver else ""
    return ", ".join(part for part in (plain_model(device.model), memory, driver, device.capability) if part)


def _sources(run: Run) -> Iterator[str]:
    """Where readings of meters come from, or why there are none; said once where all cases agree."""
    told = [result.provenance for result in run.results if result.provenance]
    for name in ("energy", "clock", "temperature", "throttling"):
        sources = {each[name] for each in told if name in each}
        if len(sources) == 1:
            yield f"{name} {sources.pop()}"


def _power(run: Run) -> Iterator[str]:
    machine = run.header.machine
    if machine.power_mode:
        yield machine.power_mode
    if machine.on_battery is not None:
        yield "on battery" if machine.on_battery else "plugged in"
