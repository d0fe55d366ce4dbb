"""A disk that is full, read-only or broken is one line with its cure, and what is on it already stays whole."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from torchmark.store import load

CASES = [f"null/infer@fake/float32+threads={number}" for number in (1, 2, 3)]


def one_error(done, words: str) -> None:
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("torchmark: error: ")]
    assert words in line


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=20m,ro", "Read-only file system"),
        ("size=1m", "MiB are free"),
        ("size=20m,nr_inodes=1", "No space"),
    ],
)
def test_a_bad_place_is_told_before_anything_is_measured(run, own_mounts, disk, options, words):
    prefix = own_mounts(f"mount -t tmpfs -o {options} none {disk}")
    one_error(run("run", CASES[0], "--steps", "3", "--out", str(disk / "run.jsonl"), prefix=prefix), words)


def test_a_disk_that_fills_up_costs_the_case_under_way_and_no_other(run, own_mounts, disk, tmp_path):
    # Somebody else fills the disk when the second case has started; when the run has ended, there is room again.
    out = disk / "run.jsonl"
    prefix = own_mounts(
        f"""mount -t tmpfs -o size=20m none {disk}
        (until grep -qs 'started","case":"{CASES[1]}' {out}; do sleep 0.01; done
         cat /dev/zero > {disk}/fill 2> /dev/null || true) &""",
        f"""cp {out} {tmp_path}/first.jsonl
        rm {disk}/fill
        {sys.executable} -m torchmark run --resume {out} &> /dev/null
        cp {out} {tmp_path}/second.jsonl""",
    )
    done = run("run", *CASES, "--steps", "60", "--out", str(out), prefix=prefix)
    one_error(done, "No space left on device")
    assert f"--resume {out}" in done.stderr
    assert "null/infer" in done.stdout  # what there is is shown
    first = load(tmp_path / "first.jsonl")
    assert [result.status for result in first.results] == ["ok", "interrupted"]
    second = load(tmp_path / "second.jsonl")
    assert [result.status for result in second.results] == ["ok", "ok", "ok"]
    assert second.results[0] == first.results[0]


# One run makes these calls in order: the trial file, the header, its folder, and then three for each case.
@pytest.mark.skipif(not shutil.which("strace"), reason="strace makes the calls fail")
@pytest.mark.parametrize(
    ("injected", "code", "kept"),
    [
        ("error=EIO:when=2", 4, None),
        ("error=EIO:when=6", 4, ["interrupted"]),
        ("error=ENOSPC:when=8", 4, ["ok", "interrupted"]),
        ("signal=SIGKILL:when=5", -9, ["interrupted"]),
        ("signal=SIGKILL:when=7", -9, ["ok", "interrupted"]),
    ],
)
def test_a_store_call_that_fails_or_is_the_last_tears_nothing(run, tmp_path, left_behind, injected, code, kept):
    out = tmp_path / "run.jsonl"
    prefix = ("strace", "-o", "/dev/null", "-e", "trace=fsync", "-e", f"inject=fsync:{injected}")
    done = run("run", *CASES, "--steps", "3", "--out", str(out), prefix=prefix)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if kept is None:
        assert not out.exists()
        return
    stored = load(out)
    assert [result.status for result in stored.results] == kept
    assert not any("torn" in problem for problem in stored.problems)
    assert left_behind() == 0
    assert run("run", "--resume", str(out)).returncode == 0
    assert [result.status for result in load(out).results] == ["ok", "ok", "ok"]
