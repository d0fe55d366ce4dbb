"""What a meter must be able to do: read one source beside the clock, and say why when it cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

ROOT = Path("/")  # tests put a recorded tree in its place
Reading = TypeVar("Reading")
QUANTITIES = ("energy", "clock", "temperature", "throttling")


class Meter(ABC, Generic[Reading]):
    """One source. What cannot be read gives None and a `reason`, never zero."""

    name: ClassVar[str]
    source: str = "the system"  # who says it
    reason: str | None = None

    @abstractmethod
    def read(self) -> Reading | None:
        """The reading at this moment."""

    @property
    def provenance(self) -> str:
        """Where its readings come from, or why there are none."""
        return unavailable(self.reason) if self.reason else f"measured by {self.source}"


class Nothing(Meter[Reading]):
    """Stands where a source is missing, and knows why."""

    name = "nothing"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def read(self) -> Reading | None:
        return None


class Vitals(Struct, frozen=True):
    """What is told of the device that does the work, at one moment; None is unreadable."""

    energy_j: float | None = None  # taken so far; only grows
    clock_hz: float | None = None
    temperature_c: float | None = None
    thermal_count: int | None = None  # times that it held its clock down; only grows
    throttle: tuple[str, ...] = ()  # why it holds its clock down just now


class VitalsMeter(ABC):
    """All that one device tells of itself. `provenance` says of each quantity who measures it, or why nobody does."""

    provenance: dict[str, str]

    @abstractmethod
    def read(self) -> Vitals:
        """The readings at this moment."""

    def watts(self) -> float | None:
        """The power at this moment, where there is no counter of energy. It may take a tenth of a second to find out,
        so it is asked for beside steps that nobody times."""
        return None


class Silent(VitalsMeter):
    """A device of which nothing can be read."""

    def __init__(self, reason: str) -> None:
        self.provenance = dict.fromkeys(QUANTITIES, unavailable(reason))

    def read(self) -> Vitals:
        return Vitals()


def unavailable(reason: str) -> str:
    return f"unavailable because {reason}"


def estimated(source: str) -> str:
    """How energy is told that follows from power which was sampled now and then."""
    return f"estimated from the power that {source} told beside untimed steps"


def read_text(path: Path) -> str | None:
    """A small file of the kernel's without its line end, or None; such files may vanish or refuse at any time."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """The number that a small file of the kernel's holds, or None."""
    text = read_text(path)
    try:
        return float(text) if text else None
    except ValueError:
        return None
