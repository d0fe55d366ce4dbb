"""The processor's own meters on Linux (clock, temperature, throttling, energy), and how the machine is powered."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from torchmark.meters import ROOT, Meter, Meters, missing, of_files, read_number, read_text, try_meter
from torchmark.meters.contention import allowed_cores

_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc_thermal", "acpitz")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_CPU = "sys/devices/system/cpu"


def open_vitals(root: Path = ROOT) -> Meters:
    """Joules of the processor, the mean clock of a few allowed cores in hertz, its temperature in degrees Celsius, and
    how often the hardware lowered its clock because of heat or power."""

    def core_files(name: str) -> list[Path]:
        files = (root / _CPU / f"cpu{core}" / name for core in sorted(allowed_cores()))
        return [file for file in files if file.exists()][:4]  # reading a core's clock can interrupt it

    zones = {read_text(zone / "type"): zone / "temp" for zone in (root / "sys/class/thermal").glob("thermal_zone*")}
    chips = {read_text(chip / "name"): chip / "temp1_input" for chip in (root / "sys/class/hwmon").glob("hwmon*")}
    sensors = (zones.get(_CPU_ZONES[0]), *map(chips.get, _CPU_CHIPS), *map(zones.get, _CPU_ZONES[1:]))
    counts = core_files("thermal_throttle/core_throttle_count")
    counts += core_files("thermal_throttle/package_throttle_count")[:1]
    clock = of_files(core_files("cpufreq/scaling_cur_freq"), lambda kilohertz: 1000 * fmean(kilohertz))
    sensor = [file for file in sensors if file and read_number(file) is not None][:1]
    temperature = of_files(sensor, lambda thousandths: thousandths[0] / 1000)
    throttling, own = of_files(counts, lambda times: int(sum(times))), "the processor's own counter"
    silent = "the system does not report the CPU's"
    return {
        "energy": open_rapl(root),
        "clock": try_meter(clock, f"{silent} clock", "cpufreq"),
        "temperature": try_meter(temperature, f"{silent} temperature", "the processor's sensor"),
        "throttling": try_meter(throttling, "the system does not count thermal throttling", own),
    }


def open_rapl(root: Path = ROOT) -> Meter:
    """Joules that all packages used since the first reading, and their memory where it is counted separately. `core`
    and `uncore` zones are parts of a package, and `psys` contains all packages."""

    def zones(folder: Path, pattern: str, name: str) -> list[Path]:
        return [zone for zone in sorted(folder.glob(pattern)) if (read_text(zone / "name") or "").startswith(name)]

    def readable(folders: list[Path]) -> bool:
        return all(read_number(zone / "energy_uj") is not None for zone in folders)

    packages = zones(root / "sys/class/powercap", "intel-rapl:*", "package")
    if not packages:
        return missing("the system shows no energy counter of the processor, as in most virtual machines")
    if not readable(packages):
        return missing("only root may read the energy counter of the processor")
    memories = [zone for package in packages for zone in zones(package, f"{package.name}:*", "dram")]
    with_memory = bool(memories) and readable(memories)
    counters = [open_counter(folder) for folder in (*packages, *(memories if with_memory else ()))]

    def read() -> float | None:
        readings = [counter() for counter in counters]
        known = [reading for reading in readings if reading is not None]
        return sum(known) * 1e-6 if len(known) == len(readings) else None

    read()
    return Meter(read, "measured by RAPL: the whole processor" + (" and its memory" if with_memory else ""))


def open_counter(folder: Path) -> Callable[[], float | None]:
    """A reader of microjoules since the first reading of one zone, whose counter starts again at zero when it is full.
    It lasts for at least a minute, so it never wraps twice."""
    most = (read_number(folder / "max_energy_range_uj") or 0.0) + 1  # the file holds the largest value
    last: float | None = None
    total = 0.0

    def read() -> float | None:
        nonlocal last, total
        now = read_number(folder / "energy_uj")
        if now is None:
            return None
        passed = 0.0 if last is None else now - last
        total += passed if passed >= 0 else passed + most
        last = now
        return total

    return read


class Power(Struct, frozen=True):
    """How the machine is powered; None is unreadable."""

    on_battery: bool | None = None
    mode: str | None = None  # as the system names it
    saving: bool = False  # set to be slower than it can be


def read_power(root: Path = ROOT, platform: str = sys.platform) -> Power:
    if platform == "darwin":
        return read_pmset(_ask("pmset", "-g"), _ask("pmset", "-g", "batt"))
    if platform != "linux":
        import psutil

        battery = psutil.sensors_battery()
        return Power(None if battery is None or battery.power_plugged is None else not battery.power_plugged)
    files = ("scaling_governor", "energy_performance_preference", "scaling_driver")
    governor, preference, driver = (read_text(root / _CPU / "cpu0/cpufreq" / file) for file in files)
    profile = read_text(root / "sys/firmware/acpi/platform_profile")
    mains, batteries = [], []
    for supply in (root / "sys/class/power_supply").glob("*"):
        kind = read_text(supply / "type")
        if kind in ("Mains", "USB"):
            mains.append(read_text(supply / "online"))
        # A mouse or a headset has a battery as well, and that one feeds only itself.
        elif kind == "Battery" and read_text(supply / "scope") != "Device":
            batteries.append(read_text(supply / "status"))
    plugged = "1" in mains or not batteries
    on_battery = (False if mains else None) if plugged else "Discharging" in batteries
    named = (("governor", governor), ("preference", preference), ("profile", profile))
    return Power(
        on_battery=on_battery,
        mode=", ".join(f"{name} {value}" for name, value in named if value) or None,
        saving=profile in ("low-power", "quiet", "cool")
        or preference == "power"
        # Drivers that scale by themselves reach the full clock with `powersave`, too.
        or (governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")),
    )


def read_pmset(settings: str, battery: str) -> Power:
    """The answers of macOS's `pmset -g` and `pmset -g batt`."""
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.MULTILINE)
    source = re.search(r"drawing from '([^']+)'", battery)
    modes = {"0": "automatic", "1": "low power", "2": "high power"}
    return Power(
        on_battery=source[1].startswith("Battery") if source else None,
        mode=modes.get(low[1]) if low else None,
        saving=bool(low and low[1] == "1"),
    )


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
