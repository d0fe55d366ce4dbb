"""The workloads: one file for each, found by its name; a broken one hides no other."""

import importlib
import pkgutil
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from torchmark.errors import TorchmarkError, UnknownName
from torchmark.workloads.contract import Workload
from torchmark.workloads.own.files import find_file, forget_files, split_name

_GROUP = "torchmark.workloads"  # the entry point group of installed packages
_NO_WORKLOADS = {"contract", "model", "reference", "own", "encoder", "image_training", "images", "llama"}


def names() -> tuple[str, ...]:
    """The usable workloads, in alphabetical order."""
    return tuple(sorted(name for name, found in _load_all().items() if isinstance(found, Workload)))


def broken() -> dict[str, str]:
    """Files without a usable workload: the name that it should have, and the reason."""
    return {name: found for name, found in sorted(_load_all().items()) if isinstance(found, str)}


def find_workload(name: str) -> Workload:
    """By name, or file: `my_model.py`, `folder/my_model.py:build`, `config.json`; later by the file's name alone."""
    if named := split_name(name):
        from torchmark.workloads.own.models import load_own

        return load_own(find_file(named[0]), named[1])
    found = _shipped().get(name) or _load_all().get(name)
    if found is None:
        raise UnknownName("workload", name, names())
    if isinstance(found, str):
        raise TorchmarkError(f"the file of workload '{name}' is broken ({found})", "Fix or remove it")
    return found


def brought_by(name: str) -> str | None:
    """The installed package of a workload, with its version; None for torchmark's own and for files."""
    points = [] if split_name(name) or name in _shipped() else sorted(entry_points(group=_GROUP, name=name))
    return f"{points[0].dist.name} {points[0].dist.version}" if points and points[0].dist else None


def forget() -> None:
    """Read the files again the next time."""
    from torchmark.workloads.own.models import load_own

    for known in (_shipped, _load_all, load_own):
        known.cache_clear()
    forget_files()


@cache
def _shipped() -> dict[str, Workload | str]:
    modules = {found.name for found in pkgutil.iter_modules(__path__)} - _NO_WORKLOADS
    return {name.replace("_", "-"): _load(name) for name in sorted(modules) if not name.startswith("_")}


@cache
def _load_all() -> dict[str, Workload | str]:
    """Those of installed packages, too, or why they cannot be used; none may replace another."""
    found = dict(_shipped())
    for point in sorted(entry_points(group=_GROUP)):
        if point.name in found:
            found[f"{point.name} of {point.value}"] = f"the name '{point.name}' is taken"
        else:
            found[point.name] = _load(point)
    return found


def _load(source: str | EntryPoint) -> Workload | str:
    try:
        if isinstance(source, str):
            name = source.replace("_", "-")
            members = vars(importlib.import_module(f"{__name__}.{source}")).values()
            kinds = [each for each in members if isinstance(each, type) and issubclass(each, Workload)]
            made = next((each for each in kinds if getattr(each, "name", None) == name), None)
            return made() if made else f"no Workload whose name is '{name}'"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", source.name):
            return "a name is of small letters, digits and dashes"
        made = source.load()
        if not (isinstance(made, type) and issubclass(made, Workload)):
            return f"{source.value} is no Workload"
        called = getattr(made, "name", "")
        return made() if called == source.name else f"{source.value} calls itself '{called}'"
    except (Exception, SystemExit) as error:  # foreign code may do anything, even exit
        return f"{type(error).__name__}: {error}"
