"""A Python file of the user's is a workload: named without its path, tied to its content, checked and counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchmark import workloads
from torchmark.errors import TorchmarkError, UnsupportedError, UsageError, WrongResultError
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.check import check_step
from torchmark.measure.outcomes import status_of
from torchmark.measure.parameters import list_parameters, read_params
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.own.files import known_files, serve_knowing

MODELS = '''"""Some models.

More about them.
"""
import torch
from torch import nn
from torch.nn import Flatten


class Dense(nn.Module):
    """Dense layers."""

    def __init__(self, width: int = 16, depth=2, dropout: float = 0.5, bias: bool = True, act: str = "relu", up=None):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias) for _ in range(depth)])
        self.drop, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(width)

    def forward(self, rows):
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        return {"rows": self.norm(self.drop(rows)), "names": ["a"], "count": len(rows)}


class Sized(nn.Module):
    def __init__(self, size: int, ratio):
        super().__init__()
        self.layer = nn.Linear(size, int(size * ratio))

    def forward(self, rows):
        return self.layer(rows)


class Together(nn.Module):
    """Every row depends on all of them."""

    def forward(self, rows):
        return torch.softmax(rows @ rows.T, dim=1) @ rows


class Drawn(nn.Module):
    def forward(self, rows):
        return rows + torch.randn_like(rows)


class Short(nn.Module):
    """Insists on float32."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, rows):
        return torch.mm(self.layer(rows), torch.ones(8, 8, dtype=torch.float32))


class Fresh(nn.Module):
    """Makes numbers of its own."""

    def forward(self, rows):
        return torch.mm(rows, torch.eye(rows.shape[1]))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, rows):
        return self.used(rows)


class Words(nn.Module):
    def forward(self, rows):
        return [int(rows.numel())]


def build(batch: int = 4, width: int = 8):
    """What is usual."""
    return Dense(width), torch.randn(batch, width)


def two():
    return nn.Bilinear(4, 5, 3), (torch.randn(6, 4), torch.randn(6, 5))


def by_name():
    return Dense(), {"rows": torch.randn(6, 16)}


def uneven():
    class Sum(nn.Module):
        def forward(self, one, other):
            return one.sum() + other.sum()

    return Sum(), (torch.randn(3), torch.randn(4))


def wrong():
    return Dense(), torch.randn(4, 15)


def no_model():
    return 3


def odd_input():
    return Dense(), "rows"


def loss(answer, rows):
    return (answer["rows"] - rows).abs().mean()


def _hidden():
    pass
