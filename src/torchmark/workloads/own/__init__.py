"""Models of the user's own: a Python file or a configuration file becomes a workload like any other."""

from __future__ import annotations

from functools import cache

from torchmark.errors import UsageError
from torchmark.workloads.contract import Workload
from torchmark.workloads.own.files import OwnFile, find_file, forget_files, split_name

__all__ = ["find_own", "forget_own", "is_own"]


def is_own(name: str) -> bool:
    """Whether a workload of this name would come from a file."""
    return split_name(name) is not None


def find_own(name: str) -> Workload:
    """The workload of a file: `my_model.py`, `folder/my_model.py:build`, `config.json`.

    A file that is given by its path is known by its name from then on; one that is not known is looked for where the
    process was started.
    """
    named = split_name(name)
    assert named is not None
    return _load(find_file(named[0]), named[1])


def forget_own() -> None:
    """Look at the files again the next time, because one has changed."""
    _load.cache_clear()
    forget_files()


@cache
def _load(file: OwnFile, member: str) -> Workload:
    if file.path.suffix == ".json":
        from torchmark.workloads.own.configuration import configured_from

        if member:
            raise UsageError(f"a configuration file has no part '{member}'", f"Name it alone: {file.name}")
        return configured_from(file)
    from torchmark.workloads.own.python import model_from, workload_from
    from torchmark.workloads.own.static_inspection import outline

    found = outline(file, member)
    return workload_from(file, member, found) if found.is_workload else model_from(file, member, found)
