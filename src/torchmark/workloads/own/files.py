"""The user's files that cases name: found, handed on to workers, and run. Their paths are never written into a run."""

import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import takewhile
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from msgspec import Struct

from torchmark.errors import CaseError, UsageError

# Path and version of each file by the name that cases use, for all processes, however they are started.
VARIABLE = "TORCHMARK_FILES"
LARGEST_BYTES = 4 << 20
_imported: set[Path] = set()  # files that were run
_NAME = re.compile(r"(?P<file>.*\.(?:py|json))(?::(?P<member>[\w.-]+))?", re.ASCII | re.DOTALL)


class OwnFile(Struct, frozen=True):
    name: str  # in cases
    path: Path
    text: str
    version: int  # changes when the text does


def split_name(text: str) -> tuple[str, str] | None:
    """The file and its part in `my_model.py:build`; None if the text names no file."""
    found = _NAME.fullmatch(text)
    return (found["file"], found["member"] or "") if found else None


def find_file(text: str) -> OwnFile:
    """The file at a path, known by its name from now on, or a known one of that name."""
    known = _known()
    file = _read(Path(known[text][0] if text in known else text).absolute())
    path, version = known.setdefault(file.name, (str(file.path), file.version))
    if path != str(file.path):
        raise UsageError(f"two files are called {file.name}", "Rename one of them, or measure them one after the other")
    if version != file.version:
        raise CaseError(f"{file.name} has changed since the run began", "Start the run again")
    os.environ[VARIABLE] = json.dumps(known)
    return file


def known_files() -> str:
    """For `serve_knowing` in a worker."""
    return os.environ.get(VARIABLE, "")


def file_paths() -> dict[str, Path]:
    return {name: Path(path) for name, (path, _) in _known().items()}


def serve_knowing(files: str, serve: Callable[..., None], *arguments: object) -> None:
    """Runs in a worker, which may have been forked before the files were known."""
    os.environ[VARIABLE] = files
    serve(*arguments)


def forget_files() -> None:
    """Run files again the next time, because one has changed."""
    for path in _imported:
        sys.modules.pop(f"torchmark_own_{path.stem}", None)
    _imported.clear()
    _import.cache_clear()
    _read.cache_clear()
    os.environ.pop(VARIABLE, None)


def _known() -> dict[str, tuple[str, int]]:
    try:
        return json.loads(known_files() or "{}")  # type: ignore[no-any-return]
    except ValueError:  # only torchmark should set it
        return {}


@cache
def _read(path: Path) -> OwnFile:
    """Read a file once in a process: later edits must not change what is recorded about it."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path} is too large for a file of a model", "Name the Python file, not its weights")
        text = path.read_bytes().decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Correct the path, or go to its folder") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text", "Save it as UTF-8") from error
    version = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) or 1
    return OwnFile(re.sub(r"[^A-Za-z0-9_.-]", "-", path.name), path, text, version)


def import_member(file: OwnFile, name: str) -> object:
    """A function or class of the file, which is run once. Errors name its line."""
    _imported.add(file.path)
    try:
        found = getattr(_import(file.path), name, None)
    except (Exception, SystemExit) as error:  # it may do anything, even leave
        message = f"{place_of(error) or file.name}: {type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(message, "Fix it, or install what it needs") from error
    if not callable(found):
        raise UsageError(f"{file.name} has no function or class '{name}'", "Name one that it has")
    return found


def place_of(error: BaseException, named: bool = False) -> str:
    """The innermost line of the user's own code in a traceback, as in `my_model.py, line 12`, or "". With `named`, only
    of files named on the command line: other files' names are not shared."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(following.__traceback__)]
        if isinstance(following, SyntaxError):
            places.append((following.filename or "", following.lineno))
        for filename, line in reversed(places):
            if Path(filename) in _imported if named else is_own_file(filename):
                return f"{Path(filename).name}, line {line}"
        following = following.__cause__ or following.__context__
    return ""


def is_own_file(filename: str) -> bool:
    path, folders = Path(filename), [each.parent for each in _imported if "site-packages" not in each.parts]
    return path in _imported or (not _is_library(path) and any(map(path.is_relative_to, folders)))


def _is_library(path: Path) -> bool:
    libraries = (Path(__file__).parents[2], sys.prefix, sys.base_prefix)
    return "site-packages" in path.parts or any(path.is_relative_to(library) for library in libraries)


class _Siblings(MetaPathFinder):
    """Finds the modules next to a model file: for its imports before installed libraries of the same name, but never
    before the standard library; for others last, as pickles and spawned processes import from there, too."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root, self._names = root, names  # the named modules come from the folder for every importer

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        frame: FrameType | None = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        importer = Path(frame.f_code.co_filename if frame else "")
        if fullname not in self._names and (not importer.is_relative_to(self._root) or _is_library(importer)):
            return None
        return PathFinder.find_spec(fullname, [str(self._root)])


@cache
def _import(path: Path) -> ModuleType:
    """Import a file as a part of its package if it is in one, else like a script."""
    folders = takewhile(lambda each: (each / "__init__.py").is_file() and each.name.isidentifier(), path.parents)
    package = [folder.name for folder in folders][::-1]
    root = path.parents[len(package)]
    if str(root) not in sys.path:
        sys.path.append(str(root))
        sys.meta_path.insert(0, _Siblings(root, package[:1]))
    if package:
        return importlib.import_module(".".join([*package, path.stem]))
    name = f"torchmark_own_{path.stem}"  # not the stem alone: that may be the name of a library
    spec: Any = importlib.util.spec_from_file_location(name, path)  # never None, as the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
