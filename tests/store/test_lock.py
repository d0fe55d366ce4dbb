"""Two runs never measure over each other unless both agreed to it, and a dead run blocks no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchmark.errors import LockedError, StoreError
from torchmark.store import machine_lock
from torchmark.store.files import lock_path

HOLD = """
import sys
from pathlib import Path
from torchmark.store import machine_lock
with machine_lock(path=Path(sys.argv[1]), share=sys.argv[2] == "share"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_run(path: Path, share: bool = False) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", HOLD, str(path), "share" if share else "alone"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_second_run_is_reported_who_measures_and_what_to_do(path: Path) -> None:
    with another_run(path) as other, pytest.raises(LockedError) as raised, machine_lock(path=path):
        pass
    assert f"process {other.pid}, since 20" in raised.value.cause
    assert "--wait" in raised.value.fix
    assert "--share" in raised.value.fix


def test_the_lock_is_free_again_afterwards(path: Path) -> None:
    for _ in range(2):
        with machine_lock(path=path):
            pass


def test_a_killed_run_leaves_no_obstacle(path: Path) -> None:
    with another_run(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        with machine_lock(path=path):
            pass


def test_waiting_ends_when_the_other_run_does(path: Path) -> None:
    seen: list[str] = []
    with another_run(path) as other:
        assert other.stdin

        def begin(holder: str) -> None:
            seen.append(holder)
            threading.Timer(0.1, other.stdin.close).start()

        with machine_lock(wait=True, path=path, on_wait=begin):
            assert [holder.partition(",")[0] for holder in seen] == [f"process {other.pid}"]


def test_only_runs_that_both_share_go_side_by_side(path: Path) -> None:
    with another_run(path, share=True):
        with machine_lock(share=True, path=path):
            pass
        with pytest.raises(LockedError), machine_lock(path=path):
            pass
    with another_run(path), pytest.raises(LockedError), machine_lock(share=True, path=path):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    reader, writer = os.pipe()
    with machine_lock(path=path):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with machine_lock(path=path):
            pass
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_a_lock_file_with_nonsense_in_it_still_locks(path: Path) -> None:
    path.write_bytes(b"\xff nonsense")
    with machine_lock(path=path):
        path.write_bytes(b"[[[")
        with pytest.raises(LockedError, match="left no name"), machine_lock(path=path):
            pass


@pytest.mark.parametrize(
    "content", [b"chapter 1", b'{"pid": 1}' + bytes(5000), b'["pid"]', b'{"pid": 1, "since": "", "my": 1}']
)
def test_a_file_that_was_named_by_mistake_keeps_its_content(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with machine_lock(path=path):
        pass
    assert path.read_bytes() == content


def test_an_unusable_lock_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path, tmp_path / "link", tmp_path / "missing" / "lock"):
        with pytest.raises(StoreError, match="TORCHMARK_LOCK"), machine_lock(path=path):
            pass


def test_the_lock_lies_outside_the_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHMARK_LOCK", raising=False)
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    assert tmp_path not in lock_path().parents
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "mine"))
    assert lock_path() == tmp_path / "mine"
