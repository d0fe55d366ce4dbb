"""The first signal stops a run in order, the second at once; finished results are kept."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

import psutil
import pytest

import faults
from torchmark.store import load

pytestmark = pytest.mark.usefixtures("gate")

WAITING = "faulty/infer:fault=wait@fake/float32"
CASES = ["null/infer@fake/float32", WAITING, "null/infer@fake/float32+threads=2"]


@pytest.fixture
def begin(start, tmp_path, wait_until) -> Callable[..., subprocess.Popen[str]]:
    """A run whose first case is done, and whose second waits for the gate."""

    def run_to_the_second(**options: object) -> subprocess.Popen[str]:
        out = tmp_path / "run.jsonl"
        process = start("run", *CASES, "--steps", "5", "--out", str(out), **options)
        wait_until(lambda: out.exists() and f'"started","case":"{WAITING}"' in out.read_text())
        return process

    return run_to_the_second


def statuses(out: Path) -> list[str]:
    return [result.status for result in load(out).results]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_once_it_saves_shows_what_there_is_and_can_be_gone_on_with(
    begin, run, gate, tmp_path, left_behind, number: signal.Signals, code: int
):
    out = tmp_path / "run.jsonl"
    process = begin()
    process.send_signal(number)
    printed, heard = process.communicate(timeout=60)
    assert process.returncode == code
    assert "interrupted" in printed
    assert f"Resume: torchmark run --resume {out}" in heard
    assert "Traceback" not in heard
    kept = load(out)
    assert [result.status for result in kept.results] == ["ok", "interrupted"]
    assert left_behind() == 0
    gate.touch()
    done = run("run", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert statuses(out) == ["ok"] * 3
    assert load(out).results[0] == kept.results[0]


def test_a_run_that_was_killed_loses_no_finished_case_and_can_be_gone_on_with(begin, run, gate, tmp_path):
    out = tmp_path / "run.jsonl"
    process = begin()
    process.kill()
    process.communicate()
    kept = load(out)
    assert [result.case.text for result in kept.results if result.status == "ok"] == CASES[:1]
    assert run("run", "--resume", str(out), "--dry-run").returncode == 0
    assert load(out) == kept
    gate.touch()
    done = run("run", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    resumed = load(out)
    assert [result.status for result in resumed.results] == ["ok"] * 3
    assert (resumed.header, resumed.results[0]) == (kept.header, kept.results[0])


def test_twice_it_stops_at_once_even_where_a_worker_will_not(start, tmp_path, wait_until, left_behind):
    """The worker and its child ignore SIGTERM, and are stopped: neither sees that the run ends."""
    out = tmp_path / "run.jsonl"
    process = start("run", CASES[0], "faulty/infer:fault=deaf,phase=build@fake/float32", "--out", str(out))
    # The run, tracker, server, worker and the worker's own child. Looking at the machine starts as many for a moment.
    wait_until(lambda: out.exists() and out.read_text().count('"started"') == 2 and faults.alive(str(tmp_path)) == 5)
    groups = {os.getpgid(each.pid) for each in psutil.Process(process.pid).children(recursive=True)}
    (worker,) = groups - {os.getpgid(process.pid)}
    os.killpg(worker, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # the worker does not answer
    process.send_signal(signal.SIGINT)
    printed, heard = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (printed, "Traceback" in heard) == ("", False)
    assert statuses(out) == ["ok", "interrupted"]
    assert left_behind() == 0


def test_what_was_asked_to_ignore_a_hang_up_goes_on(begin, gate, tmp_path):
    process = begin(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    gate.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(tmp_path / "run.jsonl") == ["ok"] * 3


def test_a_terminal_that_is_closed_ends_it_in_order(begin, tmp_path, left_behind):
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        ioctl(theirs, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = begin(preexec_fn=take_terminal, **streams)
    os.close(theirs)
    os.close(ours)
    assert process.wait(60) == 129
    assert statuses(tmp_path / "run.jsonl") == ["ok", "interrupted"]
    assert left_behind() == 0


def test_a_run_that_was_stopped_for_a_while_goes_on_as_if_nothing_was(begin, gate, tmp_path):
    process = begin()
    process.send_signal(signal.SIGSTOP)
    gate.touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5)  # longer than the worker needs, which goes on meanwhile
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(tmp_path / "run.jsonl") == ["ok"] * 3
