"""While a run goes on, its file is deleted, moved, replaced or resumed by a second run: no announced result is lost."""

from __future__ import annotations

import re
import shutil
import signal

import pytest

from torchmark.store import load

CASES = [*(f"null/infer@fake/float32+threads={number}" for number in (1, 2)), "faulty/infer:fault=wait@fake/float32"]


def replace(path):
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize(
    "change",
    [lambda path: path.unlink(), lambda path: path.rename(path.with_suffix(".moved")), replace],
    ids=["deleted", "moved", "replaced"],
)
def test_a_file_that_goes_away_is_written_again(start, wait_until, gate, tmp_path, change):
    out = tmp_path / "run.jsonl"
    process = start("run", *CASES, "--steps", "3", "--out", str(out))
    wait_until(lambda: out.exists() and out.read_text().count("finished") == 2 and "fault=wait" in last_line(out))
    change(out)
    gate.touch()
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert [result.status for result in load(out).results] == ["ok"] * 3
    assert all(case.partition("@")[0] in shown for case in CASES)


def last_line(path):
    return path.read_text().splitlines()[-1]


def test_a_second_writer_is_refused(start, run, wait_until, gate, tmp_path):
    out = tmp_path / "run.jsonl"
    first = start("run", *CASES, "--steps", "3", "--share", "--out", str(out))
    wait_until(lambda: out.exists() and "fault=wait" in last_line(out))
    second = run("run", "--resume", str(out), "--share")
    gate.touch()
    said = first.communicate(timeout=60)[1]
    assert second.returncode == 4
    assert re.search(rf"{out} is being written by process {first.pid}\. [A-Z]", second.stderr)
    assert first.returncode == 0, said
    assert [result.status for result in load(out).results] == ["ok"] * 3
    assert run("check", str(out)).returncode == 0


def test_a_killed_ab_keeps_every_pair_that_it_announced(start, wait_until, environment, tmp_path):
    home = tmp_path / "home"
    environment["TORCHMARK_HOME"] = str(home)
    with (tmp_path / "said").open("w+") as said:
        process = start("ab", "null/infer@fake/float32", "--env-b", "NOTHING=1", "--target", "0.0001", stderr=said)
        wait_until(lambda: "pair 2:" in (tmp_path / "said").read_text() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
    announced = len(re.findall(r"^pair \d+:", (tmp_path / "said").read_text(), re.MULTILINE))
    runs = [load(path) for path in home.glob("*.jsonl")]
    assert announced >= 2
    assert len(runs) == 2
    assert all(len(run.results[0].processes) >= announced for run in runs)
