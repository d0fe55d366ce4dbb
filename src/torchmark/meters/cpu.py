"""The processor's own meters on Linux (clock, temperature, throttling, energy), and how the machine is powered."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from torchmark.meters import ROOT, Meter, Meters, missing, read_number, read_numbers, read_text, try_meter
from torchmark.meters.process import allowed_cores

_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc_thermal", "acpitz")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_CPU = "sys/devices/system/cpu"


def open_vitals(root: Path = ROOT) -> Meters:
    def core_files(name: str) -> list[Path]:
        files = (root / _CPU / f"cpu{core}" / name for core in sorted(allowed_cores()))
        return [file for file in files if file.exists()][:4]  # reading a core's clock can interrupt it

    zones = {read_text(zone / "type"): zone / "temp" for zone in (root / "sys/class/thermal").glob("thermal_zone*")}
    chips = {read_text(chip / "name"): chip / "temp1_input" for chip in (root / "sys/class/hwmon").glob("hwmon*")}
    sensors = (zones.get(_CPU_ZONES[0]), *map(chips.get, _CPU_CHIPS), *map(zones.get, _CPU_ZONES[1:]))
    sensor = [file for file in sensors if file and read_numbers([file])][:1]
    clocks = core_files("cpufreq/scaling_cur_freq")
    counts = core_files("thermal_throttle/core_throttle_count")
    counts += core_files("thermal_throttle/package_throttle_count")[:1]

    def meter(files: list[Path], combine: Callable[[list[float]], float], what: str, source: str) -> Meter:
        reason = f"the system does not {what}"
        return try_meter(lambda: combine(found) if (found := read_numbers(files)) else None, reason, source)

    throttling, own = "count thermal throttling", "the processor's own counter"
    return {
        "energy": open_rapl(root),
        "clock": meter(clocks, lambda khz: 1000 * fmean(khz), "report the CPU's clock", "cpufreq"),
        "temperature": meter(sensor, lambda mc: mc[0] / 1000, "report the CPU's temperature", "the processor's sensor"),
        "throttling": meter(counts, lambda times: int(sum(times)), throttling, own),
    }


def open_rapl(root: Path = ROOT) -> Meter:
    """Joules of all packages since the first reading, and of memory that is counted separately; other zones overlap."""

    def zones(folder: Path, pattern: str, name: str) -> list[Path]:
        return [zone for zone in sorted(folder.glob(pattern)) if (read_text(zone / "name") or "").startswith(name)]

    def energies(folders: list[Path]) -> list[float]:
        found = read_numbers(folder / "energy_uj" for folder in folders)
        return found if len(found) == len(folders) else []  # all or none

    packages = zones(root / "sys/class/powercap", "intel-rapl:*", "package")
    if not packages:
        return missing("the system shows no energy counter of the processor, as in most virtual machines")
    if not energies(packages):
        return missing("only root may read the energy counter of the processor")
    memories = [zone for package in packages for zone in zones(package, f"{package.name}:*", "dram")]
    counted = [*packages, *memories] if energies(memories) else packages
    # A counter starts again at zero after its largest value, which takes at least a minute: it never wraps twice.
    sizes = [(read_number(zone / "max_energy_range_uj") or 0.0) + 1 for zone in counted]
    last, total = energies(counted), 0.0

    def read() -> float | None:
        nonlocal last, total
        if not (now := energies(counted)):
            return None
        pairs = zip(now, last or now, sizes, strict=True)
        total += sum(new - old + (size if new < old else 0) for new, old, size in pairs)
        last = now
        return total * 1e-6

    return Meter(read, "measured by RAPL: the whole processor" + (" and its memory" if counted != packages else ""))


class Power(Struct, frozen=True):
    on_battery: bool | None = None
    mode: str | None = None
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
    supplies = [(read_text(folder / "type"), folder) for folder in (root / "sys/class/power_supply").glob("*")]
    mains = [read_text(folder / "online") for kind, folder in supplies if kind in ("Mains", "USB")]
    # The battery of a mouse or a headset feeds only itself.
    own = [folder for kind, folder in supplies if kind == "Battery" and read_text(folder / "scope") != "Device"]
    on_battery: bool | None = any(read_text(folder / "status") == "Discharging" for folder in own)
    if "1" in mains or not own:
        on_battery = False if mains else None
    named = (("governor", governor), ("preference", preference), ("profile", profile))
    # Drivers that scale by themselves reach the full clock with `powersave` too.
    slow = governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")
    mode = ", ".join(f"{name} {value}" for name, value in named if value) or None
    return Power(on_battery, mode, profile in ("low-power", "quiet", "cool") or preference == "power" or slow)


def read_pmset(settings: str, battery: str) -> Power:
    """The answers of macOS's `pmset -g` and `pmset -g batt`."""
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.MULTILINE)
    source = re.search(r"drawing from '([^']+)'", battery)
    mode = {"0": "automatic", "1": "low power", "2": "high power"}.get(low[1]) if low else None
    return Power(source[1].startswith("Battery") if source else None, mode, mode == "low power")


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
