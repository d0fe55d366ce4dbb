"""A folder that others may write into: nothing in it runs unasked, ends a stranger's process, hangs or is a bug."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torchmark import cli
from torchmark.fleet.folder import Fleet, FleetFolder, JobOutcome, Task, Terms
from torchmark.store.files import temporary

COMMANDS = {
    "status": ("status",),
    "gather": ("gather",),
    "cancel": ("cancel",),
    "resume": ("run", "--no-probe", "--resume"),
}
TASK = Task("A1", "A", ("local0",), ("null", "--device", "fake", "--steps", "3"), "A1")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """This file is there once anything of the plan has run."""
    return tmp_path / "ran"


@pytest.fixture
def place(tmp_path: Path, ran: Path) -> FleetFolder:
    """A fleet whose job ends as soon as it has begun."""
    folder = FleetFolder(tmp_path / "fleet")
    folder.prepare()
    terms = Terms("local", python=sys.executable, setup=(f"touch {ran}", "exit 0"))
    folder.keep(Fleet("2026-11-16T02:00:00Z", terms, (TASK,)))
    return folder


def fleet(command: str, place: FleetFolder, *more: str) -> int:
    return cli.main(["fleet", *COMMANDS[command], str(place.path), *more])


def changed(place: FleetFolder, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The plan, with something else in it."""
    plan = json.loads((place.jobs / "plan.json").read_bytes())
    change(plan)
    return json.dumps(plan).encode()


