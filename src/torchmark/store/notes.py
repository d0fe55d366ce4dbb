"""Local notes, which are never exported: answers of the user, origins of runs, and runs that hold a device's limits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from torchmark.errors import StoreError
from torchmark.records import DeviceInfo, Machine
from torchmark.store.files import distrust, make_folder, os_errors, plain, write_whole
from torchmark.store.runs import home

_MOST_LIMITS = 8  # runs that hold limits of one device


def _note(kind: str, name: str) -> Path:
    return home() / kind / plain(name)[:80]


def keep_note(kind: str, name: str, *content: bytes, mode: int = 0o600) -> None:
    path = _note(kind, name)
    make_folder(path.parent)
    write_whole(path, content, mode=mode)


def read_note(kind: str, name: str, most: int = 1 << 20) -> bytes | None:
    """The content of a note; None unless there is one that no other user can have written."""
    with suppress(OSError, ValueError, StoreError):
        path = _note(kind, name)
        if not distrust(path):
            with path.open("rb") as file:
                return file.read(most)
    return None


def keep_origin(run: str, files: Mapping[str, Path]) -> None:
    """Remember which model files this user started a run with: a run file alone never decides what is executed."""
    content = {name: os.fspath(path) for name, path in files.items()}
    with suppress(OSError):  # then resuming the run has to ask
        if content:
            keep_note("origins", run, msgspec.json.encode(content))


def find_origin(run: str) -> dict[str, Path]:
    """The model files that this user started a run with, by name; empty if that is not certain."""
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(read_note("origins", run) or b"{}", type=dict[str, str])
        return {name: Path(path) for name, path in found.items()}
    return {}


def keep_limits(machine: Machine, device: DeviceInfo, run: Path, alongside: bool = False) -> None:
    """Remember that this run file holds the limits of the device, alone or in addition to those known before."""
    digest = _limits_digest(machine, device)
    names = [run.name if run.parent == home() else os.path.realpath(run)]
    names += [name for name in _limits_names(digest) if name not in names][: _MOST_LIMITS - 1] if alongside else []
    with os_errors("write", _note("limits", digest)):
        keep_note("limits", digest, "\n".join(names).encode(), mode=0o666)


def find_limits(machine: Machine, device: DeviceInfo) -> list[Path]:
    """The run files with the limits of a device, newest first; none if they were never measured or are gone."""
    found = []
    for name in _limits_names(_limits_digest(machine, device)):
        with suppress(OSError, ValueError):
            found += [home() / name] if (home() / name).is_file() else []
    return found


def _limits_names(digest: str) -> list[str]:
    with suppress(OSError, ValueError):
        return _note("limits", digest).read_text(encoding="utf-8")[: _MOST_LIMITS * 4096].splitlines()[:_MOST_LIMITS]
    return []


def _limits_digest(machine: Machine, device: DeviceInfo) -> str:
    """A hash of everything that decides how fast a device can be: hardware, driver and torch, but no names."""
    machine_facts = (machine.cpu, machine.physical_cores, machine.logical_cores, machine.memory_gib, machine.torch)
    device_facts = (device.name, device.model, device.memory_bytes, device.driver, device.capability, device.cores)
    return hashlib.sha256(msgspec.json.encode((*machine_facts, machine.torch_build, *device_facts))).hexdigest()[:24]
