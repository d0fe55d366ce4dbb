"""Which run holds the limits of a device: one note for each machine and device, told apart by what they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from torchmark.records import DeviceInfo, Machine
from torchmark.store.places import home
from torchmark.store.writer import explained

_LONGEST = 4096  # bytes of a path


def fingerprint(machine: Machine, device: DeviceInfo) -> str:
    """A hash of what decides how fast a device can be at best: hardware, driver and torch, and nobody's name."""
    machine_facts = (machine.cpu, machine.physical_cores, machine.logical_cores, machine.memory_gib, machine.torch)
    device_facts = (device.name, device.model, device.memory_bytes, device.driver, device.capability, device.cores)
    facts = (*machine_facts, machine.torch_build, *device_facts)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]


def keep_limits(machine: Machine, device: DeviceInfo, run: Path) -> None:
    """From now on this run file holds the limits of the device."""
    note = _note(machine, device)
    name = run.name if run.parent == home() else str(run.resolve())
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=note.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(name)
        Path(written).replace(note)
    except OSError as error:
        raise explained(note, error) from error


def find_limits(machine: Machine, device: DeviceInfo) -> Path | None:
    """The run file that holds them; None where they were never measured, or the file is gone."""
    with contextlib.suppress(OSError, ValueError):
        path = home() / _note(machine, device).read_text(encoding="utf-8")[:_LONGEST]
        return path if path.is_file() else None
    return None


def _note(machine: Machine, device: DeviceInfo) -> Path:
    return home() / "limits" / fingerprint(machine, device)
