"""The headline of a run: its speed in each area, between the next faster and the next slower published machine."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from torchmark.analyze.headline import Area, Headline, Neighbour, times
from torchmark.analyze.headline import Block as Areas
from torchmark.records import Machine
from torchmark.report import units
from torchmark.report.document import Block, Cell, Column, Lines, Section, Table, Title, word
from torchmark.report.names import machine_line, plain_model

NONE = "—"


def headline_blocks(headline: Headline, machine: Machine, named: bool = True) -> Iterator[Block]:
    """A table for each device, what it says in words, and the next commands; `named`: with the machine above it."""
    marks = footnotes(headline)
    for areas in headline.blocks:
        yield from [Title(_about(machine, areas))] if named or len(headline.blocks) > 1 else []
        yield _table(areas, marks)
        said = [f"In short: {areas.in_short}"] if areas.in_short else []
        if areas is headline.blocks[-1]:
            said += [f"Confidence: {headline.grade}. {headline.confidence}"] if headline.confidence else []
        yield from [Lines(said)] if said else []
    if headline.commands:
        commands = Lines([f"{each.purpose}: {each.command}" for each in headline.commands])
        yield Section("", [commands], only="terminal")  # they may name a folder of this machine


def footnotes(headline: Headline) -> dict[str, str]:
    """The known flaws of the published figures, each with its mark."""
    others = [other for areas in headline.blocks for area in areas.areas for other in (area.faster, area.slower)]
    flaws = dict.fromkeys(flaw for other in others if other for flaw in other.flaws)
    return {flaw: f"[{letter}]" for flaw, letter in zip(flaws, ascii_lowercase, strict=False)}


def figure(area: Area) -> str:
    """14.8 image/s, 1.91 ms, 65.0 s MNIST"""
    if area.figure == "rate":
        return units.rate(area.value, area.unit)
    return units.duration(area.value) + (f" {area.unit}" if area.figure == "job" else "")


def margin(area: Area) -> str:
    """±4.2%; ±? where nothing is known about repeats."""
    return "±?" if area.margin is None else units.relative(area.margin)


def neighbour(other: Neighbour | None, marks: dict[str, str]) -> str:
    """Xeon Gold 2.3×, with the marks of its known flaws"""
    if other is None:
        return NONE
    said = "similar" if other.similar else times(other.ratio)
    return " ".join([other.name, said, *(marks[flaw] for flaw in other.flaws)])


def _about(machine: Machine, areas: Areas) -> str:
    """AMD EPYC, 2 cores, 24 GiB · torch 2.13.0 · CPU float32"""
    device = "CPU" if areas.device == "cpu" else areas.device
    return " · ".join(filter(None, (plain_model(machine_line(machine, areas.device)), f"{device} float32")))


def _table(areas: Areas, marks: dict[str, str]) -> Table:
    """The areas, their figures and ± always fit; a column without neighbours is left out."""
    columns = [Column(title, "name") for title in ("area", "this machine", "±")] + [Column("grade", "name", drop=3)]
    rows = []
    for area in areas.areas:
        look = word(area.grade.word).look
        grade = Cell(area.grade.text, look, chip=True)
        rows.append([Cell(area.name), Cell(figure(area)), Cell(margin(area), look), grade])
    for title, drop, others in (
        ("next faster", 1, [area.faster for area in areas.areas]),
        ("next slower", 2, [area.slower for area in areas.areas]),
    ):
        if any(others):
            columns.append(Column(title, "name", drop=drop))
            for row, other in zip(rows, others, strict=True):
                row.append(Cell(neighbour(other, marks)))
    seen = " ".join(cell.text for row in rows for cell in row)
    notes = [(mark, flaw) for flaw, mark in marks.items() if mark in seen]
    return Table(columns, rows, footnotes=notes, rule=False)
