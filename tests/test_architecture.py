"""Imports go one way, torch is imported late and only where work runs, and every public name is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import torchmark

SOURCE = Path(torchmark.__file__).parent
FREE = {
    "records",
    "case",
    "conclusions",
    "errors",
    "local_log",
    "settings",
}  # everything may use these, and they use nothing
ALLOWED = {
    "devices": set(),
    "workloads": set(),
    "meters": set(),
    "analyze": set(),
    "publications": set(),
    "measure": {"devices", "workloads", "meters", "analyze"},
    "studies": {"measure", "analyze", "publications"},
    "store": {"publications"},
    "report": {"analyze"},
    "fleet": {"store"},
    "testing": {"devices", "workloads", "measure", "analyze", "store", "report"},
}
ALLOWED["cli"] = set(ALLOWED)
TORCH_ROOMS = {"devices", "workloads", "meters", "measure", "studies"}


class Import(NamedTuple):
    module: str
    line: int
    late: bool  # inside a function, or only for the type checker


def imports(tree: ast.AST, package: str, late: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(name.name, node.lineno, late) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (parent, node.module) if part)
            yield Import(base, node.lineno, late)
            yield from (Import(f"{base}.{name.name}", node.lineno, late) for name in node.names)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, package, late or function or typing)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def found(path: Path) -> list[Import]:
    package = ".".join(("torchmark", *path.relative_to(SOURCE).parent.parts))
    return list(imports(ast.parse(path.read_text(encoding="utf-8")), package))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room == "__main__":
        outside = {"os", "sys", "signal"}  # `--help` and interrupts wait for no more
        assert {".".join(each.module.split(".")[:2]) for each in found(path)} == {*outside, "torchmark.cli"}
        return
    if room == "__init__":
        assert all(each.late for each in found(path) if each.module.startswith("torchmark"))
        return
    assert room in FREE or room in ALLOWED, f"{room} is no room that the architecture knows"
    targets = {(each.module.split(".")[1], each.line) for each in found(path) if each.module.startswith("torchmark.")}
    names = {"__version__"} if room in ("cli", "store") else set()
    may = {room} | FREE | ALLOWED.get(room, set()) | names if room not in FREE else FREE
    breaches = [f"{path.name}:{line} imports {target}" for target, line in sorted(targets) if target not in may]
    assert not breaches


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_torch_is_imported_late_and_only_where_work_runs(path: Path) -> None:
    for each in found(path):
        if each.module.split(".")[0] == "torch":
            assert room_of(path) in TORCH_ROOMS, f"{path.name}:{each.line} must not import torch"
            assert each.late, f"{path.name}:{each.line} imports torch at once"


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_slow_imports_are_avoided(path: Path) -> None:
    assert not [each for each in found(path) if each.module.startswith("scipy.stats")]


def test_a_breach_would_be_seen() -> None:
    """The reader of imports is itself tried on every way to write one."""
    source = "import torch.nn\nfrom . import cli\nfrom ..cli import run\ndef f():\n    from torchmark import store\n"
    seen = {(each.module, each.late) for each in imports(ast.parse(source), "torchmark.store")}
    assert {("torch.nn", False), ("torchmark.store.cli", False), ("torchmark.cli.run", False)} <= seen
    assert ("torchmark.store", True) in seen


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    if room_of(path) == "cli":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"print", "exit", "quit", "sys.exit"} & set(calls)


@pytest.mark.parametrize("name", torchmark.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(torchmark, name)


def test_no_public_name_is_that_of_a_room() -> None:
    assert not set(torchmark.__all__) & set(ALLOWED)


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import torchmark", {"torch", "numpy", "msgspec", "rich", "click"}),
        ("import torchmark; torchmark.load; torchmark.compare_runs", {"torch", "rich", "click"}),
        ("from torchmark.cli import main; main(['--help'])", {"torch", "numpy", "msgspec", "rich"}),
        ("from torchmark.cli import main; main(['runs'])", {"torch", "numpy"}),
        ("from torchmark.cli import main; assert main(['show', PATH]) == 0", {"torch", "numpy"}),
        ("from torchmark.cli import main; assert main(['check', PATH]) in (0, 1)", {"torch"}),
        ("from torchmark.cli import main; assert main(['export', PATH, '--show']) == 0", {"torch", "numpy", "rich"}),
    ],
)
def test_what_is_quick_stays_quick(program: str, absent: set[str], tmp_path: Path) -> None:
    recorded = Path(__file__).parent / "store" / "recorded" / "v1.jsonl"
    code = f"import os, sys; os.environ['TORCHMARK_HOME'] = {str(tmp_path)!r}; PATH = {str(recorded)!r}\n{program}\n"
    code += "print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert not absent & loaded
