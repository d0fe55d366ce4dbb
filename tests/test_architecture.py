"""Imports go one way, torch is imported late and only where work runs, and every public name is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import torchmark

SOURCE = Path(torchmark.__file__).parent
FREE = {
    "records",
    "case",
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
ALLOWED["library"] = set(ALLOWED) - {"report", "fleet", "testing"}
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


class Module(NamedTuple):
    """One file of src/: its path in it, the package or module below torchmark that it belongs to, and what is in it."""

    path: str
    room: str
    tree: ast.Module
    imports: tuple[Import, ...]


@cache
def modules() -> list[Module]:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        path, tree = file.relative_to(SOURCE), ast.parse(file.read_text(encoding="utf-8"))
        package = ".".join(("torchmark", *path.parent.parts))
        room = path.with_suffix("").parts[0]
        found.append(Module(path.as_posix(), room, tree, tuple(imports(tree, package))))
    return found


def test_imports_go_one_way() -> None:
    breaches = []
    for path, room, _, found in modules():
        if room in ("__main__", "__init__"):
            continue
        assert room in FREE or room in ALLOWED, f"{room} is not part of the architecture"
        targets = {(each.module.split(".")[1], each.line) for each in found if each.module.startswith("torchmark.")}
        names = {"__version__"} if room in ("cli", "store") else set()
        may = {room} | FREE | ALLOWED.get(room, set()) | names if room not in FREE else FREE
        breaches += [f"{path}:{line} imports {target}" for target, line in sorted(targets) if target not in may]
    assert not breaches


def test_the_entry_points_import_little() -> None:
    (main,) = (each for each in modules() if each.path == "__main__.py")
    outside = {"os", "sys", "signal"}  # `--help` and interrupts wait for no more
    assert {".".join(each.module.split(".")[:2]) for each in main.imports} == {*outside, "torchmark.cli"}
    (package,) = (each for each in modules() if each.path == "__init__.py")
    assert all(each.late for each in package.imports if each.module.startswith("torchmark"))


def test_torch_is_imported_late_and_only_where_work_runs() -> None:
    for path, room, _, found in modules():
        for each in found:
            if each.module.split(".")[0] == "torch":
                assert room in TORCH_ROOMS, f"{path}:{each.line} must not import torch"
                assert each.late, f"{path}:{each.line} imports torch at once"


def test_slow_imports_are_avoided() -> None:
    slow = [path for path, _, _, found in modules() for each in found if each.module.split(".")[0] == "scipy"]
    assert not slow


def test_a_breach_would_be_seen() -> None:
    """The reader of imports is itself tried on every way to write one."""
    source = "import torch.nn\nfrom . import cli\nfrom ..cli import run\ndef f():\n    from torchmark import store\n"
    seen = {(each.module, each.late) for each in imports(ast.parse(source), "torchmark.store")}
    assert {("torch.nn", False), ("torchmark.store.cli", False), ("torchmark.cli.run", False)} <= seen
    assert ("torchmark.store", True) in seen


def test_only_the_command_line_prints_or_exits() -> None:
    for path, room, tree, _ in modules():
        if room != "cli":
            functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            calls = {ast.unparse(each) for each in functions if isinstance(each, ast.Name | ast.Attribute)}
            assert not {"print", "exit", "quit", "sys.exit"} & calls, path


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