'''


IMPORT = "from torchmark.workloads.contract import Workload\n"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Files are known by name in a process: each test begins as a new one."""
    workloads.forget()
    yield
    workloads.forget()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "my models" / "some.py"
    path.parent.mkdir()
    path.write_text(MODELS)
    return path


def prepare(name: str, mode: str = "infer", dtype: str = "float32", **params: Any) -> Step:
    workload = workloads.find_workload(name)
    given = read_params(workload, params)
    workload.check(given)
    return workload.prepare(given, Setting(mode=mode, dtype=dtype))


def test_a_file_becomes_a_workload_that_is_named_without_its_path(models: Path) -> None:
    workload = workloads.find_workload(f"{models}:Dense")
    assert workload.name == "some.py:Dense"
    assert workload.summary() == "Some models."
    assert workloads.find_workload("some.py:Dense") is workload  # known by its name from now on
    (case,) = expand(Sweep([str(models)], params={"width": ["32"]}))
    assert case.text == "some.py/infer:width=32@cpu/float32"
    assert expand(Sweep([case.text])) == (case,)


def test_its_version_follows_its_content_wherever_it_lies(models: Path, tmp_path: Path) -> None:
    first = workloads.find_workload(str(models)).version
    workloads.forget()
    copy = tmp_path / "some.py"
    copy.write_bytes(MODELS.replace("\n", "\r\n").encode())
    assert workloads.find_workload(str(copy)).version == first
    files = known_files()
    copy.write_text(MODELS + "\n# changed")
    assert workloads.find_workload("some.py").version == first  # what a run has begun with
    workloads.forget()
    with pytest.raises(TorchmarkError, match="has changed since the run began"):
        serve_knowing(files, workloads.find_workload, "some.py")
    workloads.forget()
    assert workloads.find_workload(str(copy)).version != first


def test_two_files_of_one_name_are_never_mixed_up(models: Path, tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(MODELS + "# another")
    workloads.find_workload(str(models))
    with pytest.raises(UsageError, match=r"two files are called some\.py"):
        workloads.find_workload(str(tmp_path / "some.py"))


def test_workers_find_the_same_file_whenever_they_were_forked(models: Path) -> None:
    workload = workloads.find_workload(str(models))
    files, found = known_files(), list[str]()
    workloads.forget()
    serve_knowing(files, lambda name: found.append(workloads.find_workload(name).name), "some.py")
    assert found == [workload.name]


def test_a_name_that_is_not_known_is_looked_for_where_the_process_is(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models.parent)
    assert workloads.find_workload("some.py:two").name == "some.py:two"
    with pytest.raises(UsageError, match=r"cannot read .*none\.py"):
        workloads.find_workload("none.py")


def test_arguments_that_a_command_line_can_give_are_parameters(models: Path) -> None:
    found = {
        each.name: (each.default, each.takes) for each in list_parameters(workloads.find_workload(f"{models}:Dense"))
    }
    assert found["width"] == (16, "a whole number")
    assert found["depth"] == (2, "a whole number")
    assert found["dropout"] == (0.5, "a number")
    assert found["bias"] == (True, "on, off")
    assert found["act"] == ("relu", "a word")
    assert "up" not in found
    assert found["batch"] == (0, "a whole number from 0 to 1048576")
    assert found["input"] == ("", "what --input says")


def test_what_has_no_default_must_be_given(models: Path) -> None:
    name = f"{models}:Sized"
    with pytest.raises(UsageError, match=r"must be told its size\. Give it: -p size="):
        expand(Sweep([name]))
    step = prepare(name, size=8, ratio=0.5, batch=3, input="float.8")
    assert step.run().shape == (3, 4)


@pytest.mark.parametrize(
    ("source", "member", "words"),
    [
        ("def make():\n  return (", "", "some.py, line 2: SyntaxError"),
        ("def make(): pass\ndef other(): pass", "", "Say which part to take: some.py:make, some.py:other"),
        ("x = 1", "", "Write a function 'build'"),
        ("def make(): pass", "mkae", "has no 'mkae'"),
        ("\0", "", "some.py: SyntaxError"),
        (f"{IMPORT}class A(Workload): pass\nclass B(Workload): pass", "", "several workloads"),
        (f"{IMPORT}class A(Workload): pass", "", "A of some.py has no params"),
        (f"import no_such\n{IMPORT}class A(Workload): pass", "", "some.py, line 1: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_before_anything_is_measured(
    tmp_path: Path, source: str, member: str, words: str
) -> None:
    (tmp_path / "some.py").write_text(source)
    with pytest.raises(UsageError) as caught:
        workloads.find_workload(f"{tmp_path / 'some.py'}{':' if member else ''}{member}")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("member", "params", "words"),
    [
        ("no_model", {}, "gives a int. It must return a torch.nn.Module"),
        ("Dense", {}, "nobody says what goes into Dense"),
        ("odd_input", {}, "the example input is a str"),
        ("uneven", {"batch": 5}, "the batch cannot be changed: the inputs are 3 and 4"),
    ],
)
def test_what_a_function_must_return_is_told(models: Path, member: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(f"{models}:{member}", **params)
    assert words in str(caught.value)


def test_an_error_in_the_users_code_is_told_with_the_users_line(models: Path, tmp_path: Path) -> None:
    step = prepare(f"{models}:wrong")
    with pytest.raises(RuntimeError) as caught:
        step.run()
    status, reason = status_of(caught.value)
    line = 1 + MODELS[: MODELS.index("rows = torch.relu(layer(rows))")].count("\n")
    assert (status, reason.partition(": ")[0]) == ("crashed", f"some.py, line {line}")
    assert str(tmp_path) not in reason
    assert status_of(ValueError("ours"))[1] == "ValueError: ours"


CASES: list[tuple[str, dict[str, Any]]] = [
    ("", {"batch": 6}),
    ("two", {"batch": 9}),
    ("two", {}),
    ("by_name", {"batch": 2}),
    ("uneven", {}),
    ("Dense", {"batch": 5, "input": "rows.float.16", "depth": 3}),
    ("Together", {"batch": 7, "input": "float.8"}),
    ("Fresh", {"batch": 7, "input": "float.8"}),
    ("Flatten", {"batch": 5, "input": "float.3x4"}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("member", "params"), CASES)
def test_numbers_are_checked_against_float64(models: Path, member: str, params: dict[str, Any], dtype: str) -> None:
    if (member, dtype) == ("Fresh", "bfloat16"):
        pytest.skip("it makes float32 numbers, which cannot be multiplied with shorter ones")
    step = prepare(f"{models}:{member}" if member else str(models), dtype=dtype, **params)
    step.run()
    check = check_step(step, dtype)
    assert check is not None
    assert 0 <= check.error <= check.tolerance


@pytest.mark.parametrize(("member", "params"), [("", {}), ("Unused", {"batch": 5, "input": "float.8"}), ("two", {})])
def test_training_learns_and_its_gradients_are_checked(models: Path, member: str, params: dict[str, Any]) -> None:
    step = prepare(f"{models}:{member}" if member else str(models), "train", **params)
    first = step.run()
    for _ in range(5):
        last = step.run()
    assert member == "" or last < first  # with dropout a few steps tell nothing
    check = check_step(step, "float32")
    assert check is not None
    assert step.metrics is not None
    assert set(step.metrics()) == {"loss"}


def test_one_weight_that_arrives_wrong_is_caught_in_any_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_model = Setting.place_model

    def spoil(setting: Setting, model: Any) -> Any:
        placed = place_model(setting, model)
        next(placed.parameters()).data.view(-1)[0] += 0.01
        return placed

    monkeypatch.setattr(Setting, "place_model", spoil)
    for mode in ("infer", "train"):
        with pytest.raises(WrongResultError):
            check_step(prepare(str(models), mode), "float32")


def test_wrong_numbers_are_caught_even_where_rows_depend_on_one_another(models: Path) -> None:
    from msgspec.structs import replace

    step = prepare(f"{models}:Together", batch=7, input="float.8")
    outputs = step.outputs
    assert outputs is not None
    assert outputs()[0].shape == (7, 8)  # all of them: two would not come out the same alone
    with pytest.raises(WrongResultError):
        check_step(replace(step, outputs=lambda: [outputs()[0] * 1.001]), "float32")


def test_what_cannot_be_checked_is_said(models: Path) -> None:
    drawn = prepare(f"{models}:Drawn", batch=5, input="float.8")
    assert check_step(drawn, "float32") is None
    assert drawn.notes["numbers"] == "not checked: the model draws at random"
    for mode in ("infer", "train"):
        short = prepare(f"{models}:Short", mode, batch=5, input="float.8")
        assert check_step(short, "float32") is not None
        assert short.notes["reference"].startswith("float32")
    words = prepare(f"{models}:Words", batch=5, input="float.8")
    with pytest.raises(UnsupportedError, match="no tensor of floating numbers"):
        check_step(words, "float32")


def test_a_loss_of_ones_own_is_what_is_learned(models: Path, tmp_path: Path) -> None:
    from torchmark.workloads.own.python import write_loss

    losses = tmp_path / "losses.py"
    losses.write_text("def half(answer):\n    return answer['rows'].sum() / 2\n")
    own, other = write_loss(f"{models}:loss"), write_loss(f"{losses}:half")
    assert own.startswith("some.py.loss.")
    for text in (own, other):
        step = prepare(f"{models}:by_name", "train", loss=text)
        step.run()
        assert check_step(step, "float32") is not None
    losses.write_text("def half(answer):\n    return answer['rows'].sum() / 3\n")
    workloads.forget()
    workloads.find_workload(str(models))
    write_loss(f"{losses}:half")
    with pytest.raises(UsageError, match="is not what it was"):
        prepare("some.py:by_name", "train", loss=other)


def test_work_is_counted(models: Path) -> None:
    step = prepare(f"{models}:Dense", batch=10, input="float.16", depth=3)
    assert (step.work.items, step.work.unit) == (10, "sample")
    assert step.work.flops == 2 * 10 * 16 * 16 * 3
    assert step.work.bytes == 4 * ((16 * 16 + 16) * 3 + 2 * 16 + 10 * 16 * 2)
    trained = prepare(f"{models}:Dense", "train", batch=10, input="float.16", depth=3)
    assert trained.work.flops == 2 * 10 * 16 * 16 * (3 + 3 + 2)  # no gradient for what goes in
    assert prepare(f"{models}:uneven").work.unit == "step"


def test_a_file_inside_a_package_may_import_its_neighbours(tmp_path: Path) -> None:
    inner = tmp_path / "brand" / "models"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (inner.parent / "layers.py").write_text("from torch import nn\nclass Layer(nn.Linear): pass\n")
    (inner / "net.py").write_text("from ..layers import Layer\ndef build():\n    return Layer(4, 2)\n")
    assert prepare(str(inner / "net.py"), batch=3, input="float.4").run().shape == (3, 2)
    alone = tmp_path / "alone.py"
    alone.write_text("import beside_alone\nbuild = beside_alone.build\n")
    (tmp_path / "beside_alone.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    assert prepare(f"{alone}:build", batch=3, input="float.4").run().shape == (3, 2)


def test_a_workload_in_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text()
    path = tmp_path / "rows.py"
    path.write_text(page.split("```python\n")[1].split("```")[0])
    workload = workloads.find_workload(str(path))
    assert (workload.name, workload.params().rows) == ("rows.py", 4096)
    assert workload.version > 1
    step = workload.prepare(workload.tiny, Setting(mode="infer"))
    assert check_step(step, "float32") is not None


def test_reading_a_file_imports_no_torch(models: Path, run_python: Callable[[str], str]) -> None:
    program = (
        "import sys; from torchmark.measure.cases import Sweep, expand\n"
        f"expand(Sweep([{str(models)!r}], modes=['train'], params={{'batch': ['1..8']}}))\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(program) == "False\n"


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[[str], str]:
    import subprocess
    import sys

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=dict(os.environ),
        )
        return done.stdout

    return run
