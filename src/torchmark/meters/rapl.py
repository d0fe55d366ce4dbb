"""Energy of the processor and its memory, by the processor's own counters (RAPL, as Linux shows them in powercap)."""

from __future__ import annotations

from pathlib import Path

from torchmark.meters.contract import ROOT, Meter, Nothing, read_number, read_text

_ZONES = "sys/class/powercap"
_MICRO = 1e-6


class Zone:
    """One counter, which begins again at nothing when it is full."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = (read_number(folder / "max_energy_range_uj") or 0.0) + 1  # what is told is the largest value
        self._last: float | None = None
        self._total = 0.0

    def read(self) -> float | None:
        """Microjoules since the first reading. A counter lasts for a minute at least, so it is never full twice."""
        now = read_number(self._file)
        if now is None:
            return None
        passed = 0.0 if self._last is None else now - self._last
        self._total += passed if passed >= 0 else passed + self._range
        self._last = now
        return self._total


class Rapl(Meter[float]):
    """Joules that all packages took since the first reading, with the memory where it is counted beside them."""

    name = "energy"

    def __init__(self, folders: tuple[Path, ...], with_memory: bool) -> None:
        self._zones = [Zone(folder) for folder in folders]
        self.source = "RAPL: the whole processor" + (" and its memory" if with_memory else "")
        self.read()

    def read(self) -> float | None:
        readings = [zone.read() for zone in self._zones]
        known = [reading for reading in readings if reading is not None]
        return sum(known) * _MICRO if len(known) == len(readings) else None


def open_rapl(root: Path = ROOT) -> Meter[float]:
    """Packages, and memory zones inside them; `core` and `uncore` are parts of a package, `psys` holds all of them."""
    packages = _named(root / _ZONES, "intel-rapl:*", "package")
    if not packages:
        return Nothing("the system shows no energy counter of the processor, as in most virtual machines")
    memories = tuple(zone for package in packages for zone in _named(package, f"{package.name}:*", "dram"))
    if not _readable(packages):
        return Nothing("only root may read the energy counter of the processor")
    with_memory = bool(memories) and _readable(memories)
    return Rapl((*packages, *memories) if with_memory else packages, with_memory)


def _readable(zones: tuple[Path, ...]) -> bool:
    return all(read_number(zone / "energy_uj") is not None for zone in zones)


def _named(folder: Path, pattern: str, name: str) -> tuple[Path, ...]:
    return tuple(zone for zone in sorted(folder.glob(pattern)) if (read_text(zone / "name") or "").startswith(name))
