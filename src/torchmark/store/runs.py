"""The user's folder: new runs, runs by name, and local notes, which are never exported."""

import errno
import hashlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from torchmark import __version__, publications
from torchmark.errors import StoreError, UnknownName, UsageError
from torchmark.records import DeviceInfo, Machine, Run, RunHeader
from torchmark.store.files import distrust, make_folder, open_regular, os_errors, plain, write_whole
from torchmark.store.lines import HEADER_BYTES, NamedHeader, RunName
from torchmark.store.reader import load, read_header

_LAST = r"last(?:~([0-9]{1,6}))?"
_SHOWN = 10  # candidates that an error lists
_MOST_LIMITS = 8  # runs that hold limits of one device
_LIST_RUNS = "`torchmark runs` lists the runs that are here"


class StoredRun(Struct, frozen=True):
    path: Path
    header: RunHeader | None = None
    problem: str | None = None  # why there is no header


def home() -> Path:
    """The folder of run files: $TORCHMARK_HOME, else the platform's folder for user data."""
    if chosen := os.environ.get("TORCHMARK_HOME"):
        return Path(chosen)
    try:
        if sys.platform == "win32":
            data = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            data = Path.home() / "Library" / "Application Support"
        else:
            data = Path(os.environ.get("XDG_DATA_HOME", ""))
            data = data if data.is_absolute() else Path.home() / ".local" / "share"
        return data / "torchmark"
    except RuntimeError:  # no home folder, as in some containers
        folder = Path(tempfile.gettempdir()) / f"torchmark-{os.geteuid()}"
    fix = "Set TORCHMARK_HOME to a folder of your own"
    with os_errors("write", folder, fix), suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if distrust(folder, private=True):  # any user could have created a folder of that name
        raise StoreError(f"{folder} is open to other users", fix)
    return folder


def new_header(command: str, machine: Machine, cases: Iterable[str], **rest: Any) -> RunHeader:
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return RunHeader(secrets.token_hex(4), created, machine, tuple(cases), command, __version__, **rest)


def new_path(header: RunHeader) -> Path:
    """The default file of a run; names sort by time."""
    return home() / f"{plain(header.created)}_{plain(header.id)}.jsonl"


def load_runs(text: str, samples: bool = False, repeats: bool = False, local: bool = False) -> tuple[Run, ...]:
    """The run that a path, `last`, a label or an id names, or those of a publication or a published machine.

    `repeats` keeps figures that appear in two tables twice; `local` adds the messages behind failures.
    """
    path = _find_stored(text)
    return (load(path, samples=samples, local=local),) if path else publications.find_published(text, repeats)


def find_run(text: str) -> Path:
    """The file of a run: a path, `last`, `last~1`, a label, or the beginning of an id."""
    if found := _find_stored(text):
        return found
    raise UsageError(f"'{text}' is published and has no run file", _LIST_RUNS)


def scan_runs() -> Iterator[StoredRun]:
    """All runs in the folder by their headers, the last written first."""
    for path in _run_files():
        try:
            yield StoredRun(path, read_header(path))
        except StoreError as error:
            yield StoredRun(path, problem=str(error))


def _run_files() -> list[Path]:
    folder, found = home(), []
    with os_errors("read", folder, "Check its permissions"), suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.name.endswith(".jsonl"):
                modified = 0.0
                with suppress(OSError):
                    modified = entry.stat().st_mtime
                found.append((modified, entry.name))
    return [folder / name for _, name in sorted(found, reverse=True)]


def _named_runs() -> list[tuple[Path, RunName]]:
    """All runs, newest first; those with a damaged header by the name of the file."""
    found = []
    for path in _run_files():
        raw = b""
        with suppress(OSError, StoreError), open_regular(path, "") as file:
            raw = file.readline(HEADER_BYTES)
        try:
            found.append((path, msgspec.json.decode(raw, type=NamedHeader).header))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            if raw and (named := re.fullmatch(r"(.{10}T\d\d)-(\d\d)-(\d\dZ)_([\w-]+)\.jsonl", path.name)):
                found.append((path, RunName(named[4], ":".join(named.groups()[:3]))))
    return sorted(found, key=lambda run: run[1].created, reverse=True)


def is_folder(text: str) -> bool:
    return _is(Path.is_dir, text)


def check_label(label: str) -> None:
    """Refuse a label that `find_run` cannot find."""
    if not label.strip() or not label.isprintable() or label.startswith("-"):
        raise UsageError(f"'{label}' is not a label", "Use a short name, such as after-upgrade")
    if re.fullmatch(_LAST, label) or publications.is_published_name(label):
        raise UsageError(f"'{label}' already means another run, so it cannot be a label", "Choose another name")
    if "/" in label or _looks_like_a_file(label) or _is(Path.is_file, label):
        raise UsageError(f"'{label}' means a file, so it cannot be a label", "Choose a name without slash or .jsonl")


