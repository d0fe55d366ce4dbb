"""Installed packages bring workloads along through an entry point; a broken one hides nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchmark import workloads
from torchmark.measure.check import check_step
from torchmark.measure.process import needed_modules
from torchmark.records import Case
from torchmark.settings import PLUGIN, is_shareable
from torchmark.workloads.contract import Setting

SOURCE = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text().split("```python\n")[-1].split("```")[0]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A package as an installer would leave it, with these entry points."""

    def installer(package: str, points: str, source: str = SOURCE) -> None:
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[torchmark.workloads]\n{points}\n")
        (tmp_path / f"{package}.py").write_text(source)
        workloads.forget()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield installer
    workloads.forget()


def test_a_plugged_in_workload_is_one_like_any_other(install: Callable[..., None]) -> None:
    install("soft_rows", "row-softmax = soft_rows:RowSoftmax")
    assert "row-softmax" in workloads.names()
    assert workloads.broken() == {}
    workload = workloads.find_workload("row-softmax")
    assert check_step(workload.prepare(workload.tiny, Setting(mode="infer")), "float32") is not None
    assert workloads.brought_by("row-softmax") == "soft_rows 1.0"
    assert is_shareable(PLUGIN, workloads.brought_by("row-softmax"))
    assert {workloads.brought_by(name) for name in ("mlp", "my_model.py", "nowhere")} == {None}
    assert "soft_rows" in needed_modules(Case("row-softmax", "infer"))
    assert needed_modules(Case("mlp", "infer")) == ("msgspec", "numpy", "psutil", "torch")


@pytest.mark.parametrize(
    ("points", "name", "reason"),
    [
        ("row-softmax = bad_rows:Missing", "row-softmax", "AttributeError"),
        ("row-softmax = not_there:RowSoftmax", "row-softmax", "ModuleNotFoundError"),
        ("row-softmax = bad_rows:Params", "row-softmax", "is no Workload"),
        ("other-name = bad_rows:RowSoftmax", "other-name", "calls itself 'row-softmax'"),
        ("Row_Softmax = bad_rows:RowSoftmax", "Row_Softmax", "small letters"),
        ("mlp = bad_rows:RowSoftmax", "mlp of bad_rows:RowSoftmax", "is taken"),
    ],
)
def test_a_broken_one_is_listed_with_its_reason(
    install: Callable[..., None], points: str, name: str, reason: str
) -> None:
    install("bad_rows", points)
    assert reason in workloads.broken()[name]
    assert workloads.find_workload("mlp").name == "mlp"
