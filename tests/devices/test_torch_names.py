"""Code for devices that are not here is at least written to names that the installed torch has."""

import ast
from pathlib import Path

import pytest
import torch

import torchmark

SOURCES = sorted(Path(torchmark.__file__).parent.rglob("*.py"))
ROOTS = ("torch.cuda.", "torch.mps.", "torch.xpu.", "torch.backends.", "torch.version.", "torch.accelerator.")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def used_names() -> set[str]:
    names = (dotted(node) for source in SOURCES for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    return {name for name in names if name.startswith(ROOTS)}


def test_the_search_finds_what_each_device_lives_by():
    assert {"torch.cuda.synchronize", "torch.mps.synchronize", "torch.xpu.synchronize"} <= used_names()


@pytest.mark.parametrize("name", sorted(used_names()))
def test_the_name_exists_in_the_installed_torch(name):
    found = torch
    for part in name.split(".")[1:]:
        assert hasattr(found, part), f"{name} does not exist in torch {torch.__version__}"
        found = getattr(found, part)


def test_each_device_synchronises_in_one_place():
    calls = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and dotted(node.func).startswith("torch.")
                and "synchronize" in dotted(node.func)
            ):
                calls.setdefault(dotted(node.func), []).append(source.name)
    assert calls == {
        "torch.cuda.synchronize": ["cuda.py"],
        "torch.mps.synchronize": ["mps.py"],
        "torch.xpu.synchronize": ["xpu.py"],
    }
