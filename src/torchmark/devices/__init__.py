"""Where work runs: one file for each kind of device, found by its name; a broken one hides nothing else."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from functools import cache

from torchmark.devices.contract import Device
from torchmark.errors import DeviceError, UnknownName, UsageError
from torchmark.records import Remark

_NOT_KINDS = ("contract", "queued", "streams")
_FALLBACKS = ("PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_ENABLE_XPU_FALLBACK")


def _list_kinds() -> tuple[str, ...]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_KINDS]
    # Every machine has a CPU, so accelerators come first.
    return tuple(sorted(names, key=lambda name: (name == "cpu", name)))


KINDS: tuple[str, ...] = _list_kinds()
ACCELERATOR = "gpu"  # stands for the first accelerator that is here


def find_devices() -> tuple[str, ...]:
    """The names of all devices that can be used here, accelerators first."""
    forbid_fallback()
    return tuple(name for kind in KINDS for name in _present(kind)[0])


def check_device(name: str) -> str:
    """The full name of a device that is here, without opening it: `cuda` is `cuda:0`, `gpu` the first accelerator."""
    if name == ACCELERATOR:
        return first_accelerator(find_devices())
    kind, index = _split(name)
    found = _load(kind)
    if isinstance(found, str):
        raise DeviceError(f"the device file '{kind}' is broken", "Fix or remove it", found)
    forbid_fallback()
    present = found.present()
    for candidate in present:
        if candidate == name or (candidate.partition(":")[2] or "0") == index:
            return candidate
    raise _absent(name, found, present)


def first_accelerator(present: Iterable[str]) -> str:
    """The one that `gpu` means, among the devices that are here."""
    found = [name for name in present if name != "cpu"]
    if not found:
        raise UsageError("no accelerator was found here", "Use --device cpu; `torchmark devices` shows what is missing")
    return found[0]


def open_device(name: str) -> Device:
    """The device of that name, ready for work."""
    full_name = check_device(name)
    found = _load(_split(full_name)[0])
    assert not isinstance(found, str)
    device = found(full_name)
    device.open()
    return device


def diagnose() -> tuple[Remark, ...]:
    """What stands between this machine and its devices, each with its fix."""
    forbid_fallback()
    cautions: list[Remark] = []
    for kind in KINDS:
        problem = _present(kind)[1]
        if problem:
            cautions.append(Remark("device-broken", f"{kind}: {problem}", "Fix or remove what the message names"))
            continue
        found = _load(kind)
        assert not isinstance(found, str)
        cautions += found.diagnose()
    return tuple(cautions)


def broken() -> dict[str, str]:
    """The kinds whose file could not be loaded, or whose devices could not be listed, with the reason."""
    return {kind: problem for kind in KINDS if (problem := _present(kind)[1])}


def forbid_fallback() -> None:
    """Keep missing operators from running on the CPU unseen.

    Torch reads these variables once, while it is being imported. Once it is imported they are left alone, so that
    they still report what torch read.
    """
    if "torch" not in sys.modules:
        for variable in _FALLBACKS:
            os.environ[variable] = "0"


@cache
def _load(kind: str) -> type[Device] | str:
    """The device class of a file, or why there is none."""
    try:
        module = importlib.import_module(f"{__name__}.{kind}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, Device) and getattr(found, "kind", None) == kind:
            return found
    return f"no Device whose kind is '{kind}'"


def _present(kind: str) -> tuple[tuple[str, ...], str | None]:
    """The names of the listed devices of a kind, and what went wrong in finding them."""
    found = _load(kind)
    if isinstance(found, str):
        return (), found
    if not found.listed:
        return (), None
    try:
        return found.present(), None
    except Exception as error:
        return (), f"{type(error).__name__}: {error}"


def _split(name: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-z][a-z_]*)(?::(\d+))?", name)
    if not match or match[1] not in KINDS:
        listed = (kind for kind in KINDS if getattr(_load(kind), "listed", True))
        raise UnknownName("device", name, listed)
    return match[1], match[2] or "0"


def _absent(name: str, found: type[Device], present: tuple[str, ...]) -> DeviceError:
    if present:
        return DeviceError(f"device '{name}' is not here", f"Here: {', '.join(present)}")
    for caution in found.diagnose():
        return DeviceError(f"device '{name}' cannot be used: {caution.cause}", caution.fix)
    return DeviceError(
        f"device '{name}' is not here: torch sees no {found.kind} device", f"Here: {', '.join(find_devices())}"
    )
