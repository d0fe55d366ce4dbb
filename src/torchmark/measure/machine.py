"""Says what machine this is from a list of allowed facts; nothing that names a person, a host or a place."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from torchmark.devices.cpu import cpu_model
from torchmark.meters.power import PowerMeter
from torchmark.records import DeviceInfo, Machine
from torchmark.settings import is_known_system, shareable_build, shareable_hardware, shareable_system, shareable_version

GIB = 1024**3
_MEMORY_STEP = GIB // 4


def describe_machine(devices: Iterable[DeviceInfo] = ()) -> Machine:
    """The machine as a run file keeps it. Torch is described without being imported."""
    import psutil

    logical = psutil.cpu_count() or 1
    power = PowerMeter().read()
    version, build = torch_version()
    return Machine(
        cpu=shareable_hardware(cpu_model()) or "unknown CPU",
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        memory_gib=max(1, round(psutil.virtual_memory().total / GIB)),
        os=shareable_system(os_name()) or "unknown",
        python=shareable_version(platform.python_version()),
        torch=version,
        torch_build=build,
        power_mode=power.mode,
        on_battery=power.on_battery,
        devices=tuple(map(_shareable_device, devices)),
    )


def _shareable_device(info: DeviceInfo) -> DeviceInfo:
    model = shareable_hardware(info.model) or "unknown device"
    return replace(info, model=model, memory_bytes=rounded(info.memory_bytes))


def rounded(memory_bytes: int | None) -> int | None:
    """To a quarter of a GiB: to the byte, memory tells one machine from all others, and from itself after an update."""
    return None if memory_bytes is None else max(1, round(memory_bytes / _MEMORY_STEP)) * _MEMORY_STEP


def os_name() -> str:
    """The system's name and major version."""
    system = platform.system()
    if system == "Darwin":
        return f"macOS {platform.mac_ver()[0].partition('.')[0]}"
    if system == "Windows":
        return f"Windows {platform.release()}"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return system or "unknown"
    name, likes = release.get("ID", ""), release.get("ID_LIKE", "").split()
    if is_known_system(name):
        return f"{name.capitalize()} {release.get('VERSION_ID', '').partition('.')[0]}".strip()
    # A private distribution has versions of its own, which mean nothing with the name of the one that it is based on.
    return next((like.capitalize() for like in likes if is_known_system(like)), system)


def torch_version() -> tuple[str | None, str | None]:
    """Torch's version and what it was built for, such as `CUDA 12.6`, from its files alone."""
    try:
        distribution = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None, None
    written = Path(str(distribution.locate_file("torch/version.py")))
    try:
        text = written.read_text(encoding="utf-8")
    except OSError:
        text = ""
    return shareable_version(distribution.version), read_build(text)


def read_build(text: str) -> str:
    """What the text of torch's own version file says that it was built for."""
    for name, label in (("hip", "ROCm"), ("cuda", "CUDA"), ("xpu", "XPU")):
        found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([\w.+-]+)['\"]", text, re.MULTILINE)
        if found:
            return shareable_build(f"{label} {found[1]}")
    return "MPS" if platform.system() == "Darwin" and platform.machine() == "arm64" else "CPU"
