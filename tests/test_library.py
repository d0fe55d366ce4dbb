"""`run`, `tune` and `fit` from a script do what the commands do, and leave the script itself alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import torchmark
from torchmark import library
from torchmark.errors import LockedError, StoreError, UsageError
from torchmark.records import Remark
from torchmark.store import find_run, load, machine_lock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    return tmp_path


def test_a_run_is_returned_and_stored_with_the_others() -> None:
    run = torchmark.run("null", device="fake", steps=5, rigor="quick", label="from-python")
    assert [(each.case.text, each.status) for each in run.results] == [("null/infer@fake/float32", "ok")]
    assert run.ended
    assert load(find_run("from-python")) == run


def test_parameters_are_swept_and_cases_taken_as_they_are(home: Path) -> None:
    swept = torchmark.run("mlp", device="fake", params={"batch": [1, 2], "outputs": 3}, steps=2, rigor="quick")
    assert [each.case.params for each in swept.results] == [{"batch": 1, "outputs": 3}, {"batch": 2, "outputs": 3}]
    named = torchmark.run("null/infer@fake/float32", steps=2, rigor="quick", out=home / "named.jsonl")
    assert load(home / "named.jsonl") == named


def test_fit_and_tune_conclude() -> None:
    assert torchmark.tune("null", device="fake", keep=["dtype"], budget_s=5).tuning is not None
    fitted = torchmark.fit("mlp", device="cpu", most=1, budget_s=1).fitting
    assert fitted is not None
    assert fitted.largest == 1


def test_mistakes_are_errors_before_anything_is_measured(home: Path) -> None:
    (home / "there.jsonl").touch()
    with pytest.raises(StoreError, match="File exists"):
        torchmark.run("null", device="fake", out=home / "there.jsonl")
    with pytest.raises(UsageError, match="batch"):
        torchmark.run("mlp", device="fake", params={"batch": 0})
    with pytest.raises(UsageError, match="need a workload"):
        torchmark.run(mode="train")
    with pytest.raises(UsageError, match="2 cases"):
        torchmark.fit("mlp", params={"outputs": [2, 3]}, device="fake")
    with machine_lock(), pytest.raises(LockedError):
        torchmark.run("null", device="fake")


def test_a_script_without_a_main_guard_runs_once(home: Path) -> None:
    script = home / "script.py"
    script.write_text(
        "import torchmark\nprint('once')\nrun = torchmark.run('mlp', device='cpu', tiny=True, steps=3, rigor='quick')\n"
        "import __main__\nprint(run.results[0].status, hasattr(__main__, 'run'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["once", "ok True"]


def test_advice_about_the_machine_points_at_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    look, advice = library.look_around, Remark("clock", "It is slow", "Wait")
    monkeypatch.setattr(library, "look_around", lambda *given: (look(*given)[0], [advice]))
    with pytest.warns(UserWarning, match=r"It is slow\. Wait") as seen:
        _ = (
            torchmark.run("null", device="fake", steps=2, rigor="quick"),
            torchmark.tune("null", device="fake", keep=["dtype"], budget_s=1),
            torchmark.fit("mlp", device="cpu", most=1, budget_s=1),
        )
    assert [each.filename for each in seen] == [__file__] * 3
