"""Publications: machines, tables, and every figure as it was printed and as it can be used; and their data files."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from torchmark.errors import UnknownName

_FOLDER = Path(__file__).parent
Unit = Literal["s", "it/s", "ms/it", "s/it", "W", "x"]
Kind = Literal["measured", "power", "derived"]
DeviceKind = Literal["cpu", "cuda", "mps"]


class Note(Struct, frozen=True, forbid_unknown_fields=True):
    """Why figures should be read with care, and what to do about it."""

    cause: str
    fix: str
    only: tuple[DeviceKind, ...] = ()  # the devices that it matters on; empty: all


class PublishedMachine(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine with the device that was timed on it: one column that a person can compare with."""

    name: str  # 'M1 Ultra GPU': after the publication's name and a slash it names a run
    hardware: str
    device: DeviceKind
    memory_gib: int = 0  # 0: the publication does not say
    cores: int = 0  # of the device
    # 'RTX 3090': what every publication's figures of this hardware are found under; empty where it is not known, or
    # where the figures are not those of sound hardware.
    known_as: str = ""
    notes: tuple[str, ...] = ()  # what is doubtful about the machine itself: kinds of Publication.notes

    @property
    def title(self) -> str:
        return self.known_as or self.name


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a table. `value` is in `unit`, for `steps` steps together where the unit is seconds."""

    machine: str  # the name of a PublishedMachine
    labels: tuple[str, ...]  # the cells that name the row, as printed, one for each header of the table
    column: str  # the heading that it stands under, as printed
    printed: str
    unit: Unit
    value: float | None = None  # None: out of memory
    kind: Kind = "measured"
    case: str | None = None  # the same work here, written as a case; None where there is nothing to run
    steps: int = 1
    items: float = 1  # in one step
    item_unit: str = "iteration"
    item_bytes: float | None = None  # that must be moved for one item
    version: int = 1  # of the workload that does the same work
    notes: tuple[str, ...] = ()  # kinds of Publication.notes

    @property
    def step_s(self) -> float | None:
        """Seconds for one step; None where the figure is no time."""
        if self.value is None:
            return None
        match self.unit:
            case "s":
                return self.value / self.steps
            case "it/s":
                return 1 / self.value
            case "ms/it":
                return self.value / 1000
            case "s/it":
                return self.value
        return None

    @property
    def total_s(self) -> float | None:
        """Seconds for all steps, where it is this that was printed."""
        return self.value if self.unit == "s" else None


class PublishedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One table of a publication: the procedure that all its figures share, and the figures in printed order."""

    title: str
    headers: tuple[str, ...]  # of the cells that name a row
    protocol: str  # how it was timed, in words
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()  # kinds of Publication.notes that hold for all of its figures


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    """A public write-up whose figures ship with torchmark."""

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

    def notes_on(self, table: PublishedTable, figure: Figure) -> dict[str, Note]:
        """Everything that is to be said about a figure, by kind, what is special about it first."""
        machine = self.machine(figure.machine)
        kinds = (*figure.notes, *machine.notes, *table.notes)
        return {
            kind: self.notes[kind] for kind in kinds if machine.device in (self.notes[kind].only or (machine.device,))
        }


@cache
def names() -> tuple[str, ...]:
    """The names of all publications."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def find_publication(name: str) -> Publication:
    """The publication with all its figures."""
    if name not in names():
        raise UnknownName("publication", name, names())
    content = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(content | {"tables": list(map(_write_out, content["tables"]))}, Publication)


def _write_out(table: dict[str, Any]) -> dict[str, Any]:
    """The table with what its figures share written into each of them."""
    shared = table.get("shared", {})
    rest = {key: value for key, value in table.items() if key != "shared"}
    return rest | {"figures": [shared | figure for figure in table["figures"]]}
