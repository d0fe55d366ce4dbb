"""What models do to the processes around them: their children, the server that forks workers, the log."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

import faults
from torchmark.local_log import LARGEST_BYTES
from torchmark.store import load

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="models here fork")


def case(fault: str) -> str:
    return f"faulty/infer:fault={fault},phase=build@fake/float32"


def test_a_process_that_a_model_leaves_behind_keeps_no_reader_waiting(run, gate: Path, tmp_path: Path) -> None:
    done = run("run", case("daemon"), "--steps", "3")
    try:
        assert done.returncode == 0, done.stderr
        assert faults.alive(str(tmp_path))  # the output ended, and the model's process did not
    finally:
        gate.touch()


def test_a_model_that_stops_the_server_costs_no_other_case(run, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    done = run("run", case("freeze"), "null/infer@fake/float32", "--steps", "3", "--timeout", "30s", "--out", str(out))
    assert [result.status for result in load(out).results] == ["ok", "ok"], done.stderr


def test_a_model_that_stops_the_server_does_not_keep_the_run_from_ending(run, tmp_path: Path) -> None:
    done = run("run", case("freeze"), "--steps", "3", "--timeout", "30s", "--out", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr


def test_the_log_is_bounded_and_private(run, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl.log"
    log.write_text("from before\n")
    log.chmod(0o644)
    run("run", case("print"), "--steps", "3", "--out", str(tmp_path / "run.jsonl"))
    assert log.read_text().startswith("from before\nxxx")
    assert log.stat().st_size <= LARGEST_BYTES
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_the_log_leads_nowhere_else(run, tmp_path: Path, kind: str) -> None:
    log, thesis = tmp_path / "run.jsonl.log", tmp_path / "thesis.txt"
    thesis.write_text("work of years")
    thesis.chmod(0o644)
    make = {"link": log.symlink_to, "hard link": log.hardlink_to, "pipe": lambda _: os.mkfifo(log)}
    make[kind](thesis)
    done = run("run", case("raise"), case("none"), "--steps", "3", "--out", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    assert (thesis.read_text(), thesis.stat().st_mode & 0o777) == ("work of years", 0o644)


@pytest.mark.parametrize("rigor", ["quick", "rigorous"])
def test_an_interrupt_while_torch_is_imported_shows_no_traceback(start, wait_until, rigor: str) -> None:
    process = start("run", "mlp/infer@cpu/float32", "--rigor", rigor, start_new_session=True)
    wait_until(lambda: any("multiprocessing.forkserver" in str(each.cmdline()) for each in children(process.pid)))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out + err


def test_a_group_that_is_ended_while_its_server_starts_leaves_no_temporary_files(
    start, environment: dict[str, str], wait_until
) -> None:
    with tempfile.TemporaryDirectory() as name:  # its path is short enough for that of a socket, unlike a test's own
        temporary = Path(name)
        environment["TMPDIR"] = name
        process = start("run", "null/infer@fake/float32", "--steps", "3", start_new_session=True)
        wait_until(lambda: any(temporary.glob("*/listener-*")))
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        wait_until(lambda: not [*temporary.iterdir()])


def test_a_temporary_folder_with_a_path_too_long_for_a_socket_is_no_obstacle(
    run, environment: dict[str, str], tmp_path: Path
) -> None:
    temporary = tmp_path / ("x" * 100)
    temporary.mkdir()
    environment["TMPDIR"] = str(temporary)
    done = run("run", "null/infer@fake/float32", "--steps", "3")
    assert done.returncode == 0, done.stderr


def children(number: int) -> list[psutil.Process]:
    return psutil.Process(number).children(recursive=True)
