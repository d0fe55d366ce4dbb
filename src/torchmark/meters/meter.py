"""What a meter is: one source of readings, taken while steps are timed, with the reason where it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct

ROOT = Path("/")  # tests put a recorded tree in its place
Reading = TypeVar("Reading", covariant=True)


class Meter(Struct, Generic[Reading], frozen=True):
    """One source. What cannot be read gives None, never zero; `provenance` names the source or says why there is
    none."""

    read: Callable[[], Reading | None]
    provenance: str = "measured by the system"


class Vitals(Struct, frozen=True):
    """What a device reports about itself at one moment; None is unreadable."""

    energy_j: float | None = None  # used so far; only grows
    clock_hz: float | None = None
    temperature_c: float | None = None
    thermal_count: int | None = None  # how often it lowered its clock; only grows
    throttle: tuple[str, ...] = ()  # why its clock is held down at this moment


class VitalsMeter(Struct, frozen=True):
    """All meters of one device."""

    energy: Meter[float]
    clock: Meter[float]
    temperature: Meter[float]
    throttling: Meter[int | tuple[str, ...]]  # how often so far, or for which reasons at this moment
    # The power at this moment, where there is no energy counter. A reading may take a tenth of a second, so it is only
    # taken during untimed steps.
    watts: Callable[[], float | None] = lambda: None

    @property
    def provenance(self) -> dict[str, str]:
        """Who measures each quantity, or why it is unavailable."""
        names = ("energy", "clock", "temperature", "throttling")
        return {name: getattr(self, name).provenance for name in names}

    def read(self) -> Vitals:
        """The readings at this moment."""
        throttling = self.throttling.read()
        return Vitals(
            energy_j=self.energy.read(),
            clock_hz=self.clock.read(),
            temperature_c=self.temperature.read(),
            thermal_count=throttling if isinstance(throttling, int) else None,
            throttle=throttling if isinstance(throttling, tuple) else (),
        )


def missing(reason: str) -> Meter[Any]:
    """A meter that reads nothing, for this reason."""
    return Meter(lambda: None, unavailable(reason))


def without_vitals(reason: str) -> VitalsMeter:
    """A device of which nothing can be read."""
    nothing = missing(reason)
    return VitalsMeter(nothing, nothing, nothing, nothing)


def unavailable(reason: str) -> str:
    return f"unavailable because {reason}"


def estimated(source: str) -> str:
    """The provenance of energy that is computed from sampled power."""
    return f"estimated from power that {source} reported during untimed steps"


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


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of this process's control groups under a controller, from the outermost to its own. Some may not exist: a
    container sees the names of its groups, but not always their folders."""
    folders: list[Path] = []
    top = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = (top, top / "unified")
        elif controller in controllers.split(","):
            tops = (top / controller, top / controllers)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for each in dict.fromkeys(tops):
            folders += [each.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders
