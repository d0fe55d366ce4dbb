"""Code for devices that are not here is at least written to names that the installed torch has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchmark

ROOTS = ("torch.cuda.", "torch.mps.", "torch.xpu.", "torch.backends.", "torch.version.", "torch.accelerator.")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every part of the source that mentions torch, with the name of its file."""
    sources = sorted(Path(torchmark.__file__).parent.rglob("*.py"))
    texts = ((source.name, source.read_text(encoding="utf-8")) for source in sources)
    return [(name, node) for name, text in texts if "torch." in text for node in ast.walk(ast.parse(text))]


@pytest.fixture(scope="module")
def used_names(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    return {name for name in (dotted(node) for _, node in nodes) if name.startswith(ROOTS)}


def test_the_search_finds_what_each_device_lives_by(used_names: set[str]) -> None:
    assert {"torch.cuda.synchronize", "torch.mps.synchronize", "torch.xpu.synchronize"} <= used_names


def test_the_names_exist_in_the_installed_torch(used_names: set[str]) -> None:
    import torch

    for name in sorted(used_names):
        found = torch
        for part in name.split(".")[1:]:
            assert hasattr(found, part), f"{name} does not exist in torch {torch.__version__}"
            found = getattr(found, part)


def test_each_device_synchronises_in_one_place(nodes: list[tuple[str, ast.AST]]) -> None:
    calls: dict[str, list[str]] = {}
    for source, node in nodes:
        function = dotted(node.func) if isinstance(node, ast.Call) else ""
        if function.startswith("torch.") and "synchronize" in function:
            calls.setdefault(function, []).append(source)
    assert calls == {
        "torch.cuda.synchronize": ["cuda.py"],
        "torch.mps.synchronize": ["mps.py"],
        "torch.xpu.synchronize": ["xpu.py"],
    }
