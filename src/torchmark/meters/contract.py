"""What a meter must be able to do: read one source beside the clock, and say why when it cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

ROOT = Path("/")  # tests put a recorded tree in its place
Reading = TypeVar("Reading")


class Meter(ABC, Generic[Reading]):
    """One source. What cannot be read gives None and a `reason`, never zero."""

    name: ClassVar[str]
    reason: str | None = None

    @abstractmethod
    def read(self) -> Reading | None:
        """The reading at this moment."""


class Nothing(Meter[Reading]):
    """Stands where a source is missing, and knows why."""

    name = "nothing"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def read(self) -> Reading | None:
        return None


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
