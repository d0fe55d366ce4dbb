"""The CPU's clock and temperature, and how often the hardware held the clock down."""

from __future__ import annotations

from pathlib import Path

from torchmark.meters.contention import allowed_cores
from torchmark.meters.contract import ROOT, Meter, Nothing, read_number, read_text

_CPUS = "sys/devices/system/cpu"
_MOST_CORES = 4  # asking a core for its clock can interrupt it, so a few stand for all
_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc_thermal", "acpitz")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class Clock(Meter[float]):
    """The mean clock of a few of the allowed cores, in hertz."""

    name = "clock"
    source = "cpufreq"

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files

    def read(self) -> float | None:
        readings = [kilohertz for file in self._files if (kilohertz := read_number(file)) is not None]
        return 1000 * sum(readings) / len(readings) if readings else None


class Temperature(Meter[float]):
    """The CPU's temperature, in degrees Celsius."""

    name = "temperature"
    source = "the processor's sensor"

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> float | None:
        thousandths = read_number(self._file)
        return None if thousandths is None else thousandths / 1000


class Throttling(Meter[int]):
    """How often the hardware held the clock down for heat or power."""

    name = "throttling"
    source = "the processor's own count"

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files

    def read(self) -> int | None:
        readings = [count for file in self._files if (count := read_number(file)) is not None]
        return int(sum(readings)) if readings else None


def open_clock(root: Path = ROOT) -> Meter[float]:
    files = _core_files(root, "cpufreq/scaling_cur_freq")
    return Clock(files) if files else Nothing("the system does not tell the CPU's clock")


def open_temperature(root: Path = ROOT) -> Meter[float]:
    zones = {read_text(zone / "type"): zone / "temp" for zone in (root / "sys/class/thermal").glob("thermal_zone*")}
    chips = {read_text(chip / "name"): chip / "temp1_input" for chip in (root / "sys/class/hwmon").glob("hwmon*")}
    candidates = [zones.get(zone) for zone in _CPU_ZONES[:1]]
    candidates += [chips.get(chip) for chip in _CPU_CHIPS]
    candidates += [zones.get(zone) for zone in _CPU_ZONES[1:]]
    for file in candidates:
        if file is not None and read_number(file) is not None:
            return Temperature(file)
    return Nothing("the system does not tell the CPU's temperature")


def open_throttling(root: Path = ROOT) -> Meter[int]:
    files = _core_files(root, "thermal_throttle/core_throttle_count")
    files += _core_files(root, "thermal_throttle/package_throttle_count")[:1]
    return Throttling(files) if files else Nothing("the system does not count thermal throttling")


def _core_files(root: Path, name: str) -> tuple[Path, ...]:
    files = (root / _CPUS / f"cpu{core}" / name for core in sorted(allowed_cores()))
    return tuple(file for file in files if file.exists())[:_MOST_CORES]
