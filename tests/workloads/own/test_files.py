"""A user's Python file is a workload: named without its path, tied to its content, with its errors explained."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchmark import workloads
from torchmark.errors import TorchmarkError, UsageError
from torchmark.measure.cases import expand, list_parameters
from torchmark.measure.check import check_step
from torchmark.measure.outcomes import failure_of
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.own.files import known_files, serve_knowing

Prepare = Callable[..., Step]
MODELS = Path(__file__).with_name("some_models.txt").read_text()
IMPORT = "from torchmark.workloads.contract import Workload\n"


def test_a_file_becomes_a_workload_that_is_named_without_its_path(models: Path) -> None:
    workload = workloads.find_workload(f"{models}:Dense")
    assert workload.name == "some.py:Dense"
    assert workload.summary() == "Some models."
    assert workloads.find_workload("some.py:Dense") is workload  # known by its name from now on
    (case,) = expand([str(models)], params={"width": ["32"]})
    assert case.text == "some.py/infer:width=32@cpu/float32"
    assert expand([case.text]) == (case,)


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


def test_what_has_no_default_must_be_given(prepare: Prepare, models: Path) -> None:
    name = f"{models}:Sized"
    with pytest.raises(UsageError, match=r"needs a value for size\. Give it: -p size="):
        expand([name])
    step = prepare(name, size=8, ratio=0.5, batch=3, input="float.8")
    assert step.run().shape == (3, 4)


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("return Net()", True),
        ("return nn.Sequential(Net())", True),
        ("net = Net()\n    return net.eval()", True),
        ("return other()", True),
        ("return Net(), torch.randn(2, 3)", False),
        ("return both()", False),
        ("pair = Net(), torch.randn(2, 3)\n    return pair", False),
        ("net, rows = both()\n    return net, rows", False),
        ("return library.build()", False),
        ("def inner(): return Net()\n    return inner(), 1", False),
        ("return make()", False),
    ],
)
def test_a_function_without_an_example_input_is_refused_where_that_is_certain(
    tmp_path: Path, body: str, refused: bool
) -> None:
    source = "class Net: pass\ndef other(): return Net()\ndef both(): return Net(), 1\n"
    (tmp_path / "some.py").write_text(f"{source}def make():\n    {body}\n")
    name = f"{tmp_path / 'some.py'}:make"
    assert expand([name], params={"input": ["float.3"]})
    if not refused:
        assert expand([name])
        return
    with pytest.raises(UsageError, match="make needs --input"):
        expand([name])


@pytest.mark.parametrize(
    ("source", "member", "words"),
    [
        ("def make():\n  return (", "", "some.py, line 2: SyntaxError"),
        ("def make(): pass\ndef other(): pass", "", "Say which part to take: some.py:make, some.py:other"),
        ("x = 1", "", "Write a function 'build'"),
        ("def make(): pass", "mkae", "has no 'mkae'"),
        ("\0", "", "some.py: SyntaxError"),
        (f"{IMPORT}class A(Workload): pass\nclass B(Workload): pass", "", "several workloads"),
        (f"{IMPORT}class A(Workload): pass", "", "A of some.py has no tiny"),
        (f"import no_such\n{IMPORT}class A(Workload): pass", "", "some.py, line 1: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported_before_anything_is_measured(
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
        ("Dense", {}, "Dense needs --input, such as --input 'float32[8,3,224,224]'"),
        ("odd_input", {}, "the example input is a str"),
        ("uneven", {"batch": 5}, "the batch cannot be changed: the inputs are 3 and 4"),
    ],
)
def test_what_a_function_must_return_is_reported(
    prepare: Prepare, models: Path, member: str, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(f"{models}:{member}", **params)
    assert words in str(caught.value)


def test_an_error_in_the_users_code_is_reported_with_the_users_line(prepare: Prepare, models: Path) -> None:
    step = prepare(f"{models}:wrong")
    with pytest.raises(RuntimeError) as caught:
        step.run()
    line = 1 + MODELS[: MODELS.index("rows = torch.relu(layer(rows))")].count("\n")
    assert failure_of(caught.value, "steps").reason == f"RuntimeError during steps (some.py, line {line})"
    assert failure_of(ValueError("ours"), "steps").reason == "ValueError during steps"


def test_names_in_other_files_of_the_user_are_not_shared(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "bigbank.py").write_text("class MergerError(KeyError): pass\ndef fail(): raise MergerError('x')")
    (tmp_path / "plain.py").write_text("import bigbank\ndef build():\n    bigbank.fail()")
    with pytest.raises(KeyError) as caught:
        prepare(f"{tmp_path / 'plain.py'}:build")
    failure = failure_of(caught.value, "build")
    assert failure.reason == "KeyError during build (plain.py, line 3)"
    assert failure.detail == "bigbank.py, line 2: MergerError: 'x'"


def test_a_file_inside_a_package_may_import_its_neighbours(prepare: Prepare, tmp_path: Path) -> None:
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
    page = (Path(__file__).parents[3] / "docs" / "add-a-workload.md").read_text()
    path = tmp_path / "rows.py"
    path.write_text(page.split("```python\n")[-1].split("```")[0])
    workload = workloads.find_workload(str(path))
    assert (workload.name, workload.params().rows) == ("rows.py", 4096)
    assert workload.version > 1
    step = workload.prepare(workload.tiny, Setting(mode="infer"))
    assert check_step(step, "float32") is not None


def test_reading_a_file_imports_no_torch(models: Path, run_python: Callable[[str], str]) -> None:
    program = (
        "import sys; from torchmark.measure.cases import expand\n"
        f"expand([{str(models)!r}], {{'mode': ['train']}}, params={{'batch': ['1..8']}})\n"
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


def test_modules_next_to_a_file_are_its_own_and_hide_no_library(models: Path, run_python: Callable) -> None:
    folder = models.parent
    for name in ("secrets", "psutil", "colorsys"):  # two of the standard library, and one that torchmark needs
        (folder / f"{name}.py").write_text("raise RuntimeError('this is not meant for anybody else')\n")
    for name in ("click", "at_once", "later"):  # the first is the name of a library, which the file does not mean
        (folder / f"{name}.py").write_text("HERE = True\n")
    path = folder / "model.py"
    path.write_text("import at_once, click, colorsys\ndef build():\n    import later\n    return click.HERE\n")
    script = f"""
import importlib
from torchmark.workloads.own.files import find_file
from torchmark.workloads.own.files import import_member
build = import_member(find_file({str(path)!r}), 'build')
print(build(), importlib.import_module("secrets").token_hex, importlib.import_module("psutil").__version__)
"""
    assert run_python(script).startswith("True <function token_hex")
