"""`torchmark run my_model.py`: real runs of a user's own model, whose files do not contain its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_torchmark

from torchmark import cli, workloads
from torchmark.store import RunWriter, keep_origin, load, new_path

COMMAND = [sys.executable, "-m", "torchmark"]
MODEL = '''"""A small model."""
import torch
from torch import nn


def build(batch: int = 8, width: int = 16):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)), torch.randn(batch, width)


def broken():
    return nn.Linear(3, 3), torch.randn(2, 4)


def late():
    raise ValueError("not today")
'''


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Path:
    """A folder with a model."""
    folder = tmp_path / "secret place"
    folder.mkdir()
    (folder / "my_model.py").write_text(MODEL)
    return folder


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    workloads.forget()
    return run_torchmark(*arguments, folder=folder)


def test_a_model_is_measured_in_every_way_and_its_file_reports_no_path(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    cases = ["my_model.py/infer:batch=4@cpu/float32+per-step", "my_model.py/train@cpu/float32+threads=1+workers=2"]
    done = run("run", *cases, "--steps", "3", "--out", str(out), folder=place)
    assert done.returncode == 0, done.stderr
    stored = load(out)
    assert [result.case.text for result in stored.results] == cases
    assert {result.status for result in stored.results} == {"ok"}
    assert all(result.numeric and result.work and result.work.flops for result in stored.results)
    assert [result.work and result.work.items for result in stored.results] == [4, 16]
    assert "secret" not in out.read_text()
    assert run("check", str(out)).returncode == 0


def test_errors_show_the_users_line_and_nothing_of_ours(place: Path) -> None:
    done = run("run", "my_model.py:broken", "my_model.py:late", "--steps", "3", "--device", "cpu", folder=place)
    assert done.returncode == 3
    reported = " ".join(done.stdout.split())
    assert "ValueError during build (my_model.py, line 15) not today" in reported
    assert "mat1 and mat2 shapes cannot be multiplied" in reported
    assert "Traceback" not in done.stdout + done.stderr


def test_a_model_that_needs_an_input_is_refused_before_anything_is_measured(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "unet.py").write_text(MODEL + "class TinyUNet(nn.Module):\n    pass\n")
    assert cli.main(["run", "unet.py:TinyUNet", "--device", "cpu"]) == 2
    assert "TinyUNet needs --input, such as --input 'float32[8,3,224,224]'" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_a_run_goes_on_only_with_the_same_file(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake device needs no torch, so that the model is never built."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.01")
    out = tmp_path / "run.jsonl"
    (place / "my_model.py").write_text((Path(cli.__file__).parents[1] / "workloads" / "null.py").read_text())
    begun = ["run", "my_model.py", "--device", "fake", "--out", str(out), "--budget", "20s"]
    assert run(*begun, folder=place).returncode == 0
    lines = out.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"started"' in line)
    out.write_text("\n".join(lines[:last]) + "\n")
    resume = ["run", "--resume", str(out), "--dry-run"]
    assert run(*resume, folder=place).returncode == 0
    assert run(*resume, folder=tmp_path).returncode == 0  # the file is found where it was
    with (place / "my_model.py").open("a") as file:
        file.write("# changed\n")
    done = run(*resume, folder=place)
    assert (done.returncode, "has changed since" in done.stderr) == (2, True)
    done = run("run", "my_model.py", "--resume", str(out), "--dry-run", folder=tmp_path)
    assert (done.returncode, "go to its folder" in done.stderr) == (2, True)


def test_no_file_is_run_because_a_strangers_run_names_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, make_header
) -> None:
    monkeypatch.chdir(place)
    (place / "x.py").write_text("from pathlib import Path\nPath('ran').touch()\n" + MODEL)
    cases = ("x.py/infer@cpu/float32", "x.py:build/train:loss=my_model.py.build.01234567@cpu/float32")
    with RunWriter.create("stranger.jsonl", make_header(cases)):
        pass
    resume = ["run", "--resume", "stranger.jsonl"]
    assert cli.main(resume) == 2
    reported = capsys.readouterr().err
    assert "this run measures x.py, my_model.py, and nothing is run because a run file names it" in reported
    assert "torchmark run x.py my_model.py --resume stranger.jsonl" in reported
    assert cli.main([*resume, "x.py"]) == 2
    assert "this run measures my_model.py" in capsys.readouterr().err
    assert cli.main([*resume, "mlp"]) == 2
    assert "which cannot be changed" in capsys.readouterr().err
    assert not (place / "ran").exists()
    assert cli.main([*resume, "x.py", "my_model.py", "--dry-run"]) == 2
    assert "my_model.py is not what it was" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2), ("", 2)])
def test_a_person_at_a_terminal_is_asked(place: Path, make_header, answer: str, code: int) -> None:
    with RunWriter.create(place / "stranger.jsonl", make_header(("my_model.py/infer@cpu/float32",))):
        pass
    ours, theirs = os.openpty()
    command = [*COMMAND, "run", "--resume", "stranger.jsonl", "--dry-run"]
    with subprocess.Popen(command, cwd=place, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE) as process:
        os.write(ours, f"{answer}\n".encode())
        shown, _ = process.communicate(timeout=60)
    asked = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert str(place / "my_model.py") in asked
    assert process.returncode == code
    assert (b"my_model.py/infer" in shown) == (code == 0)


def test_a_run_that_the_user_started_goes_on_by_itself(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, make_header
) -> None:
    monkeypatch.chdir(place)
    header = make_header(("my_model.py/infer@cpu/float32",))
    for path in (new_path(header), place / "elsewhere.jsonl"):
        with RunWriter.create(path, header):
            pass
    assert cli.main(["run", "--resume", "last", "--dry-run"]) == 2  # a folder of runs may be shared
    keep_origin(header.id, {"my_model.py": place / "my_model.py"})
    assert cli.main(["run", "--resume", "last", "--dry-run"]) == 0
    note = new_path(header).parent / "origins" / header.id
    note.chmod(0o666)
    workloads.forget()
    assert cli.main(["run", "--resume", "elsewhere.jsonl", "--dry-run"]) == 2  # anybody may have written the note
    assert cli.main(["run", "--resume", "elsewhere.jsonl", "my_model.py", "--dry-run"]) == 0
    assert cli.main(["run", "--resume", "elsewhere.jsonl", str(place / "my_model.py:build"), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("my_model.py/infer@cpu/float32") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--input float32[8,3]", "describe a model of your own"),
        ("my_model.py --input float[8", "'float[8' is not an input"),
        ("my_model.py --loss nothing", "names no function"),
        ("my_model.py --input float32[3] --input float32[4] -p batch=3", "do not begin with the same size"),
        ("my_model.py --task features", "unknown parameter of my_model.py 'task'"),
        ("none.py", "cannot read"),
        ("my_model.py:biuld", "has no 'biuld'"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    monkeypatch.chdir(place)
    assert cli.main(["run", *arguments.split(), "--device", "fake"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_inputs_become_parameters_whose_rows_can_be_swept(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    base = ["run", "my_model.py:broken", "--input", "float32[8,3]", "--dry-run", "--device", "fake"]
    assert cli.main(base) == 0
    assert "my_model.py:broken/infer:batch=8,input=float.3@fake/float32\n" in capsys.readouterr().out
    assert cli.main([*base, "-p", "batch=1,2"]) == 0
    assert "batch=2,input=float.3@" in capsys.readouterr().out
    assert cli.main(["list", "my_model.py", "--format", "json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["workloads"]
    assert (facts["name"], facts["summary"]) == ("my_model.py", "A small model.")


def test_both_sides_of_a_live_comparison_find_it(place: Path) -> None:
    """A workload that needs no torch, so that the fake device can play both sides."""
    (place / "my_model.py").write_text((Path(cli.__file__).parents[1] / "workloads" / "null.py").read_text())
    arguments = ("my_model.py", "--env-b", "TORCHMARK_FAKE=stream=iid2,step=0.03", "--device", "fake", "--budget", "1s")
    done = run("ab", *arguments, folder=place)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "my_model.py/infer" in done.stdout


def test_what_new_writes_runs_and_passes_its_own_test(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert cli.main(["new", "first-try"]) == 0
    assert "torchmark run first_try.py" in capsys.readouterr().out
    assert cli.main(["new", "first-try"]) == 2
    for taken in ("2 words", "torch", "class"):
        assert cli.main(["new", taken]) == 2
        assert not (place / f"{taken}.py").exists()
    assert cli.main(["new", "second-try", "--workload"]) == 0
    for file in ("first_try.py", "second_try.py"):
        assert cli.main(["list", file]) == 0
        assert "for `torchmark list`" in capsys.readouterr().out
    (place / "test_broken.py").write_text("def test_it(torchmark):\n    torchmark.check('my_model.py:broken')\n")
    tested = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "-n0",
        "--import-mode=importlib",
    ]
    tested += ["first_try.py", "second_try.py", "test_broken.py"]
    done = subprocess.run(tested, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert "2 passed" in done.stdout, done.stdout
    assert "mat1 and mat2 shapes cannot be multiplied" in done.stdout
    assert "direct cause" not in done.stdout
