"""What a meter is: one source of readings, taken while steps are timed, with the reason where it cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path("/")  # tests put a recorded tree in its place


class Meter(Struct, frozen=True):
    """One source. What cannot be read gives None, never zero; `provenance` names the source or says why there is
    none."""

    read: Callable[[], Any]
    provenance: str = "measured by the system"
    # The power at this moment, where energy is not counted. A reading may take a tenth of a second, so it is only taken
    # during untimed steps.
    watts: Callable[[], float | None] = lambda: None


Meters = dict[str, Meter]  # by the quantity that they read


def missing(reason: str) -> Meter:
    """A meter that reads nothing, for this reason."""
    return Meter(lambda: None, unavailable(reason))


def unavailable(reason: str) -> str:
    return f"unavailable because {reason}"


def estimated(source: str) -> str:
    """The provenance of energy that is computed from sampled power."""
    return f"estimated from power that {source} reported during untimed steps"


def try_meter(read: Callable[[], Any], reason: str, source: str = "the system") -> Meter:
    """A meter of this reading, which is tried once; `reason` is for where it gives nothing."""
    return Meter(read, unavailable(reason) if read() is None else f"measured by {source}")


def of_files(files: Sequence[Path], combine: Callable[[list[float]], float]) -> Callable[[], float | None]:
    """A reader that combines the numbers in these files of the kernel's."""

    def read() -> float | None:
        numbers = [number for file in files if (number := read_number(file)) is not None]
        return combine(numbers) if numbers else None

    return read


def read_text(path: Path) -> str | None:
    """A small file of the kernel's without its line end, or None; such files may vanish or refuse at any time."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """The number in a small file of the kernel's, or None."""
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of this process's control groups under a controller, from the outermost to its own. Some may not exist: a
    container sees the names of its groups, but not always their folders."""
    folders: list[Path] = []
    top = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = (top, top / "unified")
        elif controller in controllers.split(","):
            tops = (top / controller, top / controllers)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for each in dict.fromkeys(tops):
            folders += [each.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders
