"""What a report says of a run before any figure: which one it is, when it was made, and on what machine."""

from __future__ import annotations

import re

from torchmark.records import Machine, Run
from torchmark.report.names import place_note


def title(run: Run) -> list[str]:
    """What a heading says of a run: its name first, then when it was measured, and where most of its cases ran."""
    header = run.header
    names = [header.id] if header.label == header.id else [f"run {header.id}", header.label]
    return [part for part in (*names, moment(header.created), place_note(run.results)) if part]


def moment(created: str) -> str:
    """2026-11-15 19:45:49 UTC"""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:Z|\+00:00)$", r"\1 \2 UTC", created)


def longer(command: str) -> str:
    """The command of a run with twice its budget."""
    return re.sub(r"--budget ([\d.]+)s", lambda found: f"--budget {2 * float(found[1]):g}s", command)


def machine_line(machine: Machine, device: str | None = None) -> str:
    """Who measured: processor, or the one device that all cases used, with cores, memory and torch."""
    models = {info.name: info.model for info in machine.devices}
    cores = f"{machine.physical_cores} core{'s' if machine.physical_cores != 1 else ''}"
    memory = f"{machine.memory_gib} GiB"
    processor = [(machine.cpu, machine.cpu), (cores, machine.physical_cores), (memory, machine.memory_gib)]
    who = [models[device]] if device in models and device != "cpu" else []
    who.append(", ".join(text for text, known in processor if known))
    who += [f"torch {machine.torch}"] if machine.torch else []
    return " · ".join(part for part in who if part)
