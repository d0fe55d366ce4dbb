"""Local notes in small files that are never exported: answers of the user, origins of runs, and limits of devices."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from torchmark.records import DeviceInfo, Machine
from torchmark.store.files import explained, is_own, make_folder, write_whole
from torchmark.store.runs import home

_LARGEST_BYTES = 1 << 20
_LONGEST_PATH = 4096
_MOST_RUNS = 8  # that hold limits of one device


def keep_note(kind: str, name: str, content: bytes) -> None:
    """Write a note, or raise OSError."""
    path = _path(kind, name)
    make_folder(path.parent)
    write_whole(path, [content], mode=0o600)


def read_note(kind: str, name: str) -> bytes | None:
    """The content of a note; None unless there is one that only this user can have written."""
    with contextlib.suppress(OSError, ValueError):
        path = _path(kind, name)
        if is_own(path):
            with path.open("rb") as file:
                return file.read(_LARGEST_BYTES)
    return None


def _path(kind: str, name: str) -> Path:
    return home() / kind / re.sub(r"[^A-Za-z0-9-]", "-", name)[:80]


def keep_origin(run: str, files: Mapping[str, Path]) -> None:
    """Remember which model files this user started a run with; without the note, resuming it has to ask.

    A run file may come from anybody, so it alone never decides what is executed.
    """
    if files:
        with contextlib.suppress(OSError):
            content = {name: os.fspath(path) for name, path in files.items()}
            keep_note("origins", run, msgspec.json.encode(content))


def find_origin(run: str) -> dict[str, Path]:
    """The model files that this user started a run with, by name; empty if that is not certain."""
    with contextlib.suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(read_note("origins", run) or b"{}", type=dict[str, str])
        return {name: Path(path) for name, path in found.items()}
    return {}


def keep_limits(machine: Machine, device: DeviceInfo, run: Path, alongside: bool = False) -> None:
    """Remember that this run file holds the limits of the device, alone or in addition to those known before."""
    note = _limits_note(machine, device)
    names = [run.name if run.parent == home() else os.path.realpath(run)]
    names += [name for name in _names(note) if name not in names][: _MOST_RUNS - 1] if alongside else []
    try:
        make_folder(note.parent)
        write_whole(note, ["\n".join(names).encode()])
    except OSError as error:
        raise explained(note, error) from error


def find_limits(machine: Machine, device: DeviceInfo) -> list[Path]:
    """The run files with the limits of a device, newest first; none if they were never measured or are gone."""
    found = []
    for name in _names(_limits_note(machine, device)):
        with contextlib.suppress(OSError, ValueError):
            found += [home() / name] if (home() / name).is_file() else []
    return found


def _names(note: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return note.read_text(encoding="utf-8")[: _MOST_RUNS * _LONGEST_PATH].splitlines()[:_MOST_RUNS]
    return []


def _limits_note(machine: Machine, device: DeviceInfo) -> Path:
    """Named by a hash of everything that decides how fast a device can be: hardware, driver and torch, but no names."""
    machine_facts = (machine.cpu, machine.physical_cores, machine.logical_cores, machine.memory_gib, machine.torch)
    device_facts = (device.name, device.model, device.memory_bytes, device.driver, device.capability, device.cores)
    facts = (*machine_facts, machine.torch_build, *device_facts)
    return home() / "limits" / hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]
