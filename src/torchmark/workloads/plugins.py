"""Workloads that installed packages bring along, through the entry point group `torchmark.workloads`."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from torchmark.workloads.contract import Workload

GROUP = "torchmark.workloads"


def load_all(taken: Collection[str] = ()) -> dict[str, Workload | str]:
    """Every such workload by its name, or why it cannot be used; none may take the place of another."""
    found: dict[str, Workload | str] = {}
    for point in sorted(entry_points(group=GROUP)):
        clash = point.name in taken or point.name in found
        name = f"{point.name} of {point.value}" if clash else point.name
        found[name] = f"the name '{point.name}' is taken" if clash else _load(point)
    return found


def package_of(name: str) -> str | None:
    """The installed package that brings a workload of this name, with its version; None where none does."""
    points = sorted(entry_points(group=GROUP, name=name))
    return f"{points[0].dist.name} {points[0].dist.version}" if points and points[0].dist else None


def _load(point: EntryPoint) -> Workload | str:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", point.name):
        return "a name is of small letters, digits and dashes"
    try:
        made = point.load()
        if not (isinstance(made, type) and issubclass(made, Workload)):
            return f"{point.value} is no Workload"
        if getattr(made, "name", None) != point.name:
            return f"{point.value} calls itself '{getattr(made, 'name', '')}'"
        return made()
    except (Exception, SystemExit) as error:  # a stranger's package may do anything, even leave
        return f"{type(error).__name__}: {error}"
