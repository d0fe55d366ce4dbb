"""What stands beside the figures on a page: what to read with care, and who measured."""

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

_SHOWN = 30  # cases that a note names
_LONGEST_COMMAND = 10_000
_MEASURING = ("run", "limits", "tune", "fit", "ab", "replicate")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.,:+=%-]*")  # no shell takes it for more, and it leads to no folder


class PageNote(Struct, frozen=True):
    """One thing to know, with the first cause as its example, what to do about it, and all cases that it is about."""

    title: str
    kind: str
    cause: str
    cure: str = ""
    where: str = ""
    cases: tuple[str, ...] = ()  # each with its own cause, where there are several


class MachineCard(Struct, frozen=True):
    """Who measured, how, and the command that does it again."""

    name: str
    facts: tuple[tuple[str, str], ...]
    command: str


def notes(run: Run, name: str) -> list[PageNote]:
    """Failures, then cautions, then what was odd about the file; those of one kind stand together."""
    names = Names(shared_place(run.results))
    found: dict[tuple[str, str], list[Note]] = {}
    for result, reason in figures.failures(run):
        note = Note(result.status, reason, "", (names.of(result),))
        found.setdefault((result.status, "bad"), []).append(note)
    for note in find_notes(run, names):
        found.setdefault((note.kind, "mixed"), []).append(note)
    about_file = [PageNote("file", "quiet", shorten(problem), where=name) for problem in run.problems]
    return [_page_note(title, kind, alike, name) for (title, kind), alike in found.items()] + about_file


def _page_note(title: str, kind: str, alike: Sequence[Note], name: str) -> PageNote:
    first = alike[0]
    cases = [(case, note.cause) for note in alike for case in note.cases]
    where = "all cases" if not cases else shorten(cases[0][0], 80) if len(cases) == 1 else f"{len(cases)} cases"
    return PageNote(
        title=shorten(title, 40),
        kind=kind,
        cause=shorten(first.cause) + (", for example" if len({note.cause for note in alike}) > 1 else ""),
        cure=shorten(first.cure),
        where=f"{name}: {where}" if name else where,
        cases=tuple(f"{shorten(case, 80)}: {shorten(cause, 160)}" for case, cause in cases[:_SHOWN])
        if len(cases) > 1
        else (),
    )


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