PLANS: dict[str, bytes | Callable[[dict[str, Any]], object]] = {
    "empty": b"",
    "array": b"[1]",
    "not-a-number": b"NaN",
    "not-utf-8": b'{"created":"\xff","terms":{},"tasks":[]}',
    "surrogate": b'{"created":"\\ud800","terms":{},"tasks":[]}',
    "deep": b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "large": b" " * (33 << 20),
    "newer": lambda plan: plan.update(version=2**62),
    "no-tasks-but-a-word": lambda plan: plan.update(tasks="A1"),
    "terms-of-a-number": lambda plan: plan.update(terms=1e308),
    "unknown-engine": lambda plan: plan["terms"].update(engine="sh"),
    "endless": lambda plan: plan["terms"].update(time_s=1e308),
    "before-time": lambda plan: plan["terms"].update(time_s=-1),
    "null-byte": lambda plan: plan["terms"].update(python="/bin/\0sh"),
    "longer-than-a-command": lambda plan: plan["terms"].update(python="/" * 300_000),
    "setup-of-numbers": lambda plan: plan["terms"].update(setup=[1]),
    "above": lambda plan: plan["tasks"][0].update(name="../A1"),
    "absolute": lambda plan: plan["tasks"][0].update(name="/tmp/A1"),
    "hidden": lambda plan: plan["tasks"][0].update(name=".A1"),
    "two-lines": lambda plan: plan["tasks"][0].update(name="A1\n"),
    "long": lambda plan: plan["tasks"][0].update(name="A" * 5000),
    "nameless": lambda plan: plan["tasks"][0].update(name=""),
    "twice": lambda plan: plan["tasks"].append(plan["tasks"][0]),
    "on-no-node": lambda plan: plan["tasks"][0].update(nodes=[]),
}
NO_FILES = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "zeros": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("plan", [*PLANS, *NO_FILES])
def test_a_plan_that_is_none_is_an_error(
    place: FleetFolder, ran: Path, plan: str, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, content = place.jobs / "plan.json", PLANS.get(plan)
    written = content if isinstance(content, bytes) else changed(place, content) if content else None
    path.unlink()
    path.write_bytes(written) if written is not None else NO_FILES[plan](path)
    assert fleet(command, place) == 4
    said = capfd.readouterr().err
    assert said.startswith("torchmark: error: ")
    assert said.count("\n") == 1
    assert not ran.exists()


CONTENTS = {
    "empty": b"",
    "bytes": bytes(range(256)),
    "number": b"1" * 5000,
    "negative": b"-1",
    "option": b"--user=root",
    "running": b'{"state":"running"}',
    "deep": b"[" * 100_000,
    "large": b"1" * 100_000,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [*CONTENTS, *NO_FILES])
def test_no_file_about_a_job_is_a_bug_or_waits_for_ever(
    place: FleetFolder, content: str, command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchmark.cli.fleet.SHORTEST_S", 0.05)
    endings = ("job", "fate", "end", "log", "meeting", "begun", "order", "sh")
    for ending in endings if content in CONTENTS else (*endings, "jsonl"):
        path = place.file(TASK, ending) if ending != "jsonl" else place.run_file(TASK)
        path.write_bytes(CONTENTS[content]) if content in CONTENTS else NO_FILES[content](path)
    assert fleet(command, place) in (0, 3, 4)
    assert "bug" not in capfd.readouterr().err


@pytest.mark.parametrize("ending", ["job", "fate", "end", "log", "sh", "order"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_cannot_be_replaced_is_an_error_that_names_it(
    place: FleetFolder, ending: str, kind: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links and pipes are put away; a folder is not, nor is a log that is no file."""
    monkeypatch.setattr("torchmark.cli.fleet.SHORTEST_S", 0.05)
    path = place.file(TASK, ending)
    NO_FILES[kind](path)
    code = fleet("resume", place)
    said = capfd.readouterr().err
    if kind == "folder" or ending == "log":
        assert code == 4
        assert str(path) in said
    else:
        assert code in (0, 3, 4)
    assert "bug" not in said


def test_jobs_that_are_a_file_or_a_loop_are_an_error(tmp_path: Path) -> None:
    for number, make in enumerate((Path.touch, lambda path: path.symlink_to(path.name))):
        folder = FleetFolder(tmp_path / str(number))
        folder.path.mkdir()
        make(folder.path / "jobs")
        assert [fleet(command, folder) for command in COMMANDS] == [4] * 4
        assert cli.main(["fleet", "run", "null", "--engine", "local", "--folder", str(folder.path)]) == 4


def opened(place: FleetFolder, what: str) -> None:
    """Let others decide what is in the folder."""
    name, _, how = what.partition(":")
    path = {"folder": place.path, "jobs": place.jobs, "plan": place.jobs / "plan.json"}[name]
    if how == "owner":
        os.chown(path, 65534, -1)
    else:
        path.chmod(path.stat().st_mode | int(how, 8))


OPEN = [f"{name}:{how}" for name in ("folder", "jobs", "plan") for how in ("20", "2", "owner")]


@pytest.mark.parametrize("what", OPEN)
def test_nothing_runs_from_a_folder_that_others_can_change(
    place: FleetFolder, ran: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if what.endswith("owner") and os.geteuid():
        pytest.skip("only root can give files away")
    opened(place, what)
    assert fleet("resume", place) == 4
    assert "--trust-folder" in capfd.readouterr().err
    assert not ran.exists()
    assert not place.file(TASK, "sh").exists()
    assert [fleet(command, place) for command in ("status", "gather", "cancel")] == [0, 3, 0]  # these run nothing
    assert fleet("resume", place, "--trust-folder") == 3
    assert ran.exists()


def test_a_sticky_folder_of_root_is_as_good_as_a_private_one(place: FleetFolder) -> None:
    place.path.chmod(0o1777)
    assert place.distrust() is None


def test_a_new_fleet_starts_in_no_folder_that_others_have_prepared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = FleetFolder(tmp_path / "shared")
    (folder.path / "jobs").mkdir(parents=True)
    (folder.path / "jobs").chmod(0o777)
    new = ("fleet", "run", "null", "--engine", "local", "--folder", str(folder.path))
    assert cli.main(new) == 4
    assert "--trust-folder" in capfd.readouterr().err
    assert not (folder.path / "jobs" / "plan.json").exists()


def test_folders_and_files_of_a_fleet_are_written_by_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = FleetFolder(tmp_path / "fleet")
        folder.prepare()
        folder.keep(Fleet("", Terms("local"), (TASK,)))
        folder.keep_outcome(TASK, JobOutcome("done"))
    finally:
        os.umask(before)
    assert folder.distrust() is None
    assert not any(path.stat().st_mode & 0o022 for path in (folder.path, *folder.path.rglob("*")))


@pytest.mark.parametrize(("answer", "starts"), [(b"n\n", False), (b"y\n", True)])
def test_at_a_terminal_what_would_run_is_shown_first(
    place: FleetFolder, ran: Path, answer: bytes, starts: bool
) -> None:
    place.path.chmod(0o777)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torchmark", "fleet", *COMMANDS["resume"], str(place.path)]
    process = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        assert select.select([ours], [], [], 60)[0], shown
        shown += os.read(ours, 4096)
    assert f"touch {ran}".encode() in shown
    assert b"torchmark run null --device fake --steps 3" in shown
    assert not ran.exists()
    os.write(ours, answer)
    try:
        while select.select([ours], [], [], 60)[0] and os.read(ours, 4096):
            pass
    except OSError:  # the terminal is closed
        pass
    assert process.wait(60) == (3 if starts else 4)
    os.close(ours)
    assert ran.exists() == starts


def test_a_node_follows_no_order_that_others_can_change(place: FleetFolder) -> None:
    order = place.file(TASK, "order")
    order.write_text(json.dumps({"arguments": ["--nosuch"], "resuming": [], "run_file": "x"}))
    order.chmod(0o666)
    command = [sys.executable, "-P", "-m", "torchmark.fleet.node", str(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith(f"torchmark: error: {order} can be changed by other users")
    assert done.stderr.count("\n") == 1
    assert place.end_code(TASK) == 4


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Commands of Slurm that write down how they are called; `squeue` gives a certain answer."""
    log, programs = tmp_path / "calls", tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "scancel", "scontrol", "sinfo", "sbatch"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\n[ {name} = squeue ] && cat {tmp_path}/answer\nexit 0\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("torchmark.cli.fleet.CANCEL_S", 0.0)

    def read(answer: str) -> list[str]:
        (tmp_path / "answer").write_text(answer)
        log.write_text("")
        cli.main(["fleet", "cancel", "fleet"])
        return log.read_text().splitlines()

    return read


@pytest.mark.parametrize("number", ["--user=root", "-u root", "5,6", "5;6", "5 6", "5_", "٣", "5\n6", "5" * 40])
def test_what_is_no_number_of_a_job_reaches_no_command(
    place: FleetFolder, calls: Callable[[str], list[str]], number: str
) -> None:
    place.keep(msgspec.structs.replace(place.load(), terms=Terms("slurm")))
    place.file(TASK, "job").write_text(number)
    assert calls("") == []


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ("5|RUNNING|{user}|None|torchmark-A1\n", True),
        ("5|PENDING|{user}|ReqNodeNotAvail, UnavailableNodes:n1|torchmark-A1\n", True),
        ("5|RUNNING|{user}|None|thesis\n", False),
        ("5|RUNNING|{user}|None|torchmark-A2\n", False),
        ("5|RUNNING|99999|None|torchmark-A1\n", False),
    ],
)
def test_only_jobs_of_this_user_and_task_are_cancelled(
    place: FleetFolder, calls: Callable[[str], list[str]], answer: str, ended: bool
) -> None:
    place.keep(msgspec.structs.replace(place.load(), terms=Terms("slurm")))
    place.file(TASK, "job").write_text("5\n")
    assert ("scancel 5" in calls(answer.format(user=os.getuid()))) == ended


def test_a_forged_job_does_not_end_a_stranger(place: FleetFolder) -> None:
    import psutil

    other = subprocess.Popen(["sleep", "60"])
    start = psutil.Process(other.pid).create_time()
    place.file(TASK, "job").write_text(f"{other.pid}@{start:.2f} {place.file(TASK, 'begun')}")
    try:
        assert fleet("cancel", place) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_command_leaves_no_temporary_file_for_long(place: FleetFolder) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours = temporary(place.jobs / "plan.json")
    theirs = ours.with_name(ours.name.replace(str(os.getpid()), str(dead.pid)))
    for path in (ours, theirs):
        path.touch()
    place.load()
    assert [path for path in place.jobs.iterdir() if path.name.startswith(".")] == [ours]  # still at work


def test_a_write_that_is_killed_is_swept_up_by_the_next_command(place: FleetFolder) -> None:
    program = "import os, sys; from pathlib import Path; from torchmark.fleet import folder as files\n"
    program += "Path.replace = lambda *_: os.kill(os.getpid(), 9); files.write(Path(sys.argv[1]), b'new')"
    killed = subprocess.run([sys.executable, "-c", program, str(place.jobs / "plan.json")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [*place.jobs.glob(".*")]
    assert fleet("status", place) == 0
    assert not [*place.jobs.glob(".*")]


def test_what_a_fleet_shares_names_no_host_and_no_path(
    place: FleetFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place.file(TASK, "job").write_text("0")
    place.file(TASK, "log").write_text(f"torchmark: error: cannot read {tmp_path}/secret.pt on kestrel-9\n")
    place.keep_outcome(TASK, JobOutcome("failed", "exit code 4"))
    for kind in ("table", "md", "json", "csv", "jsonl"):
        fleet("gather", place, "--format", kind)
        reported = capfd.readouterr().out
        assert not [word for word in (str(tmp_path), "kestrel-9", "local0", socket.gethostname()) if word in reported]
        assert "exit code 4" in reported or kind in ("csv", "jsonl")
    fleet("status", place, "--format", "json")
    assert f"exit code 4: cannot read {tmp_path}/secret.pt" in capfd.readouterr().out  # for the user's own eyes


def test_what_jobs_print_is_for_their_user_alone(place: FleetFolder) -> None:
    place.file(TASK, "log").touch(0o644)
    fleet("resume", place)
    assert place.file(TASK, "log").stat().st_mode & 0o777 == 0o600


def test_what_workers_print_is_not_left_among_the_run_files(place: FleetFolder) -> None:
    order = {"arguments": ["--nosuch"], "resuming": [], "run_file": str(place.run_file(TASK))}
    place.file(TASK, "order").write_text(json.dumps(order))
    (place.path / "A1.jsonl.log").write_text("on kestrel-9")
    command = [sys.executable, "-P", "-m", "torchmark.fleet.node", str(place.file(TASK, "order"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == place.end_code(TASK) == 2
    assert [path.name for path in place.path.iterdir()] == ["jobs"]
    assert (place.jobs / "A1.workers.log-1").read_text() == "on kestrel-9"
