"""Runs a user's file as Python would, and tells which line of it an error came from."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

from torchmark.errors import TorchmarkError, UsageError
from torchmark.workloads.own.files import OwnFile

_OURS = Path(__file__).parents[2]
_imported: dict[Path, None] = {}  # files, in the order in which they were run


def import_file(file: OwnFile) -> ModuleType:
    """The file as a module, run once. What it raises is told with the line of the file."""
    _imported[file.path] = None
    try:
        return _import(file.path)
    except (Exception, SystemExit) as error:  # it may do anything, even leave
        place = place_of(error) or file.name
        message = " ".join(str(error).split())
        raise UsageError(f"{place}: {type(error).__name__}: {message}", "Fix it, or install what it needs") from error


def place_of(error: BaseException, named: bool = False) -> str:
    """The line of the user's own code that an error came from, as in `my_model.py, line 12`; empty where none did.

    The innermost one: what the line called may be deep in a library, and is not the user's. With `named`, only lines of
    the files that were named on the command line count: the names of other files are not shared.
    """
    is_meant = _is_named if named else is_own_file
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        if isinstance(following, SyntaxError) and following.filename and is_meant(following.filename):
            return f"{Path(following.filename).name}, line {following.lineno}"
        for frame in reversed(traceback.extract_tb(following.__traceback__)):
            if is_meant(frame.filename):
                return f"{Path(frame.filename).name}, line {frame.lineno}"
        following = following.__cause__ or following.__context__
    return ""


def _is_named(filename: str) -> bool:
    return Path(filename) in _imported


def is_own_file(filename: str) -> bool:
    """One of the files, or what lies next to one and is no library."""
    path = Path(filename)
    if path in _imported:
        return True
    folders = [each.parent for each in _imported if "site-packages" not in each.parts]
    return not _is_library(path) and any(path.is_relative_to(folder) for folder in folders)


def _is_library(path: Path) -> bool:
    libraries = (_OURS, sys.prefix, sys.base_prefix)
    return "site-packages" in path.parts or any(path.is_relative_to(library) for library in libraries)


class _Siblings(MetaPathFinder):
    """Finds the modules next to a model file.

    For imports in that folder they come before installed libraries of the same name, but never before the standard
    library. For all others the folder comes last: pickles and spawned processes import from it, too.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root, self._names = root, names

    @classmethod
    def serve(cls, root: Path, names: Sequence[str]) -> None:
        """Serve this folder; the named modules come from it, no matter who imports them."""
        if str(root) not in sys.path:
            sys.path.append(str(root))
            sys.meta_path.insert(0, cls(root, names))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        if fullname not in self._names and not self._is_importer():
            return None
        return PathFinder.find_spec(fullname, [str(self._root)], target)

    def _is_importer(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        path = Path(frame.f_code.co_filename if frame else "")
        return path.is_relative_to(self._root) and not _is_library(path)


@cache
def _import(path: Path) -> ModuleType:
    """As a part of its package where it is in one, else by itself with its folder to import from, like a script."""
    package = _package_of(path)
    root = path.parents[len(package)]
    _Siblings.serve(root, package[:1])
    if package:
        return importlib.import_module(".".join([*package, path.stem]))
    name = f"torchmark_own_{path.stem}"  # not the stem alone: that may be the name of a library
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TorchmarkError(f"{path.name} cannot be imported", "Give it a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _package_of(path: Path) -> list[str]:
    names: list[str] = []
    for folder in path.parents:
        if not (folder / "__init__.py").is_file() or not folder.name.isidentifier():
            break
        names.insert(0, folder.name)
    return names


def forget_modules() -> None:
    """Run files again the next time, because one has changed."""
    for path in _imported:
        sys.modules.pop(f"torchmark_own_{path.stem}", None)
    _imported.clear()
    _import.cache_clear()
