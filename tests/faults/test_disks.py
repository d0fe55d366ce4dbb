"""A disk that is full, read-only or broken is one line with its fix, and what is on it already stays whole."""

from __future__ import annotations

import re
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
def test_a_bad_place_is_reported_before_anything_is_measured(run, own_mounts, disk, options, words):
    prefix = own_mounts(f"mount -t tmpfs -o {options} none {disk}")
    one_error(run("run", CASES[0], "--steps", "3", "--out", str(disk / "run.jsonl"), prefix=prefix), words)


def test_a_disk_that_fills_up_costs_the_case_under_way_and_no_other(run, own_mounts, disk, gate, tmp_path):
    # Somebody else fills the disk while the second case waits; when the run has ended, there is room again.
    out, waiting = disk / "run.jsonl", "faulty/infer:fault=wait@fake/float32"
    prefix = own_mounts(
        f"""mount -t tmpfs -o size=20m none {disk}
        (until grep -qs 'started","case":"{waiting}' {out}; do sleep 0.01; done
         cat /dev/zero > {disk}/fill 2> /dev/null || touch {gate}) &""",
        f"""cp {out} {tmp_path}/first.jsonl
        rm {disk}/fill
        {sys.executable} -m torchmark run --resume {out} &> /dev/null
        cp {out} {tmp_path}/second.jsonl""",
    )
    done = run("run", CASES[0], waiting, CASES[2], "--steps", "5", "--out", str(out), prefix=prefix)
    one_error(done, "No space left on device")
    assert f"--resume {out}" in done.stderr
    assert "null/infer" in done.stdout  # what there is is shown
    first = load(tmp_path / "first.jsonl")
    assert [result.status for result in first.results] == ["ok", "interrupted"]
    second = load(tmp_path / "second.jsonl")
    assert [result.status for result in second.results] == ["ok", "ok", "ok"]
    assert second.results[0] == first.results[0]


# One run makes these calls in order: the trial file, the header, its folder, and then three for each case.
@pytest.mark.parametrize(
    ("injected", "code", "kept"),
    [
        pytest.param("error=EIO:when=2", 4, None, marks=pytest.mark.thorough),
        ("error=EIO:when=6", 4, ["interrupted"]),
        pytest.param("error=ENOSPC:when=8", 4, ["ok", "interrupted"], marks=pytest.mark.thorough),
        pytest.param("signal=SIGKILL:when=5", -9, ["interrupted"], marks=pytest.mark.thorough),
        pytest.param("signal=SIGKILL:when=7", -9, ["ok", "interrupted"], marks=pytest.mark.thorough),
    ],
)
def test_a_store_call_that_fails_or_is_the_last_tears_nothing(
    run, run_here, strace, tmp_path, left_behind, injected, code, kept
):
    out = tmp_path / "run.jsonl"
    done = run("run", *CASES, "--steps", "3", "--out", str(out), prefix=strace(f"fsync:{injected}"))
    nothing_is_lost(run_here, done, out, code, kept)
    assert left_behind() == 0


# Of the run file itself: opened once to write, written to once for the header and three times for each case, then for
# the checksum; opened again to see that it is there. The table comes from memory.
@pytest.mark.parametrize(
    ("injected", "code", "kept"),
    [
        ("openat:error=EIO:when=1", 4, None),
        pytest.param("openat:error=EACCES:when=1", 4, None, marks=pytest.mark.thorough),
        pytest.param("openat:error=EIO:when=2", 0, ["ok", "ok", "ok"], marks=pytest.mark.thorough),
        pytest.param("openat:signal=SIGKILL:when=2", -9, ["ok", "ok", "ok"], marks=pytest.mark.thorough),
        ("write:error=EIO:when=1", 4, None),
        pytest.param("write:error=EIO:when=5", 4, ["ok"], marks=pytest.mark.thorough),
        pytest.param("write:error=EIO:when=7", 4, ["ok", "interrupted"], marks=pytest.mark.thorough),
        ("write:retval=40:when=6", 4, ["ok", "interrupted"]),  # no more than a part of the line was taken
        pytest.param("write:signal=SIGKILL:when=4", -9, ["interrupted"], marks=pytest.mark.thorough),
        pytest.param("write:signal=SIGKILL:when=8", -9, ["ok", "ok"], marks=pytest.mark.thorough),
    ],
)
def test_a_call_on_the_run_file_that_fails_or_is_the_last_loses_nothing(
    run, run_here, strace, tmp_path, left_behind, injected, code, kept
):
    out = tmp_path / "run.jsonl"
    done = run("run", *CASES, "--steps", "3", "--out", str(out), prefix=strace(*injected.split(), path=out))
    nothing_is_lost(run_here, done, out, code, kept)
    assert left_behind() == 0


@pytest.mark.parametrize(
    "injected",
    [
        pytest.param("openat:error=EIO:when=3+", marks=pytest.mark.thorough),
        "ftruncate:error=EIO",
        pytest.param("ftruncate:signal=SIGKILL", marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_cannot_go_on_for_its_disk_goes_on_later(run, run_here, strace, tmp_path, injected):
    out = tmp_path / "run.jsonl"
    run("run", *CASES, "--steps", "3", "--out", str(out), prefix=strace("write:signal=SIGKILL:when=6", path=out))
    with out.open("a") as file:
        file.write('{"kind":"samp')  # as a machine would leave it that lost its power
    done = run("run", "--resume", str(out), prefix=strace(injected, path=out))
    nothing_is_lost(run_here, done, out, -9 if "SIGKILL" in injected else 4, ["ok", "interrupted"], torn=True)


def nothing_is_lost(run_here, done, out: Path, code: int, kept: list[str] | None, torn: bool = False) -> None:
    """Exit 4 with cause and fix, or a signal; what was finished is there, and the run can be completed."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 4:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("torchmark: error: ")]
        assert re.search(r"cannot (read|write) .*: .+\. [A-Z]", line), line
    if kept is None:
        assert not out.exists()
        return
    stored = load(out)
    assert [result.status for result in stored.results] == kept
    assert any("incomplete" in problem for problem in stored.problems) == torn
    assert run_here("run", "--resume", str(out)).returncode == 0
    assert [result.status for result in load(out).results] == ["ok", "ok", "ok"]
    assert run_here("check", str(out)).returncode == 0