def _find_stored(text: str) -> Path | None:
    """The file of a run; None if the name is that of a publication or one of its machines."""
    if _is(Path.is_file, text):
        return Path(text)
    if text.partition("/")[0] in publications.names():
        return None
    runs = _named_runs()
    if back := re.fullmatch(_LAST, text):
        if not runs:
            raise UsageError(f"there are no runs in {home()}", "Measure one with `torchmark run`")
        if int(back[1] or 0) >= len(runs):
            raise UsageError(f"'{text}' is further back than the first run", f"The oldest is last~{len(runs) - 1}")
        return runs[int(back[1] or 0)][0]
    labelled = [(path, run) for path, run in runs if run.label == text]
    named = labelled or [(path, run) for path, run in runs if text and run.id.startswith(text)]
    if len(named) == 1:
        return named[0][0]
    if named:
        shown = ", ".join(f"{run.id} ({run.created})" for _, run in named[:_SHOWN])
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        raise UsageError(f"'{text}' names {len(named)} runs: {shown}{more}", "Give the id of one")
    if _looks_like_a_file(text):
        raise UsageError(f"there is no file '{text}'", _LIST_RUNS)
    if publications.find_hardware(text):
        return None
    import difflib  # costs start-up time that only a mistake should pay

    names = [each for _, run in runs for each in (run.label, run.id) if each]
    near = difflib.get_close_matches(text, publications.hardware_titles(), n=1)  # there are too many to list
    raise UnknownName("run", text, ["last", *names[: 2 * _SHOWN], *publications.names(), *near])


def _is(kind: Callable[[Path], bool], text: str) -> bool:
    try:
        return kind(Path(text))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or not _looks_like_a_file(text):
            return False
        raise StoreError(f"cannot read {text}: {error.strerror}", "Check the disk and the permissions") from error


def _looks_like_a_file(text: str) -> bool:
    return os.sep in text or text.endswith(".jsonl")


def _note(kind: str, name: str) -> Path:
    return home() / kind / plain(name)[:80]


def keep_note(kind: str, name: str, *content: bytes, mode: int = 0o600) -> None:
    path = _note(kind, name)
    make_folder(path.parent)
    write_whole(path, content, mode=mode)


def read_note(kind: str, name: str, most: int = 1 << 20) -> bytes | None:
    """The content of a note that no other user can have written."""
    with suppress(OSError, ValueError, StoreError):
        path = _note(kind, name)
        if not distrust(path):
            with path.open("rb") as file:
                return file.read(most)
    return None


def keep_origin(run: str, files: Mapping[str, Path]) -> None:
    """Remember the model files of a run: its run file never decides what is executed."""
    content = {name: os.fspath(path) for name, path in files.items()}
    with suppress(OSError):  # then resuming the run has to ask
        if content:
            keep_note("origins", run, msgspec.json.encode(content))


def find_origin(run: str) -> dict[str, Path]:
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(read_note("origins", run) or b"{}", type=dict[str, str])
        return {name: Path(path) for name, path in found.items()}
    return {}


def keep_limits(machine: Machine, device: DeviceInfo, run: Path, alongside: bool = False) -> None:
    """Remember the run file with the limits of a device, alone or in addition to earlier ones."""
    digest = _limits_digest(machine, device)
    names = [run.name if run.parent == home() else os.path.realpath(run)]
    names += [name for name in _limits_names(digest) if name not in names][: _MOST_LIMITS - 1] if alongside else []
    with os_errors("write", _note("limits", digest)):
        keep_note("limits", digest, "\n".join(names).encode(), mode=0o666)


def find_limits(machine: Machine, device: DeviceInfo) -> list[Path]:
    """The run files with the limits of a device that still exist, newest first."""
    found = []
    for name in _limits_names(_limits_digest(machine, device)):
        with suppress(OSError, ValueError):
            found += [home() / name] if (home() / name).is_file() else []
    return found


def _limits_names(digest: str) -> list[str]:
    with suppress(OSError, ValueError):
        return _note("limits", digest).read_text(encoding="utf-8")[: _MOST_LIMITS * 4096].splitlines()[:_MOST_LIMITS]
    return []


def _limits_digest(machine: Machine, device: DeviceInfo) -> str:
    """A hash of what decides the speed of a device: hardware, driver and torch."""
    machine_facts = (machine.cpu, machine.physical_cores, machine.logical_cores, machine.memory_gib, machine.torch)
    device_facts = (device.name, device.model, device.memory_bytes, device.driver, device.capability, device.cores)
    return hashlib.sha256(msgspec.json.encode((*machine_facts, machine.torch_build, *device_facts))).hexdigest()[:24]
