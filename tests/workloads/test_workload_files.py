"""Workloads are found by the names of their files, and a broken file hides nothing else."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchmark import workloads
from torchmark.cli import main
from torchmark.errors import TorchmarkError, UnknownName
from torchmark.measure.check import check_step
from torchmark.workloads.contract import Setting


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


EXAMPLES = ["small_cnn", "row_softmax"]  # in the order of docs/add-a-workload.md


@pytest.fixture
def examples(folder: Path) -> Path:
    page = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text()
    for name, block in zip(EXAMPLES, page.split("```python\n")[1:], strict=True):
        (folder / f"{name}.py").write_text(block.split("```")[0])
    return folder


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_the_documentation_are_workloads(examples: Path, name: str) -> None:
    assert (examples / f"{name}.py").is_file()
    workload = workloads.find_workload(name.replace("_", "-"))
    for mode, dtype in ((mode, dtype) for mode in workload.modes for dtype in workload.dtypes):
        if (mode, dtype) == ("train", "float16"):
            continue
        step = workload.prepare(workload.tiny, Setting(mode=mode, dtype=dtype))
        step.run()
        check = check_step(step, dtype)
        assert check is not None
        assert check.error <= check.tolerance
        assert step.work.flops


def test_the_commands_of_the_documentation_work_in_the_folder_of_the_file(
    examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text()
    commands = [line.split()[1:] for line in page.split("\n") if line.startswith("torchmark ")]
    assert len(commands) == 3
    monkeypatch.chdir(examples)
    for command in commands:
        planned = [*command, "--dry-run"] if command[0] == "run" else command  # what runs is tested above
        assert main(planned) == 0
        assert "small_cnn.py" in capsys.readouterr().out


def test_a_workload_without_a_golden_line_gets_it_printed(examples: Path) -> None:
    golden = runpy.run_path(str(Path(__file__).with_name("test_golden.py")))
    assert (examples / "small_cnn.py").is_file()
    with pytest.raises(pytest.fail.Exception, match=r'\("small-cnn", "train"\): \(1, [\d_]+, [\d_]+, [\d.]+\),$'):
        golden["test_the_work_is_what_this_version_says"]("small-cnn", "train")
