"""Whether the machine runs on battery, and whether it is set to save power."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from torchmark.meters.meter import ROOT, read_text

_CORE = "sys/devices/system/cpu/cpu0/cpufreq"
_SELF_SCALING = ("intel_pstate", "amd-pstate-epp")  # drivers whose `powersave` still reaches the full clock


class Power(Struct, frozen=True):
    """How the machine is powered; None is unreadable."""

    on_battery: bool | None = None
    mode: str | None = None  # as the system names it
    saving: bool = False  # set to be slower than it can be


def read_power(root: Path = ROOT, platform: str = sys.platform) -> Power:
    """The system's battery and its power mode."""
    if platform == "darwin":
        return read_pmset(_ask("pmset", "-g"), _ask("pmset", "-g", "batt"))
    if platform != "linux":
        return Power(on_battery=_psutil_battery())
    files = ("scaling_governor", "energy_performance_preference", "scaling_driver")
    governor, preference, driver = (read_text(root / _CORE / file) for file in files)
    profile = read_text(root / "sys/firmware/acpi/platform_profile")
    named = (("governor", governor), ("preference", preference), ("profile", profile))
    return Power(
        on_battery=_on_battery(root),
        mode=", ".join(f"{name} {value}" for name, value in named if value) or None,
        saving=profile in ("low-power", "quiet", "cool")
        or preference == "power"
        or (governor == "powersave" and driver not in _SELF_SCALING),
    )


def _on_battery(root: Path) -> bool | None:
    supplies = list((root / "sys/class/power_supply").glob("*"))
    mains = [read_text(supply / "online") for supply in supplies if read_text(supply / "type") in ("Mains", "USB")]
    batteries = [
        read_text(supply / "status")
        for supply in supplies
        # A mouse or a headset has a battery as well, and that one feeds only itself.
        if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device"
    ]
    if "1" in mains or not batteries:
        return False if mains else None
    return "Discharging" in batteries


def read_pmset(settings: str, battery: str) -> Power:
    """What macOS's `pmset -g` and `pmset -g batt` say."""
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.MULTILINE)
    source = re.search(r"drawing from '([^']+)'", battery)
    modes = {"0": "automatic", "1": "low power", "2": "high power"}
    return Power(
        on_battery=source[1].startswith("Battery") if source else None,
        mode=modes.get(low[1]) if low else None,
        saving=bool(low and low[1] == "1"),
    )


def _psutil_battery() -> bool | None:
    import psutil

    battery = psutil.sensors_battery()
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
