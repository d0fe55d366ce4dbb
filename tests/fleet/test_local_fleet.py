"""A fleet in processes of this machine: the same way as on a cluster, without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from torchmark.errors import FleetError
from torchmark.fleet import local
from torchmark.fleet.folder import UNDER_WAY, Submitted, Task, Terms
from torchmark.fleet.local import Local
from torchmark.store import load

Shell = Any  # what `make_shell` makes
Make = Callable[..., Shell]
CASES = ("null", "--device", "fake", "--rigor", "quick", "--steps", "20")
THREE = (*CASES, "--dtype", "float32,float64,bfloat16")


@pytest.fixture
def shell(make_shell: Make, tmp_path: Path) -> Shell:
    return make_shell(tmp_path)


def test_every_node_has_a_run_of_its_own_and_the_folder_is_a_library(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    done = shell.run("fleet", "run", *CASES, "--engine", "local", "--nodes", "2", "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    assert "2 nodes: 2 done" in done.stdout
    assert "A1: null/infer@fake/float32: " in done.stderr  # while it goes on
    assert sorted(path.name for path in folder.glob("*.jsonl")) == ["A1.jsonl", "A2.jsonl"]
    runs = [load(path) for path in sorted(folder.glob("*.jsonl"))]
    assert [run.header.label for run in runs] == ["A1", "A2"]
    assert all(result.status == "ok" for run in runs for result in run.results)
    assert sorted(path.name for path in folder.iterdir()) == ["A1.jsonl", "A2.jsonl", "jobs"]
    texts = [path.read_text() for path in folder.glob("*.jsonl")] + [done.stdout]
    assert not [word for word in (socket.gethostname(), str(tmp_path), "local0") for text in texts if word in text]
    compared = shell.run("compare", *map(str, sorted(folder.glob("*.jsonl"))), "--format", "json")
    assert compared.returncode == 0, compared.stderr
    board = shell.run("report", "--leaderboard", str(folder), "--format", "json", "-o", "-")
    assert board.returncode == 0, board.stderr
    again = shell.run("fleet", "run", *CASES, "--engine", "local", "--folder", str(folder))
    assert again.returncode == 2
    assert "holds a fleet already" in again.stderr


def test_a_job_that_is_cancelled_is_reported_and_completed(make_shell: Make, shell: Shell, tmp_path: Path) -> None:
    slow, folder = make_shell(tmp_path, step_s=0.1), tmp_path / "fleet"
    start = slow.start("fleet", "run", *THREE, "--engine", "local", "--folder", str(folder), "--no-probe")
    slow.wait_until(lambda: slow.results_in(folder, "A1"))
    assert slow.run("fleet", "cancel", str(folder)).stdout.startswith("cancelled 1 of 1")
    done = slow.finish(start)
    assert done.returncode == 4, done.stderr
    state = slow.states(folder)["A1"]
    assert state["state"] == "cancelled"
    assert 0 < state["measured"] < state["planned"] == 3
    before = load(folder / "A1.jsonl").results[0]
    done = shell.run("fleet", "run", "--resume", str(folder), "--no-probe")
    assert done.returncode == 0, done.stderr
    after = load(folder / "A1.jsonl").results
    assert [result.status for result in after] == ["ok", "ok", "ok"]
    assert after[0] == before  # only what was missing was measured


def test_what_is_over_its_time_or_killed_is_reported(make_shell: Make, tmp_path: Path) -> None:
    slow = make_shell(tmp_path, step_s=1.0)
    for number, (state, limit) in enumerate((("time-limit", "1s"), ("killed", "10m"))):
        folder = tmp_path / str(number)
        terms = ("--engine", "local", "--folder", str(folder), "--no-probe", "--time", limit)
        start = slow.start("fleet", "run", *CASES, *terms)
        if state == "killed":
            slow.wait_until((folder / "A1.jsonl").exists)
            slow.wait_until((folder / "jobs" / "A1.job").exists)
            supervisor = int((folder / "jobs" / "A1.job").read_text().partition("@")[0])
            os.killpg(child_of(supervisor), 9)
        done = slow.finish(start)
        assert done.returncode == 4, done.stderr
        assert slow.states(folder)["A1"]["state"] == state
        assert "--resume" in done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """The script of a job that goes on until the test has ended."""
    path = tmp_path / "A1.sh"
    path.write_text(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done\n")
    yield path
    (tmp_path / "go").touch()


def submitted(engine: Local, script: Path) -> Submitted:
    return Submitted("A1", engine.submit(Task("A1", "A", ("local0",), (), "A1"), Terms("local"), script), script)


def test_a_job_is_recognised_as_soon_as_it_is_submitted(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it starts, the kernel reports no command of a process: here of one in a few hundred."""
    engine, real, looks = Local(), psutil.Process.cmdline, iter(range(3))
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: [] if next(looks, None) is not None else real(self))
    job = submitted(engine, script)
    assert next(looks, None) is None
    assert engine.outcomes([job])["A1"].state in UNDER_WAY
    (tmp_path / "go").touch()
    while engine.outcomes([job])["A1"].state in UNDER_WAY:
        time.sleep(0.01)
    assert (tmp_path / "A1.fate").exists()


