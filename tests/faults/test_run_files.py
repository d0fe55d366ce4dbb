"""While a run goes on, its file is deleted, moved, replaced or resumed by a second run: no announced result is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from torchmark.store import load

NULL = "null/infer@fake/float32"
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


# What to measure, the line after which something happens, and what the table then shows.
STUDIES = {
    "ab": (("ab", NULL, "--env-b", "NOTHING=1", "--target", "0.0001"), r"^pair 2:", "B is 1.000× as fast as A"),
    "tune": (
        ("tune", "faulty/infer:delay_ms=3@fake/float32", "--also", "delay_ms=0,1,2", "--budget", "5m"),
        "^best so far:",
        "What was tried",
    ),
    "fit": (("fit", "faulty", "--device", "fake", "--vary", "number", "--most", "8"), "^number 2:", "fits into"),
    "limits": (("limits", "--device", "fake", "--tiny"), r"^\[2\]", "Not kept"),
    "replicate": (("replicate", "simple-add", "--device", "fake", "--scale", "0.01"), r"^\[1/", "it/s here"),
}
NOT_FILES = {"folder": Path.mkdir, "pipe": os.mkfifo, "dangling link": lambda path: path.symlink_to("nowhere")}


@pytest.fixture
def study(start, wait_until, environment, tmp_path):
    """Start a study, do something to it when it has measured a part, and return how it ended."""
    environment["TORCHMARK_HOME"] = str(tmp_path / "home")

    def run_study(name, act):
        arguments, line, _ = STUDIES[name]
        if name == "ab":
            environment["TORCHMARK_FAKE"] = "stream=iid2,step=0.001"  # turns last no time
        out = () if name == "ab" else ("--out", "run.jsonl")
        with (tmp_path / "said").open("w+") as said:
            process = start(*arguments, *out, stderr=said, cwd=tmp_path)
            wait_until(
                lambda: re.search(line, (tmp_path / "said").read_text(), re.MULTILINE) or process.poll() is not None
            )
            act(process)
            shown = process.communicate(timeout=60)[0]
        return process.returncode, shown, (tmp_path / "said").read_text()

    return run_study


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_whose_file_cannot_be_restored_shows_what_it_measured(study, tmp_path, name):
    def put_folder(process):
        process.send_signal(signal.SIGSTOP)  # it would write the file again between the two steps
        path = max(tmp_path.glob("home/*.jsonl"), key=os.path.getmtime) if name == "ab" else tmp_path / "run.jsonl"
        path.unlink()
        path.mkdir()
        process.send_signal(signal.SIGCONT)

    code, shown, said = study(name, put_folder)
    assert code == 4, said
    assert STUDIES[name][2] in shown
    assert re.fullmatch(r"torchmark: error: cannot write .*: it is no longer a file\. Fix .*", said.splitlines()[-1])
    assert "--resume" not in said
    assert "written again" not in said
    saved = re.findall(r"Saved .*torchmark \S+ (\S+)", said)
    assert len(saved) == (name == "ab")  # the other side's file is there
    assert all(path.is_file() for run in saved for path in tmp_path.glob(f"home/*_{run}.jsonl"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_stopped_names_a_run_that_can_be_found(study, run_here, tmp_path, name):
    code, shown, said = study(name, lambda process: process.send_signal(signal.SIGINT))
    assert code == 130, said
    assert STUDIES[name][2] in shown
    (command,) = re.findall(r"Saved as .*: torchmark (\S+ \S+)", said)
    assert command.endswith(" run.jsonl") == (name != "ab")
    done = run_here("show", command.split()[1], folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", NOT_FILES)
def test_a_run_whose_file_is_gone_does_not_claim_to_be_saved(start, wait_until, gate, tmp_path, kind):
    out = tmp_path / "run.jsonl"
    process = start("run", *CASES, "--steps", "3", "--out", str(out))
    wait_until(lambda: out.exists() and out.read_text().count("finished") == 2 and "fault=wait" in last_line(out))
    out.unlink()
    NOT_FILES[kind](out)
    gate.touch()
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 4
    assert shown.count("poor:") == 2  # grades of what was measured
    assert "Fix that, then start again" in said
    assert not re.search("Saved|written again|torchmark show|--resume", shown + said)


@pytest.mark.parametrize("change", ["deleted", "appended to"])
def test_a_full_disk_spoils_no_version_of_the_file(run, own_mounts, gate, tmp_path, change):
    disk = tmp_path / "disk"
    disk.mkdir()
    out, foreign = disk / "run.jsonl", "a line of another program"
    act = f"rm {out}" if change == "deleted" else f"echo {foreign} >> {out}"
    prefix = own_mounts(
        f"""mount -t tmpfs -o size=20m none {disk}
        (until grep -qs 'started","case":"{CASES[2]}' {out}; do sleep 0.01; done
         {act}
         cat /dev/zero > {disk}/fill 2> /dev/null || touch {gate}) &""",
        f"""rm {disk}/fill
        cp -r {disk} {tmp_path}/first
        if [ -e {out} ]; then
            sed -i '/{foreign}/d' {out}
            {sys.executable} -m torchmark run --resume {out} &> /dev/null
        fi
        cp -r {disk} {tmp_path}/second""",
    )
    done = run("run", *CASES, "--steps", "3", "--out", str(out), prefix=prefix)
    assert done.returncode == 4
    assert "No space left on device. Fix that, " in done.stderr
    assert done.stdout.count("poor:") == 2
    assert not re.search("Saved|written again|is now|torchmark show", done.stdout + done.stderr)
    kept = {path.name for path in (tmp_path / "first").iterdir()} - {"run.jsonl.log"}
    if change == "deleted":
        assert kept == set()
        assert "--resume" not in done.stderr
    else:
        assert kept == {"run.jsonl"}
        assert (tmp_path / "first" / "run.jsonl").read_text().endswith(foreign + "\n")
        assert "remove what another program has written to that file, then resume: " in done.stderr
        assert [result.status for result in load(tmp_path / "second" / "run.jsonl").results] == ["ok"] * 3


def test_only_run_advises_to_resume_a_file_that_is_there(run, run_here, tmp_path):
    (tmp_path / "run.jsonl").touch()
    for name, (arguments, _, _) in STUDIES.items():
        if name != "ab":
            starts = run if "faulty" in str(arguments) else run_here
            done = starts(*arguments, "--out", str(tmp_path / "run.jsonl"))
            assert done.returncode == 4
            assert "Choose another name with --out" in done.stderr
            assert "--resume" not in done.stderr
    assert "--resume" in run_here("run", NULL, "--out", str(tmp_path / "run.jsonl")).stderr
