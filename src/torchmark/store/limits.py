"""Which run holds the limits of a device: one note for each machine and device, told apart by what they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from torchmark.records import DeviceInfo, Machine
from torchmark.store.files import explained, make_folder, write_whole
from torchmark.store.places import home

_LONGEST = 4096  # bytes of a path
_MOST = 8  # runs that say something about one device


def fingerprint(machine: Machine, device: DeviceInfo) -> str:
    """A hash of what decides how fast a device can be at best: hardware, driver and torch, and nobody's name."""
    machine_facts = (machine.cpu, machine.physical_cores, machine.logical_cores, machine.memory_gib, machine.torch)
    device_facts = (device.name, device.model, device.memory_bytes, device.driver, device.capability, device.cores)
    facts = (*machine_facts, machine.torch_build, *device_facts)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]


def keep_limits(machine: Machine, device: DeviceInfo, run: Path, beside: bool = False) -> None:
    """From now on this run file holds the limits of the device; those that were known stay `beside` it on demand."""
    note = _note(machine, device)
    names = [run.name if run.parent == home() else os.path.realpath(run)]
    names += [name for name in _names(note) if name not in names][: _MOST - 1] if beside else []
    try:
        make_folder(note.parent)
        write_whole(note, ["\n".join(names).encode()])
    except OSError as error:
        raise explained(note, error) from error


def find_limits(machine: Machine, device: DeviceInfo) -> list[Path]:
    """The run files that hold them, the newest first; none where they were never measured, or the files are gone."""
    found = []
    for name in _names(_note(machine, device)):
        with contextlib.suppress(OSError, ValueError):
            found += [home() / name] if (home() / name).is_file() else []
    return found


def _names(note: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return note.read_text(encoding="utf-8")[: _MOST * _LONGEST].splitlines()[:_MOST]
    return []


def _note(machine: Machine, device: DeviceInfo) -> Path:
    return home() / "limits" / fingerprint(machine, device)
