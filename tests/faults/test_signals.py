"""A run that is told to stop stops in order, and a second time at once; what it had is kept."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

import pytest

from torchmark.store import load

CASES = [f"null/infer@fake/float32+threads={number}" for number in (1, 2)]
LONG = (*CASES, "--steps", "150")  # 1.5 s each: a busy machine may be late with the signal


def second_started(out: Path) -> Callable[[], bool]:
    return lambda: out.exists() and f'"started","case":"{CASES[1]}"' in out.read_text()


def statuses(out: Path) -> list[str]:
    return [result.status for result in load(out).results]


def test_once_it_saves_shows_what_there_is_and_says_how_to_go_on(start, tmp_path, wait_until, left_behind):
    out = tmp_path / "run.jsonl"
    process = start("run", *LONG, "--out", str(out))
    wait_until(second_started(out))
    process.send_signal(signal.SIGHUP)
    printed, heard = process.communicate(timeout=60)
    assert process.returncode == 129
    assert "interrupted" in printed
    assert f"Go on: torchmark run --resume {out}" in heard
    assert "Traceback" not in heard
    assert statuses(out) == ["ok", "interrupted"]
    assert left_behind() == 0


def test_twice_it_stops_at_once_even_where_a_worker_will_not(start, faults, tmp_path, wait_until, left_behind):
    out = tmp_path / "run.jsonl"
    process = start("run", CASES[0], "faulty/infer:fault=deaf,phase=build@fake/float32", "--out", str(out))
    wait_until(lambda: faults.alive(str(tmp_path)) == 5)  # run, tracker, server, worker, and the worker's own child
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # the worker does not answer
    process.send_signal(signal.SIGINT)
    printed, heard = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (printed, "Traceback" in heard) == ("", False)
    assert statuses(out) == ["ok", "interrupted"]
    assert left_behind() == 0


def test_what_was_told_to_ignore_a_hang_up_goes_on(start, tmp_path, wait_until):
    out = tmp_path / "run.jsonl"
    process = start("run", *LONG, "--out", str(out), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until(second_started(out))
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(out) == ["ok", "ok"]


def test_a_terminal_that_is_closed_ends_it_in_order(start, tmp_path, wait_until, left_behind):
    out, (ours, theirs) = tmp_path / "run.jsonl", pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        ioctl(theirs, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = start("run", *LONG, "--out", str(out), preexec_fn=take_terminal, **streams)
    os.close(theirs)
    wait_until(second_started(out))
    os.close(ours)
    assert process.wait(60) == 129
    assert statuses(out) == ["ok", "interrupted"]
    assert left_behind() == 0


def test_a_run_that_was_stopped_for_a_while_goes_on_as_if_nothing_was(start, tmp_path, wait_until):
    out = tmp_path / "run.jsonl"
    process = start("run", *LONG, "--out", str(out))
    wait_until(second_started(out))
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5)  # longer than the worker needs, which goes on meanwhile
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(out) == ["ok", "ok"]
