"""However a worker ends, its case ends in the one right status that says how and when, and the other cases go on."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

import faults
from torchmark.measure.engine import Settings
from torchmark.measure.messages import Measured, MeasureJob
from torchmark.measure.process import Process, ProcessFailed
from torchmark.records import parse_case
from torchmark.store import load

# Every phase with a death, an error and a silence, and every other fault once.
TRIED = [
    *[(phase, "kill") for phase in ("start", "import", "build", "first-step", "check", "steps", "job", "teardown")],
    *[(phase, "raise") for phase in ("import", "build", "first-step", "check", "steps", "job", "teardown")],
    *[("steps", fault) for fault in ("memory", "unsupported", "leave", "exit", "abort", "segfault", "terminate")],
    *[("build", "abandon"), ("job", "abandon"), ("teardown", "deaf")],
]
SILENT = [("steps", "stop"), ("check", "deaf")]


@pytest.mark.parametrize(("tried", "timeout"), [(TRIED, "60s"), (SILENT, "8s")], ids=["tried", "silent"])
def test_every_failure_has_its_status_and_harms_no_other_case(run, environment, tmp_path, left_behind, tried, timeout):
    environment["TORCHMARK_FAKE"] = "stream=iid2,step=0.01"  # on a clock of its own every phase takes as many steps
    wanted = [pair for failing in tried for pair in (failing, ("steps", "none"))]
    cases = {faults.failures.case(*pair, number): pair for number, pair in enumerate(wanted)}
    out = tmp_path / "run.jsonl"
    done = run("run", *cases, "--steps", "3", "--timeout", timeout, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(load(out).results) == len(cases)
    assert faults.mislabelled(out, cases) == []
    assert left_behind() == 0


@pytest.mark.thorough
def test_real_work_fails_in_the_same_ways(run, tmp_path, left_behind):
    pairs = [("check", "wrong"), ("steps", "segfault"), ("job", "memory"), ("build", "abandon"), ("steps", "none")]
    cases = {faults.failures.case(*pair, number, "cpu"): pair for number, pair in enumerate(pairs)}
    out = tmp_path / "run.jsonl"
    assert run("run", *cases, "--steps", "3", "--out", str(out)).returncode == 0
    assert faults.mislabelled(out, cases) == []
    assert left_behind() == 0


def test_a_new_interpreter_that_leaves_a_child_behind_is_no_timeout(run, tmp_path, left_behind):
    text = faults.failures.case("build", "abandon", 0)
    out = tmp_path / "run.jsonl"
    assert run("run", text, "--rigor", "rigorous", "--timeout", "60s", "--out", str(out)).returncode == 3
    assert faults.mislabelled(out, {text: ("build", "abandon")}) == []
    assert left_behind() == 0


def test_a_process_that_stops_in_the_middle_of_a_message_holds_no_one_up(tmp_path):
    code = "import os, signal; os.write(1, b'{\"type\":'); os.kill(os.getpid(), signal.SIGSTOP)"
    (tmp_path / "sitecustomize.py").write_text(code)
    case = parse_case("null/infer@fake/float32")
    process = Process(case, environment={"PYTHONPATH": str(tmp_path)}, timeout_s=4.0)
    with process, pytest.raises(ProcessFailed) as caught:
        process.ask(MeasureJob(case, Settings()), Measured)
    assert caught.value.result.status == "timeout"
    assert caught.value.result.reason == "no result after 4 s; it was busy with: start"
    assert not psutil.pid_exists(process.pid)


def test_without_the_server_that_forks_workers_one_case_is_lost_and_no_more(start, tmp_path, wait_until, left_behind):
    """The second case never ends by itself, and has a child, which distinguishes its worker from the first case's."""
    first, lost, last = "null/infer@fake/float32", "faulty/infer:fault=deaf@fake/float32", "faulty/infer@fake/float32"
    out = tmp_path / "run.jsonl"
    process = start("run", first, lost, last, "--steps", "5", "--out", str(out))

    def servers_at_work() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [server for server in children if any(map(has_child, server.children()))]

    wait_until(servers_at_work)
    (server,) = servers_at_work()
    assert "forkserver" in " ".join(server.cmdline())
    server.kill()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert [result.status for result in load(out).results] == ["ok", "crashed", "ok"]
    assert left_behind() == 0


def has_child(process: psutil.Process) -> bool:
    try:
        return bool(process.children())
    except psutil.NoSuchProcess:
        return False


def kernel_group(folder: Path, bytes_: int) -> bool:
    """A control group that may not use more memory than that, of whichever version there is."""
    try:
        folder.mkdir()
        limits = [folder / name for name in ("memory.max", "memory.limit_in_bytes")]
        next(limit for limit in limits if limit.exists()).write_text(str(bytes_))
    except (OSError, StopIteration):
        return False
    return True


def test_a_worker_that_the_kernel_kills_for_its_memory_is_distinguished_from_one_that_was_killed(
    run, tmp_path, wait_until, do_without
):
    group = next(
        (
            Path(f"/sys/fs/cgroup{name}/torchmark-{os.getpid()}")
            for name in ("/memory", "")
            if Path(f"/sys/fs/cgroup{name}/cgroup.procs").exists()
        ),
        None,
    )
    if group is None or not kernel_group(group, 400 << 20):
        do_without("no control group for memory here that may be limited")
    try:
        cases = [faults.failures.case("build", "devour", 1), faults.failures.case("steps", "none", 2)]
        prefix = ("bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash")
        out = tmp_path / "run.jsonl"
        assert run("run", *cases, "--steps", "3", "--out", str(out), prefix=prefix).returncode == 0
        first, second = load(out).results
        assert first.status == "host-oom"
        assert "the system ran out of memory during build" in (first.reason or "")
        assert second.status == "ok"
    finally:
        wait_until(
            lambda: not (group / "cgroup.procs").read_text()
        )  # the server that forks goes a moment after its run
        group.rmdir()
