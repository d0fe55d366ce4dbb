"""`torchmark ab` from the command line to its answer: two sides as people name them, with real processes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import psutil
import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.store import find_run, load, scan_runs

COMMAND = [sys.executable, "-m", "torchmark", "ab"]
FAST, SLOW = "step=0.01", "step=0.0105,seed=1"


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", FAST)


def ab(*arguments: str, device: str = "fake") -> subprocess.CompletedProcess[str]:
    return run_torchmark("ab", *arguments, "--device", device)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "no case is named"),
        ("nul", "unknown workload 'nul'. Did you mean 'null'?"),
        ("null null null", "CASE is given 3 times"),
        ("null --python PYTHON", "--python is given once, for both sides. Give it twice"),
        ("null --settings NOWHERE", "--settings is given once"),
        ("null --python nowhere/python --python PYTHON", "no Python interpreter 'nowhere/python'"),
        ("null --settings NOWHERE --settings NOWHERE", "cannot read NOWHERE: No such file"),
        ("null --env-a OMP_NUM_THREADS", "'OMP_NUM_THREADS' sets nothing. Write NAME=VALUE"),
        ("null --device fake,fake:1", "one device"),
        ("mlp/infer:batch=2@fake/float32 mlp/infer@fake/float32", "different work"),
        ("mlp/infer@fake/float32 mlp/train@fake/float32", "different work"),
        ("mnist-ddp-mlp/train@cpu/float32+workers=2", "takes 2 workers"),
        ("null --fail-if-slower much", "is not a share"),
    ],
)
def test_mistakes_are_reported_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    given = arguments.replace("PYTHON", sys.executable).split()
    code = cli.main(["ab", *given, *([] if "--device" in given else ["--device", "fake"])])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[case]\nbatch = 3", "unknown field `batch`"),
        ("[case]\nthreads = 'two'", "Expected `int | null`, got `str` - at `$.case.threads`"),
        ("[environment]\nX = [1]", "at `$.environment[...]`"),
        ("[environment\n", "is not TOML"),
        ("threads = 2", "unknown field `threads`"),
    ],
)
def test_a_settings_file_with_a_mistake_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "one.toml"
    file.write_text(text)
    assert cli.main(["ab", "null", "--device", "fake", *["--settings", str(file)] * 2]) == 2
    assert words in capsys.readouterr().err


def test_settings_files_change_the_environment_and_how_the_case_is_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("")
    two.write_text('[environment]\nOMP_NUM_THREADS = 1\nX = "a b"\n[case]\ncompile = true\nthreads = 1\n')
    arguments = ["ab", "mlp/infer@fake/float32", "--settings", str(one), "--settings", str(two), "--env-b", "X=c"]
    assert cli.main([*arguments, "--dry-run"]) == 0
    a, b = capsys.readouterr().out.splitlines()
    assert a == f"A: mlp/infer@fake/float32 by {sys.executable}"
    assert b == f"B: mlp/infer@fake/float32+compile+threads=1 by {sys.executable} OMP_NUM_THREADS=1 X=c"


def test_a_slower_side_is_found_kept_and_fails_the_check() -> None:
    done = ab("null", "--env-b", f"TORCHMARK_FAKE={SLOW}", "--fail-if-slower", "2%", "--label", "mine")
    assert done.returncode == 1, done.stderr
    assert "slower." in done.stdout
    assert "B is 0.9" in done.stdout
    assert "× as fast as A" in done.stdout
    assert "FAIL: B is slower than A by more than 2.0%" in done.stderr
    assert f"TORCHMARK_FAKE  -  {SLOW}" in done.stdout
    assert "pair 5: B is 0.9" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    a, b = (load(find_run(f"mine-{side}")) for side in "ab")
    assert (len(a.results[0].processes), len(b.results[0].processes)) == (5, 5)
    assert b.results[0].estimate is not None
    assert b.results[0].estimate.center_s == pytest.approx(0.0105, rel=0.01)
    assert all(each.samples_s for each in load(find_run("mine-b"), samples=True).results[0].processes)
    assert find_run("last") == find_run("mine-b")
    assert sys.executable not in b.header.command


def test_the_same_sides_are_not_different_in_any_format() -> None:
    done = ab("null", "--format", "json", "--fail-if-slower", "2%")
    assert done.returncode == 0, done.stderr
    assert "PASS: nothing is slower by more than 2.0%; differences under" in done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["stopped"], len(found["ratios"])) == ("same", "clear", 5)
    assert found["low"] <= 1 <= found["high"]
    assert found["a"]["result"]["status"] == "ok"


def test_what_is_passed_on_has_no_paths_and_only_known_variables_of_the_environment() -> None:
    secrets = ("ARCHITECTURE=hunter", "PLUGIN=bigbank 1", "OMP_NUM_THREADS=3")
    given = ["null", "--budget", "1s", "--env-a", "BIGBANK_MERGER_TOKEN=1"]
    given += [text for secret in secrets for text in ("--env-b", secret)]
    for form in ("json", "md", "csv"):
        shared = ab(*given, "--format", form).stdout.replace("\\", "").lower()
        private = ("bigbank", "merger", "hunter", "architecture", "plugin", sys.executable)
        assert [text for text in private if text in shared] == []
        assert form == "csv" or all(text in shared for text in ("omp_num_threads", "a variable"))
    table = ab(*given).stdout
    assert all(text in table for text in ("BIGBANK_MERGER_TOKEN", "hunter", "bigbank 1"))


def test_short_of_time_it_says_so_and_what_it_has() -> None:
    done = ab("null", "--budget", "100ms", "--format", "csv")
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["verdict"], row["stopped"], row["pairs"], row["low"]) == ("unsure", "budget", "1", "")
    assert float(row["ratio"]) > 0


@pytest.mark.parametrize(("more", "code"), [([], 5), (["--allow-inconclusive"], 0)])
def test_a_gate_that_cannot_see_does_not_pass(more: list[str], code: int) -> None:
    done = ab("null", "--budget", "100ms", "--fail-if-slower", "5%", *more)
    assert done.returncode == code, done.stderr
    assert "INCONCLUSIVE: a slowdown of 5.0% would not be visible; no interval is known" in done.stderr
    assert "no limit can be decided by this data" in done.stderr


@pytest.mark.parametrize(("side", "code"), [("a", 3), ("b", 1)])
def test_a_side_that_fails_is_an_answer(side: str, code: int) -> None:
    script = "TORCHMARK_FAKE=fault=oom,after=0"
    done = ab("null", f"--env-{side}", script, "--fail-if-slower", "5%")
    assert done.returncode == code, done.stderr
    assert f"No answer: {side.upper()} failed." in done.stdout
    assert f"oom  {side.upper()}: " in done.stdout
    assert "MemoryError: the fake device was asked to run out of memory" in done.stdout
    assert [*scan_runs()] == []


def test_an_interrupt_ends_both_sides_and_prints_what_there_is() -> None:
    process = subprocess.Popen(
        [*COMMAND, "null", "--device", "fake", "--target", "0.01%", "--env-b", "TORCHMARK_FAKE=step=0.01,seed=1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while "pair 2" not in process.stderr.readline():
        assert process.poll() is None
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "It was interrupted." in " ".join(out.split())
    assert "Traceback" not in err
    assert len([*scan_runs()]) == 2
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the lock of Windows is another")
def test_it_takes_the_lock_of_the_machine(tmp_path: Path) -> None:
    from torchmark.store import machine_lock

    with machine_lock(path=tmp_path / "lock"):
        done = ab("null")
    assert done.returncode == 4
    assert "another run is measuring" in done.stderr


def test_wrong_numbers_on_one_side_are_an_answer() -> None:
    done = ab("mlp/infer:batch=2@fake/float32", "--env-b", "TORCHMARK_FAKE=fault=scaled", "--format", "csv")
    assert done.returncode == 3, done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["status_b"], row["verdict"], row["ratio"]) == ("wrong-result", "unsure", "")


def test_another_environment_of_this_machine_takes_part_with_its_own_torch(tmp_path: Path) -> None:
    """A real second interpreter and a real workload: torchmark itself is not installed in it, torch is lent to it."""
    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other" / "bin" / "python"
    ours = next(path for path in sys.path if (Path(path) / "torch").is_dir())
    folder = subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    (Path(folder) / "torch_of_others.pth").write_text(ours)
    began = time.monotonic()
    done = ab(
        "mlp/infer:batch=2@cpu/float32+threads=1", "--python", sys.executable, "--python", str(tmp_path / "other"),
        "--budget", "1s", "--format", "json", device="cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 600
    found = json.loads(done.stdout)
    for side in (found["a"], found["b"]):
        assert side["result"]["status"] == "ok"
        assert side["result"]["numeric"]["error"] <= side["result"]["numeric"]["tolerance"]
        assert side["machine"]["torch"] == found["a"]["machine"]["torch"]
        assert side["result"]["settings"]["threads"] == 1
