"""Where runs are kept, and how a person finds one again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchmark.errors import StoreError, UnknownName, UsageError
from torchmark.store import RunWriter, check_label, find_run, home, load_runs, new_path, scan_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_header) -> dict[str, Path]:
    """Four runs, the youngest written first, two of them with the same label."""
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    paths = {}
    for name, second, label in (
        ("ab12", 9, "nightly"),
        ("ab34", 3, "nightly"),
        ("cd56", 5, "quiet"),
        ("ef78", 1, None),
    ):
        header = make_header(id=name, created=f"2026-11-15T10:00:0{second}Z", label=label)
        paths[name] = new_path(header)
        RunWriter.create(paths[name], header).close()
    return paths


@pytest.mark.usefixtures("runs")
def test_runs_are_found_by_when_they_were_written_and_a_broken_one_hides_nothing() -> None:
    (home() / "broken.jsonl").write_bytes(b"nonsense")
    listed = [*scan_runs()]
    assert {run.header.id for run in listed if run.header} == {"ab12", "cd56", "ab34", "ef78"}
    assert [run.path.name for run in listed if run.problem] == ["broken.jsonl"]
    assert listed[0].problem


@pytest.mark.parametrize(
    ("text", "name"),
    [("last", "ab12"), ("last~0", "ab12"), ("last~2", "ab34"), ("quiet", "cd56"), ("cd", "cd56"), ("ef78", "ef78")],
)
def test_a_run_is_found_by(runs: dict[str, Path], text: str, name: str) -> None:
    assert find_run(text) == runs[name]


def test_an_existing_path_comes_first(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("last").write_bytes(b"")
    assert find_run("last") == Path("last")
    assert find_run(str(runs["ef78"])) == runs["ef78"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nightly", "names 2 runs: ab12 .*, ab34"),
        ("ab", "names 2 runs"),
        ("quite", "Did you mean 'quiet'"),
        ("lst", "Did you mean 'last'"),
        ("last~9", "The oldest is last~3"),
        ("missing.jsonl", "no file"),
        ("", "unknown run"),
        ("x" * 5000, "unknown run"),
        ("a\0b", "unknown run"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_what_names_no_run_or_several_is_an_error_that_helps(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_run(text)


def test_without_runs_the_cure_is_to_measure_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "nowhere"))
    assert [*scan_runs()] == []
    with pytest.raises(UsageError, match="torchmark run"):
        find_run("last")


@pytest.mark.skipif(sys.platform != "linux", reason="the folder is another on other systems")
def test_the_home_is_where_the_platform_keeps_user_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHMARK_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert home() == tmp_path / ".local/share/torchmark"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert home() == tmp_path / ".local/share/torchmark"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "data/torchmark"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become a user without a home")
def test_a_user_without_a_home_still_has_a_place() -> None:
    program = "import os; os.setuid(54321); from torchmark.store import home; print(home())"
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "TORCHMARK_HOME")}
    environment.pop("XDG_DATA_HOME", None)
    # Imported before the change of user: the interpreter's own folders may be closed to others.
    program = "import torchmark.store; " + program
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.strip().endswith("torchmark-54321")
    folder = Path(done.stdout.strip())
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(mode=0o777), lambda path: path.symlink_to(path.parent)])
def test_a_place_that_others_can_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make) -> None:
    for name in ("TORCHMARK_HOME", "HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make(tmp_path / f"torchmark-{os.geteuid()}")
    (tmp_path / f"torchmark-{os.geteuid()}").chmod(0o777)
    with pytest.raises(StoreError, match="open to other users"):
        home()


@pytest.mark.parametrize("label", ["\udcff", "a\x1b[31mb", " ", "-x"])
def test_what_no_terminal_can_show_is_no_label(label: str) -> None:
    with pytest.raises(UsageError, match="is not a label"):
        check_label(label)


def test_each_valid_name_is_listed_once() -> None:
    assert str(UnknownName("run", "zzz", ["nightly", "last", "nightly"])) == "unknown run 'zzz'. Valid: last, nightly"


@pytest.mark.parametrize("text", ["last", "ab12", "ab"])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"machine":{', b'"machine":7,"m":{', r"line 1: .*\$\.header\.machine"),
        (b'{"kind"', b'{"kind', "is not a run file"),
        (b'"schema":2', b'"schema":99', "Upgrade"),
    ],
)
def test_a_run_with_a_damaged_header_is_reported(
    runs: dict[str, Path], text: str, old: bytes, new: bytes, words
) -> None:
    damaged = runs.pop("ab12")
    runs["ab34"].unlink()
    damaged.write_bytes(damaged.read_bytes().replace(old, new, 1))
    for name in (text, str(damaged)):
        with pytest.raises(StoreError, match=words) as caught:
            load_runs(name)
        assert damaged.name in caught.value.cause
    assert find_run("last~1") == runs["cd56"]
