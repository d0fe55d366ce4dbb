"""What is run: one file for each workload, found by its name; a broken one hides nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from torchmark.errors import TorchmarkError, UnknownName
from torchmark.workloads import own, plugins
from torchmark.workloads.contract import Workload

_NOT_WORKLOADS = (
    "contract",
    "setting",
    "sizes",
    "flops",
    "reference",
    "filling",
    "llama",
    "images",
    "fingerprint",
    "encoder",
    "learning",
    "reinforcement",
    "own",
    "plugins",
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
    """The package, with its version, of a workload that is not torchmark's own; of a file, its name says enough."""
    return None if own.is_own(name) or name in _shipped() else plugins.package_of(name)


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
    return {name.replace("_", "-"): _load(name) for name in public}


@cache
def _plugged_in() -> dict[str, Workload | str]:
    return plugins.load_all(taken=_shipped())


def _load(module_name: str) -> Workload | str:
    """The workload of a file, or why there is none."""
    name = module_name.replace("_", "-")
    try:
        module = importlib.import_module(f"{__name__}.{module_name}")
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Workload) and getattr(found, "name", None) == name:
                return found()
    except (Exception, SystemExit) as error:  # a stranger's file may do anything, even leave
        return f"{type(error).__name__}: {error}"
    return f"no Workload whose name is '{name}'"
