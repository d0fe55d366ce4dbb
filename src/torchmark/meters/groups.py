"""Where Linux keeps what it knows of the control groups that this process belongs to."""

from __future__ import annotations

from pathlib import Path

from torchmark.meters.contract import ROOT, read_text


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of the groups that this controller has this process in: from the outermost to its own. Some may not be
    there: a container sees the names of its groups, and not always their folders."""
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
