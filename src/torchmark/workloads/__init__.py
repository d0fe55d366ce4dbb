"""What is run: one file for each workload, found by its name; a broken one hides nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torchmark.errors import TorchmarkError, UnknownName
from torchmark.workloads import own
from torchmark.workloads.contract import Workload

_GROUP = "torchmark.workloads"  # the entry point group of installed packages
_NOT_WORKLOADS = (
    "contract",
    "encoder",
    "filling",
    "image_training",
    "images",
    "llama",
    "model",
    "model_step",
    "own",
    "reference",
    "reinforcement",
)


def names() -> tuple[str, ...]:
    """The workloads that can be used, in the order of the alphabet."""
    return tuple(name for name, found in _load_all().items() if isinstance(found, Workload))


def broken() -> dict[str, str]:
    """The files that hold no usable workload, by the name it should have, with the reason."""
    return {name: found for name, found in _load_all().items() if isinstance(found, str)}


def find_workload(name: str) -> Workload:
    """The workload of that name, or of that file of the user's own."""
    if own.is_own(name):
        return own.find_own(name)
    found = _shipped().get(name) or _plugged_in().get(name)
    if found is None:
        raise UnknownName("workload", name, names())
    if isinstance(found, str):
        raise TorchmarkError(f"the file of workload '{name}' is broken ({found})", "Fix or remove it")
    return found


def brought_by(name: str) -> str | None:
    """The installed package, with its version, that a workload comes from; None for torchmark's own and for files,
    whose name says enough."""
    if own.is_own(name) or name in _shipped():
        return None
    points = sorted(entry_points(group=_GROUP, name=name))
    return f"{points[0].dist.name} {points[0].dist.version}" if points and points[0].dist else None


def forget() -> None:
    """Look at the files again the next time, because one was added, changed or removed."""
    _shipped.cache_clear()
    _plugged_in.cache_clear()
    own.forget_own()


def _load_all() -> dict[str, Workload | str]:
    return dict(sorted((_shipped() | _plugged_in()).items()))


@cache
def _shipped() -> dict[str, Workload | str]:
    modules = [found.name for found in pkgutil.iter_modules(__path__)]
    public = sorted(name for name in modules if name not in _NOT_WORKLOADS and not name.startswith("_"))
    return {name.replace("_", "-"): _guarded(_from_module, name) for name in public}


@cache
def _plugged_in() -> dict[str, Workload | str]:
    """Those of installed packages, or why they cannot be used; none may take the place of another."""
    found: dict[str, Workload | str] = {}
    for point in sorted(entry_points(group=_GROUP)):
        clash = point.name in _shipped() or point.name in found
        name = f"{point.name} of {point.value}" if clash else point.name
        found[name] = f"the name '{point.name}' is taken" if clash else _guarded(_from_entry, point)
    return found


def _guarded(load: Callable[[Any], Workload | str], source: str | EntryPoint) -> Workload | str:
    try:
        return load(source)
    except (Exception, SystemExit) as error:  # foreign code may do anything, even exit
        return f"{type(error).__name__}: {error}"


def _from_module(module_name: str) -> Workload | str:
    name = module_name.replace("_", "-")
    for found in vars(importlib.import_module(f"{__name__}.{module_name}")).values():
        if isinstance(found, type) and issubclass(found, Workload) and getattr(found, "name", None) == name:
            return found()
    return f"no Workload whose name is '{name}'"


def _from_entry(point: EntryPoint) -> Workload | str:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", point.name):
        return "a name is of small letters, digits and dashes"
    made = point.load()
    if not (isinstance(made, type) and issubclass(made, Workload)):
        return f"{point.value} is no Workload"
    if getattr(made, "name", None) != point.name:
        return f"{point.value} calls itself '{getattr(made, 'name', '')}'"
    return made()
