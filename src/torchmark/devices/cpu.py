"""The CPU, which works synchronously: when a step returns it is done."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

from torchmark.devices.contract import Device
from torchmark.records import DeviceInfo, Memory

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Cpu(Device):
    """All the cores that this process may use."""

    kind = "cpu"
    queues = False

    @classmethod
    def present(cls) -> tuple[str, ...]:
        return ("cpu",)

    def info(self) -> DeviceInfo:
        import psutil
        import torch

        return DeviceInfo(
            name=self.name,
            model=cpu_model(),
            memory_bytes=psutil.virtual_memory().total,
            capability=torch.backends.cpu.get_cpu_capability(),
            cores=psutil.cpu_count(logical=False) or psutil.cpu_count(),
            cache_bytes=cache_bytes(),
        )

    def synchronize(self) -> None:
        """Nothing is ever under way once a step has returned."""

    def memory(self) -> Memory:
        return Memory(provenance="unavailable because the CPU has no memory besides the host's")


def cpu_model(root: Path = Path("/")) -> str:
    """The CPU's model as its maker writes it, else its architecture; nothing of the machine that holds it."""
    if sys.platform == "win32":
        model = _windows_model()
    elif sys.platform == "darwin":
        model = _answer("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        model = _linux_model(root)
    return " ".join(model.split())[:80] or platform.machine() or "unknown CPU"


def cache_bytes(root: Path = Path("/")) -> int | None:
    """The size of one cache of the last level; None if the system does not report it."""
    if sys.platform == "darwin":
        names = ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")
        sizes = [_answer("sysctl", "-n", name).strip() for name in names]
        return next((int(text) for text in sizes if text.isdecimal() and int(text)), None)
    sizes = []
    for place in sorted(root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")):
        try:
            found = re.fullmatch(r"(\d{1,12})([KMG]?)", place.read_text().strip())
        except OSError:
            continue
        sizes += [int(found[1]) * _UNITS[found[2]]] if found else []
    return max(sizes, default=None)


def _linux_model(root: Path) -> str:
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^(?:model name|cpu model|Processor|cpu)\s*:\s*(\S.*)$", text, re.MULTILINE)
    if found:
        return found[1]
    named = re.search(r"^Model name:\s*(\S.*)$", _answer("lscpu"), re.MULTILINE)  # Arm leaves it out of cpuinfo
    return named[1] if named and named[1] != "-" else ""


def _windows_model() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
        return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])


def _answer(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
