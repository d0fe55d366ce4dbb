"""The pytest fixture times steps, keeps them as a run, fails on a regression, and costs nothing where it is unused."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchmark import cli
from torchmark.store import RunWriter, load
from torchmark.store.lines import Spread

TESTS = """
import pytest

@pytest.mark.parametrize("size", [8, 16])
def test_a_step(torchmark, size):
    result = torchmark(lambda: None, "fake", items=size, unit="row")
    assert result.estimate.center_s > 0
    torchmark(lambda: None, "fake", name="second")
"""

UNUSED = ("cacheprovider", "anyio", "hypothesispytest", "pytest_cov")  # plug-ins that take longer than the tests
HOSTILE = "\x1b]0;pwn\x07\x9b\u202e"  # OSC, C1 and bidi


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    (tmp_path / "test_speed.py").write_text(TESTS)
    return tmp_path


def start(folder: Path, *options: str, step: str = "0.01") -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own."""
    environment = os.environ | variables(step)
    command = [sys.executable, "-m", "pytest", *arguments(*options)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def run(folder: Path, *options: str, step: str = "0.01") -> subprocess.CompletedProcess[str]:
    """pytest in the process of this test, which costs no start of Python, without processes of pytest-xdist."""
    out, err, modules = io.StringIO(), io.StringIO(), set(sys.modules)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in variables(step).items():
            patch.setenv(name, value)
        code = int(pytest.main(["-n0", "-p", "no:faulthandler", "--import-mode=importlib", *arguments(*options)]))
    for name in {"test_speed", "more", "more.test_speed"} - modules:
        sys.modules.pop(name, None)
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


def variables(step: str) -> dict[str, str]:
    return {"TORCHMARK_FAKE": f"stream=iid2,step={step}", "COLUMNS": "80"}


def arguments(*options: str) -> list[str]:
    return ["-q", *(part for name in UNUSED for part in ("-p", f"no:{name}")), "test_speed.py", *options]


def assert_harmless(done: subprocess.CompletedProcess[str]) -> None:
    """No character that a terminal would obey was printed, and no traceback."""
    text = done.stdout + done.stderr
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text


def keep_with_spread(folder: Path, spread: float, name: str = "before.jsonl") -> None:
    """As a run of several processes would have left it."""
    with RunWriter.resume(folder / name) as writer:
        writer.write(Spread(spread))


def test_results_are_kept_as_a_run_under_the_names_of_the_tests(folder: Path) -> None:
    done = start(folder, "-n0")
    assert done.returncode == 0, done.stdout
    (path,) = (folder / "home").glob("*.jsonl")
    stored = load(path)
    texts = [result.case.text for result in stored.results]
    assert texts == [
        "test_speed.py:test_a_step-8/infer@fake/float32",
        "test_speed.py:test_a_step-8.second/infer@fake/float32",
        "test_speed.py:test_a_step-16/infer@fake/float32",
        "test_speed.py:test_a_step-16.second/infer@fake/float32",
    ]
    assert stored.header.label == "pytest"
    assert str(folder) not in path.read_text()
    assert cli.main(["check", str(path)]) == 0
    assert f"Saved as {stored.header.id}" in done.stdout
    assert "test_speed.py:test_a_step-8/infer" in done.stdout


def test_tests_of_the_same_name_are_not_mixed_up(folder: Path) -> None:
    one = "def test_a(torchmark): torchmark(lambda: None, 'fake')\n"
    (folder / "test_speed.py").write_text(
        f"{one}class TestX:\n    def test_a(self, torchmark): torchmark(print, 'fake')\n"
    )
    (folder / "more").mkdir()
    twice = "def test_a(torchmark):\n    for _ in range(2): torchmark(lambda: None, 'fake', name='same')\n"
    (folder / "more" / "test_speed.py").write_text(twice)
    done = run(folder, "more")
    assert done.returncode == 1
    assert "test_speed.py:test_a.same was timed already: give this step a name of its own" in done.stdout
    (path,) = (folder / "home").glob("*.jsonl")
    names = ["test_speed.py:test_a", "test_speed.py:TestX.test_a", "test_speed.py:test_a.same"]
    assert [result.case.workload for result in load(path).results] == names


def test_a_regression_fails_the_test_and_chance_does_not(folder: Path) -> None:
    assert run(folder, "--torchmark-out", "before.jsonl").returncode == 0
    keep_with_spread(folder, 0.02)
    against = ("--torchmark-against", "before.jsonl")
    done = run(folder, *against, step="0.0101")
    assert done.returncode == 0, done.stdout
    assert ", PASS" in done.stdout
    done = run(folder, *against, step="0.02")
    assert done.returncode == 1
    assert "FAIL: slower by more than 10%" in done.stdout
    assert "as fast (0.4" in done.stdout
    wrong = run(folder, "--torchmark-fail-if-slower", "much")
    assert wrong.returncode == 4
    assert "is not a share" in wrong.stderr
    assert_harmless(run(folder, "--torchmark-fail-if-slower", HOSTILE))


def test_a_difference_that_cannot_be_seen_fails_the_test_unless_allowed(folder: Path) -> None:
    assert run(folder, "--torchmark-out", "before.jsonl").returncode == 0
    keep_with_spread(folder, 0.05)
    against = ("--torchmark-against", "before.jsonl")
    done = run(folder, *against)
    assert done.returncode == 1
    assert "INCONCLUSIVE: a slowdown of 10% would not be visible" in done.stdout
    assert re.search(r"--torchmark-fail-if-slower \d+% can be decided by this data", done.stdout)
    assert run(folder, *against, "--torchmark-allow-inconclusive").returncode == 0


def test_the_first_run_becomes_the_baseline(folder: Path) -> None:
    for against in ((), ("--torchmark-against", "last"), ("--torchmark-against", "pytest")):
        done = run(folder, *against)
        assert done.returncode == 0, done.stdout
        assert "No baseline yet; this run becomes it: pytest --torchmark-against" in done.stdout
        (path,) = (folder / "home").glob("*.jsonl")
        path.unlink()


def test_a_new_test_has_no_baseline_yet(folder: Path) -> None:
    assert run(folder, "-k", "8", "--torchmark-out", "before.jsonl").returncode == 0
    keep_with_spread(folder, 0.01)
    done = run(folder, "--torchmark-against", "before.jsonl")
    assert done.returncode == 0, done.stdout
    assert "test_a_step-16/infer@fake/float32: no baseline yet; this run becomes it" in done.stdout


@pytest.mark.parametrize("against", ["nosuch.jsonl", "nosuch", "3090"])
def test_a_baseline_that_is_not_there_is_a_usage_error(folder: Path, against: str) -> None:
    done = run(folder, "--torchmark-against", against)
    assert done.returncode == 4
    assert "ERROR: --torchmark-against: " in done.stderr
    assert against in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_processes_of_xdist_end_up_in_one_run(folder: Path) -> None:
    done = start(folder, "-n2")
    assert done.returncode == 0, done.stdout
    (path,) = (folder / "home").glob("*.jsonl")
    assert len(load(path).results) == 4


def test_paths_are_printed_without_control_characters(folder: Path) -> None:
    name = f"before{HOSTILE}.jsonl"
    done = run(folder, "-k", "8", "--torchmark-out", name)
    assert done.returncode == 0
    assert_harmless(done)
    assert "pytest --torchmark-against before]0;pwn.jsonl\n" in done.stdout
    assert "torchmark show before]0;pwn.jsonl\n" in done.stdout
    keep_with_spread(folder, 0.02, name)
    done = start(folder, "-n2", "-k", "8", "--torchmark-against", name, step="0.02")
    assert done.returncode == 1
    assert_harmless(done)
    assert "Against before]0;pwn.jsonl:" in done.stdout
    assert ", slower against before]0;pwn.jsonl\n" in done.stdout


def test_labels_of_strangers_are_printed_without_control_characters(folder: Path) -> None:
    assert run(folder, "-k", "8").returncode == 0
    (path,) = (folder / "home").glob("*.jsonl")
    label = '"label":"pytest'
    path.write_text(path.read_text().replace(label, label + r"\u001b]0;pwn\u0007\u202e\n\u009b"))
    done = run(folder, "--torchmark-against", "pytest]0;pwn\x1b")
    assert done.returncode == 4
    assert_harmless(done)
    assert re.search(r"unknown run 'pytest]0;pwn'. Did you mean 'pytest]0;pwn ?'\?$", done.stderr, re.MULTILINE)


def test_messages_of_a_model_file_are_printed_without_control_characters(folder: Path) -> None:
    (folder / "bad.py").write_text(f"def build():\n    raise ValueError({HOSTILE!r})\ndef inputs(): return ()\n")
    (folder / "test_speed.py").write_text("def test_it(torchmark): torchmark.check('bad.py')\n")
    done = run(folder)
    assert done.returncode == 1
    assert_harmless(done)
    assert "ValueError during check (bad.py, line 2): ]0;pwn" in done.stdout
    assert "checking.py" not in done.stdout


@pytest.mark.parametrize("label", ["a\udcffb", "a/b", "last", "", HOSTILE])
def test_a_label_that_finds_no_run_is_a_usage_error(folder: Path, label: str) -> None:
    done = run(folder, f"--torchmark-label={label}")
    assert done.returncode == 4
    assert "ERROR: --torchmark-label: '" in done.stderr
    assert_harmless(done)


@pytest.mark.parametrize("out", ["test_speed.py", "test_speed.py/x.jsonl", "/proc/x/y.jsonl"])
def test_a_file_that_cannot_be_written_is_a_usage_error(folder: Path, out: str) -> None:
    done = run(folder, "--torchmark-out", out)
    assert done.returncode == 4
    assert f"ERROR: --torchmark-out: cannot write {out}: " in done.stderr
    assert_harmless(done)


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_run_that_cannot_be_saved_is_shown_and_fails_the_session(folder: Path, processes: str) -> None:
    (folder / "home").write_text("not a folder")
    done = start(folder, processes)
    assert done.returncode == 1
    assert "2 passed" in done.stdout
    assert "test_speed.py:test_a_step-8/infer" in done.stdout
    assert "The run was not saved: cannot write " in done.stdout
    assert "Saved as" not in done.stdout
    assert_harmless(done)


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_damaged_baseline_is_a_usage_error(folder: Path, processes: str) -> None:
    (folder / "before.jsonl").write_text("damaged\n")
    done = start(folder, processes, "--torchmark-against", "before.jsonl")
    assert done.returncode == 4
    assert re.fullmatch(r"ERROR: --torchmark-against: before.jsonl is not a run file: .*\n+", done.stderr)
    assert_harmless(done)


def test_parameters_that_look_like_paths_are_stored_as_hashes(folder: Path) -> None:
    (folder / "test_speed.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('w', ['clients/bigbank.pt', '/home/jane/secret.pt', 'C:\\\\jane.pt', 'plain.pt'])\n"
        "def test_x(torchmark, w): torchmark(lambda: None, 'fake')\n"
    )
    names = []
    for processes, out in (("-n0", "a.jsonl"), ("-n2", "b.jsonl")):
        assert start(folder, processes, "--torchmark-out", out).returncode == 0
        assert not re.search("bigbank|jane|clients|secret", (folder / out).read_text())
        names.append({result.case.workload for result in load(folder / out).results})
    assert names[0] == names[1]
    assert len(names[0]) == 4
    assert "test_speed.py:test_x-plain.pt" in names[0]
    assert sum(bool(re.fullmatch(r"test_speed\.py:test_x-[0-9a-f]{8}", name)) for name in names[0]) == 3


def test_it_costs_nothing_where_it_is_not_used(folder: Path) -> None:
    (folder / "test_speed.py").write_text(
        "import sys\nSLOW = {'torch', 'numpy', 'msgspec', 'rich', 'torchmark.measure'}\n"
        "def test_nothing():\n    assert 'torchmark.testing' in sys.modules\n    assert not SLOW & set(sys.modules)\n"
    )
    done = start(folder, "-n0")
    assert done.returncode == 0, done.stdout
    assert not (folder / "home").exists()
