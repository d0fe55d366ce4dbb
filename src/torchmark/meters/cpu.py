"""The processor's own meters on Linux: clock, temperature, throttling, and energy (RAPL)."""

from __future__ import annotations

from pathlib import Path

from torchmark.meters.contention import allowed_cores
from torchmark.meters.meter import ROOT, Meter, missing, read_number, read_text

_MOST_CORES = 4  # reading a core's clock can interrupt it, so a few stand for all
_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc_thermal", "acpitz")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def open_clock(root: Path = ROOT) -> Meter[float]:
    """The mean clock of a few of the allowed cores, in hertz."""
    files = _core_files(root, "cpufreq/scaling_cur_freq")

    def read() -> float | None:
        kilohertz = _numbers(files)
        return 1000 * sum(kilohertz) / len(kilohertz) if kilohertz else None

    return Meter(read, "measured by cpufreq") if files else missing("the system does not report the CPU's clock")


def open_temperature(root: Path = ROOT) -> Meter[float]:
    """The CPU's temperature, in degrees Celsius."""
    zones = {read_text(zone / "type"): zone / "temp" for zone in (root / "sys/class/thermal").glob("thermal_zone*")}
    chips = {read_text(chip / "name"): chip / "temp1_input" for chip in (root / "sys/class/hwmon").glob("hwmon*")}
    candidates = (zones.get(_CPU_ZONES[0]), *map(chips.get, _CPU_CHIPS), *map(zones.get, _CPU_ZONES[1:]))
    file = next((file for file in candidates if file is not None and read_number(file) is not None), None)
    if file is None:
        return missing("the system does not report the CPU's temperature")

    def read() -> float | None:
        thousandths = read_number(file)
        return None if thousandths is None else thousandths / 1000

    return Meter(read, "measured by the processor's sensor")


def open_throttling(root: Path = ROOT) -> Meter[int]:
    """How often the hardware lowered the clock because of heat or power."""
    files = _core_files(root, "thermal_throttle/core_throttle_count")
    files += _core_files(root, "thermal_throttle/package_throttle_count")[:1]

    def read() -> int | None:
        counts = _numbers(files)
        return int(sum(counts)) if counts else None

    own = "measured by the processor's own counter"
    return Meter(read, own) if files else missing("the system does not count thermal throttling")


def open_rapl(root: Path = ROOT) -> Meter[float]:
    """Joules that all packages used since the first reading, and their memory where it is counted separately.

    `core` and `uncore` zones are parts of a package, and `psys` contains all packages, so they are left out.
    """
    packages = _zones(root / "sys/class/powercap", "intel-rapl:*", "package")
    if not packages:
        return missing("the system shows no energy counter of the processor, as in most virtual machines")
    memories = [zone for package in packages for zone in _zones(package, f"{package.name}:*", "dram")]
    if not _readable(packages):
        return missing("only root may read the energy counter of the processor")
    with_memory = bool(memories) and _readable(memories)
    counters = [EnergyCounter(folder) for folder in (*packages, *(memories if with_memory else ()))]

    def read() -> float | None:
        readings = [counter.read() for counter in counters]
        known = [reading for reading in readings if reading is not None]
        return sum(known) * 1e-6 if len(known) == len(readings) else None

    read()
    return Meter(read, "measured by RAPL: the whole processor" + (" and its memory" if with_memory else ""))


class EnergyCounter:
    """One zone's counter, which starts again at zero when it is full."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = (read_number(folder / "max_energy_range_uj") or 0.0) + 1  # the file holds the largest value
        self._last: float | None = None
        self._total = 0.0

    def read(self) -> float | None:
        """Microjoules since the first reading. A counter lasts for at least a minute, so it never wraps twice."""
        now = read_number(self._file)
        if now is None:
            return None
        passed = 0.0 if self._last is None else now - self._last
        self._total += passed if passed >= 0 else passed + self._range
        self._last = now
        return self._total


def _numbers(files: list[Path]) -> list[float]:
    return [number for file in files if (number := read_number(file)) is not None]


def _core_files(root: Path, name: str) -> list[Path]:
    files = (root / "sys/devices/system/cpu" / f"cpu{core}" / name for core in sorted(allowed_cores()))
    return [file for file in files if file.exists()][:_MOST_CORES]


def _readable(zones: list[Path]) -> bool:
    return all(read_number(zone / "energy_uj") is not None for zone in zones)


def _zones(folder: Path, pattern: str, name: str) -> list[Path]:
    return [zone for zone in sorted(folder.glob(pattern)) if (read_text(zone / "name") or "").startswith(name)]