def test_a_job_runs_nothing_from_the_current_folder(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("signal", "msgspec", "secrets", "contextlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go").touch()
    engine = Local()
    job = submitted(engine, script)
    while engine.outcomes([job])["A1"].state in UNDER_WAY:
        time.sleep(0.01)
    assert json.loads((tmp_path / "A1.fate").read_bytes())["state"] == "done"
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "number", ["{other}", "{other}@{start} x", "0", "1", "-1", "-{other}", "", "9" * 30, "\x00", "٣"]
)
def test_only_processes_that_prove_to_be_the_jobs_own_are_ended(script: Path, number: str) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        forged = number.format(other=other.pid, start=psutil.Process(other.pid).create_time())
        engine, job = Local(), Submitted("A1", forged, script)
        assert engine.outcomes([job])["A1"].state == "killed"
        engine.cancel([job])
        time.sleep(0.05)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_job_of_another_fleet_is_not_ended(script: Path, tmp_path: Path) -> None:
    engine = Local()
    job = submitted(engine, script)
    while engine.outcomes([job])["A1"].state != "running":
        time.sleep(0.01)
    (tmp_path / "link").symlink_to(tmp_path)
    forged = msgspec.structs.replace(job, script=tmp_path / "other" / "A1.sh")
    engine.cancel([forged])
    time.sleep(0.05)
    assert engine.outcomes([forged, job])["A1"].state in UNDER_WAY
    forged.script.parent.mkdir()
    forged.script.symlink_to(job.script)
    engine.cancel([forged])
    time.sleep(0.05)
    assert engine.outcomes([job])["A1"].state in UNDER_WAY
    engine.cancel([msgspec.structs.replace(job, script=tmp_path / "link" / "A1.sh")])  # the same, by another path
    while engine.outcomes([job])["A1"].state in UNDER_WAY:
        time.sleep(0.01)
    assert json.loads((tmp_path / "A1.fate").read_bytes())["state"] == "cancelled"


def test_what_a_cancelled_job_has_started_may_clean_up_after_it(script: Path, tmp_path: Path) -> None:
    clean_up = f"trap 'sleep 0.5; touch {tmp_path}/clean; exit' TERM; touch {tmp_path}/ready"
    script.write_text(f"({clean_up}; while :; do sleep 0.05; done) &\nexec sleep 60\n")
    engine = Local()
    job = submitted(engine, script)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    engine.cancel([job])
    while engine.outcomes([job])["A1"].state in UNDER_WAY:
        time.sleep(0.01)
    assert (tmp_path / "clean").exists()


def test_a_job_that_is_cancelled_while_it_starts_is_ended(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("exec sleep 60\n")
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    real, before = subprocess.Popen, signal.signal(signal.SIGTERM, local._cancel)
    monkeypatch.setattr(subprocess, "Popen", start)
    try:
        outcome = local.supervise(script, 1, 0.0)
        assert (outcome.state, [process.poll() for process in started]) == ("cancelled", [-signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in started:
            process.kill()


def child_of(number: int) -> int:
    return int(psutil.Process(number).children()[0].pid)


def test_what_a_node_lacks_is_reported_before_anything_is_submitted(shell: Shell, tmp_path: Path) -> None:
    empty = tmp_path / "empty-python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    empty.chmod(0o755)
    folder = tmp_path / "fleet"
    for more, words in (
        (("--python", str(empty)), "cannot import torchmark"),
        (("--python", "/nowhere/python"), "has no /nowhere/python"),
        (("--setup", "false"), "a line of --setup failed"),
        (("--partition", "gpu"), "--partition is for a cluster"),
    ):
        done = shell.run("fleet", "run", *CASES, "--engine", "local", "--folder", str(folder), *more)
        assert done.returncode in (2, 4)
        assert words in done.stderr
        assert not list(folder.glob("jobs/*.job"))


def test_a_machine_without_slurm_says_so(make_shell: Make, tmp_path: Path) -> None:
    shell = make_shell(tmp_path, {**os.environ, "PATH": str(tmp_path)})
    done = shell.run("fleet", "run", "null")
    assert done.returncode == 4
    assert "there is no Slurm here" in done.stderr
    assert "--engine local" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "unknown workload"),
        (["null", "--together", "2", "--workers", "3"], "can be shared out among 2 nodes"),
        (["null", "--together", "0"], "is not a number of nodes"),
        (["null", "--engine", "local", "--each-kind", "--nodes", "2"], "contradict each other"),
        (["--resume", "nowhere"], "there is no fleet in"),
        (["mlp", "--resume", "nowhere"], "cannot be changed"),
    ],
)
def test_mistakes_are_reported_at_once(shell: Shell, arguments: list[str], words: str) -> None:
    done = shell.run("fleet", "run", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_plan_can_be_seen_before_it_is_carried_out(shell: Shell, tmp_path: Path) -> None:
    sizes = ("--together", "1,2", "--workers", "1,2", "--threads", "1")
    done = shell.run("fleet", "run", "mnist-ddp-mlp", "--budget", "1m30s", "--engine", "local", "--dry-run", *sizes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1-node: torchmark run mnist-ddp-mlp --threads 1 --budget 90s --workers 1,2, on local0",
        "2-nodes: torchmark run mnist-ddp-mlp --threads 1 --budget 90s --workers 2, on local0 and local1",
    ]
    assert not (tmp_path / "torchmark-fleet").exists()


def test_a_setup_that_is_too_long_for_a_command_is_an_error() -> None:
    with pytest.raises(FleetError, match="Argument list too long"):
        Local().try_out("true\n" * 500_000, "local0", ())
