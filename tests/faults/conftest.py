"""Real runs in folders of their own, to which something bad is done from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run_torchmark

import faults

COMMAND = [sys.executable, "-m", "torchmark"]
SLEEPING = "stream=iid2,step=0.01,sleep=on"
MARK = "TORCHMARK_FAULT_TRIAL"

Start = Callable[..., subprocess.Popen[str]]
NEED = "TORCHMARK_NEED_FAULTS"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home and a lock of the test's own, the workload that fails, and a mark by which every process is found."""
    found: dict[str, str] = faults.failures.environment(tmp_path)
    found.pop("TORCHMARK_DEBUG", None)
    return found | {MARK: str(tmp_path), "TORCHMARK_FAKE": SLEEPING, "COLUMNS": "80"}


@pytest.fixture
def gate(environment: dict[str, str], tmp_path: Path) -> Path:
    """The case `WAITING` goes on when this file is there, and not before: a test finds it at work whenever it looks."""
    path = tmp_path / "gate"
    environment["TORCHMARK_FAULT_GATE"] = str(path)
    return path


@pytest.fixture
def left_behind(tmp_path: Path) -> Callable[[], int]:
    """How many processes of this test's runs are still there a moment later."""
    return lambda: faults.left_behind(str(tmp_path))[0]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Start `torchmark …` and go on; what still runs at the end of the test is ended."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, prefix: tuple[str, ...] = (), **options: object) -> subprocess.Popen[str]:
        chosen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment} | options
        begun.append(subprocess.Popen([*prefix, *COMMAND, *arguments], **chosen))  # type: ignore[call-overload]
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`torchmark …` to its end."""

    def finish(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return finish


@pytest.fixture
def run_here(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in the process of the test, for commands that are disturbed by nothing. It lacks the faulty workload.

    It starts the fork server of all tests of this process, which must not carry the mark of one of them.
    """
    unmarked = {name: value for name, value in environment.items() if name != MARK}
    return lambda *arguments, **options: run_torchmark(*arguments, environment=unmarked, **options)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    def wait(true: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def do_without() -> Callable[[str], None]:
    """Leave a test out that this system does not let happen; where TORCHMARK_NEED_FAULTS is set, that is a failure."""

    def leave_out(reason: str) -> None:
        (pytest.fail if os.environ.get(NEED) else pytest.skip)(reason)

    return leave_out


@pytest.fixture(scope="session")
def strace(do_without: Callable[[str], None]) -> Callable[..., tuple[str, ...]]:
    """The beginning of a command in which the given system calls fail or kill; with a path, only those on that file.
    Only the process itself is traced, not its children."""
    try:
        subprocess.run(["strace", "-o", os.devnull, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        do_without("no strace here that may trace a process")

    def begin(*faults: str, path: Path | None = None) -> tuple[str, ...]:
        calls = ",".join(dict.fromkeys(fault.partition(":")[0] for fault in faults))
        inject = [part for fault in faults for part in ("-e", f"inject={fault}")]
        return ("strace", "-o", os.devnull, *(("-P", str(path)) if path else ()), "-e", f"trace={calls}", *inject)

    return begin


@pytest.fixture(scope="session")
def own_mounts(do_without: Callable[[str], None]) -> Callable[..., tuple[str, ...]]:
    """The beginning of a command that runs in a mount namespace of its own, between two scripts."""
    unshare = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
    try:
        subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        do_without("no private mounts on this system")
    around = '{before}\n"$@" && code=0 || code=$?\n{after}\nexit $code'
    return lambda before, after="": (*unshare, "bash", "-ec", around.format(before=before, after=after), "bash")
