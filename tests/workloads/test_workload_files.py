"""Workloads are found by the names of their files, and a broken file hides nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchmark import workloads
from torchmark.errors import TorchmarkError, UnknownName


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A second folder in which workloads are looked for."""
    monkeypatch.setattr(workloads, "__path__", [*workloads.__path__, str(tmp_path)])
    before = set(sys.modules)
    workloads.forget()
    yield tmp_path
    workloads.forget()
    for name in set(sys.modules) - before:
        if name.startswith("torchmark.workloads."):
            del sys.modules[name]


def test_what_ships_is_found_and_whole() -> None:
    assert {"null", "mlp", "tensor-add", "matmul"} <= set(workloads.names())
    assert workloads.broken() == {}
    assert workloads.find_workload("tensor-add").name == "tensor-add"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_package", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(1)", "SystemExit"),
        ("x = 1", "no Workload whose name is 'odd-one'"),
    ],
)
def test_a_broken_file_is_listed_with_its_reason_and_hides_nothing(folder: Path, source: str, reason: str) -> None:
    (folder / "odd_one.py").write_text(source)
    assert reason in workloads.broken()["odd-one"]
    assert {"null", "mlp", "tensor-add", "matmul"} <= set(workloads.names())
    assert "odd-one" not in workloads.names()
    with pytest.raises(TorchmarkError, match="broken"):
        workloads.find_workload("odd-one")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'matmul'"):
        workloads.find_workload("matmull")


def test_the_example_in_the_documentation_is_a_workload(folder: Path) -> None:
    from torchmark.measure.check import check_step
    from torchmark.workloads.contract import Setting

    page = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text()
    (folder / "row_softmax.py").write_text(page.split("```python\n")[1].split("```")[0])
    workload = workloads.find_workload("row-softmax")
    for dtype in workload.dtypes:
        step = workload.prepare(workload.tiny, Setting(mode="infer", dtype=dtype))
        step.run()
        check = check_step(step, dtype)
        assert check is not None
        assert check.error <= check.tolerance
