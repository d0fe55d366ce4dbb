"""The runs that a person can name: where run files are, how a new one starts, and how one is found by name."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchmark import __version__, publications
from torchmark.errors import StoreError, UnknownName, UsageError
from torchmark.records import Machine, Run, RunHeader
from torchmark.store.files import explained, is_own
from torchmark.store.lines import RunName
from torchmark.store.reader import load, read_header, read_name

_LAST = r"last(?:~([0-9]{1,6}))?"
_SHOWN = 10  # candidates that an error lists
_LIST_RUNS = "`torchmark runs` lists the runs that are here"


class StoredRun(Struct, frozen=True):
    """One file in the folder of runs; if the header is None, `problem` says why."""

    path: Path
    header: RunHeader | None = None
    problem: str | None = None


def home() -> Path:
    """The folder of run files: $TORCHMARK_HOME, else the user data folder of the platform."""
    chosen = os.environ.get("TORCHMARK_HOME")
    if chosen:
        return Path(chosen)
    try:
        return _data_folder() / "torchmark"
    except RuntimeError:  # neither a home folder nor an entry in the user database, as in some containers
        return _fallback_home()


def _data_folder() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return data if data.is_absolute() else Path.home() / ".local" / "share"


def _fallback_home() -> Path:
    """A temporary folder. Anybody could have created one of that name, so it must be this user's."""
    folder = Path(tempfile.gettempdir()) / f"torchmark-{os.geteuid()}"
    fix = "Set TORCHMARK_HOME to a folder of your own"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        private = is_own(folder, private=True)
    except OSError as error:
        raise explained(folder, error, fix) from error
    if not private:
        raise StoreError(f"{folder} is open to other users", fix)
    return folder


def new_header(command: str, machine: Machine, cases: Iterable[str], **rest: Any) -> RunHeader:
    """The first line of a run that starts now."""
    return RunHeader(
        id=secrets.token_hex(4),
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine,
        cases=tuple(cases),
        command=command,
        version=__version__,
        **rest,
    )


def new_path(header: RunHeader) -> Path:
    """The default file of a new run; names sort by time."""
    created, number = (re.sub(r"[^A-Za-z0-9-]", "-", text) for text in (header.created, header.id))
    return home() / f"{created}_{number}.jsonl"


def load_runs(text: str, samples: bool = False, repeats: bool = False, local: bool = False) -> tuple[Run, ...]:
    """One run for a path, `last`, a label, an id or a published machine; one for each machine of a publication.

    A machine is named as in `m1-chips/M1 Ultra GPU`, or as in `3090` to have its figures from all publications.
    `repeats` keeps a published figure that appears in two tables twice.
    `local` adds what the local log says about failures.
    """
    path = _find_stored(text)
    return (load(path, samples=samples, local=local),) if path else publications.find_published(text, repeats)


def find_run(text: str) -> Path:
    """The file of a run: a path, `last`, `last~1`, a label, or the beginning of an id.

    Published runs have no file: `load_runs` returns them.
    """
    found = _find_stored(text)
    if found is None:
        raise UsageError(f"'{text}' is published and has no run file", _LIST_RUNS)
    return found


def scan_runs() -> Iterator[StoredRun]:
    """All runs in the folder, the last written first; only headers are read, one at a time."""
    for path in _run_files():
        try:
            yield StoredRun(path, read_header(path))
        except StoreError as error:
            yield StoredRun(path, problem=str(error))


def is_folder(text: str) -> bool:
    """Whether the name means all runs of a folder."""
    return _is(Path.is_dir, text)


def check_label(label: str) -> None:
    """Refuse a label by which `find_run` could never find its run."""
    if not label.strip() or not label.isprintable() or label.startswith("-"):
        raise UsageError(f"'{label}' is not a label", "Use a short name, such as after-upgrade")
    if re.fullmatch(_LAST, label) or publications.is_published_name(label):
        raise UsageError(f"'{label}' already means another run, so it cannot be a label", "Choose another name")
    if "/" in label or os.sep in label or label.endswith(".jsonl") or _is(Path.is_file, label):
        raise UsageError(f"'{label}' means a file, so it cannot be a label", "Choose a name without slash or .jsonl")


def _find_stored(text: str) -> Path | None:
    """The file of a run, or None if the name means a publication or one of its machines."""
    if _is(Path.is_file, text):
        return Path(text)
    if text.partition("/")[0] in publications.names():
        return None
    runs = _named_runs()
    back = re.fullmatch(_LAST, text)
    if back:
        return _from_last([path for path, _ in runs], int(back[1] or 0))
    labelled = [(path, name) for path, name in runs if name.label == text]
    named = labelled or [(path, name) for path, name in runs if text and name.id.startswith(text)]
    if len(named) == 1:
        return named[0][0]
    if named:
        shown = ", ".join(f"{name.id} ({name.created})" for _, name in named[:_SHOWN])
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        raise UsageError(f"'{text}' names {len(named)} runs: {shown}{more}", "Give the id of one")
    if _looks_like_a_file(text):
        raise UsageError(f"there is no file '{text}'", _LIST_RUNS)
    if publications.find_hardware(text):
        return None
    import difflib  # costs start-up time that only a mistake should pay

    names = [each for _, name in runs for each in (name.label, name.id) if each]
    near = difflib.get_close_matches(text, publications.hardware_titles(), n=1)  # there are too many to list
    raise UnknownName("run", text, ["last", *names[: 2 * _SHOWN], *publications.names(), *near])


def _run_files() -> list[Path]:
    """All files in the folder of runs, the last written first."""
    folder = home()
    try:
        with os.scandir(folder) as entries:
            found = [(_modified(entry), entry.name) for entry in entries if entry.name.endswith(".jsonl")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}", "Check its permissions") from error
    return [folder / name for _, name in sorted(found, reverse=True)]


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _named_runs() -> list[tuple[Path, RunName]]:
    """All readable runs by their names alone, newest first."""
    found = []
    for path in _run_files():
        with contextlib.suppress(StoreError):
            found.append((path, read_name(path)))
    return sorted(found, key=lambda run: run[1].created, reverse=True)


def _from_last(paths: list[Path], back: int) -> Path:
    if not paths:
        raise UsageError(f"there are no runs in {home()}", "Measure one with `torchmark run`")
    if back >= len(paths):
        raise UsageError(f"'last~{back}' is further back than the first run", f"The oldest is last~{len(paths) - 1}")
    return paths[back]


def _is(kind: Callable[[Path], bool], text: str) -> bool:
    try:
        return kind(Path(text))
    except ValueError:  # a name that no file can have
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or not _looks_like_a_file(text):
            return False
        raise StoreError(f"cannot read {text}: {error.strerror}", "Check the disk and the permissions") from error


def _looks_like_a_file(text: str) -> bool:
    return os.sep in text or text.endswith(".jsonl")
