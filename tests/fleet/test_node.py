"""A job on its node: what an earlier job has measured is gone on with or kept, and never deleted."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchmark.errors import FleetError, StoreError
from torchmark.fleet.folder import Fleet, FleetFolder, JobOutcome, Order, Task, Terms
from torchmark.fleet.jobs import Observer
from torchmark.fleet.local import Local
from torchmark.fleet.node import arguments
from torchmark.records import Result, RunHeader
from torchmark.store import RunWriter, load
from torchmark.store.lines import Started

CASE = "mlp/infer@cpu/float32"


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    place = FleetFolder(tmp_path / "fleet")
    place.prepare()
    return place


@pytest.fixture
def run_file(folder: FleetFolder, make_header: Callable[..., RunHeader], make_result: Callable[..., Result]) -> Path:
    """What an earlier job has measured."""
    path = folder.path / "A1.jsonl"
    with RunWriter.create(path, make_header((CASE,))) as writer:
        writer.write(Started(CASE, 0))
        writer.finished(make_result(CASE))
    return path


def command_of(run_file: Path, nodes: int = 1, index: int = 0) -> list[str]:
    """The arguments of `torchmark run` on a node."""
    order = Order(("mlp",), ("--wait",), str(run_file), nodes)
    return arguments(order, run_file.parent / "jobs" / "A1.order", index)


def asides(run_file: Path) -> list[Path]:
    return sorted(run_file.parent.glob("A1.jsonl.aside-*"))


def test_a_run_that_has_begun_goes_on(run_file: Path) -> None:
    before = run_file.read_bytes()
    assert command_of(run_file) == ["--resume", str(run_file), "--wait"]
    assert run_file.read_bytes() == before


@pytest.mark.parametrize("content", [None, b""])
def test_where_nothing_was_measured_a_run_begins(folder: FleetFolder, content: bytes | None) -> None:
    path = folder.path / "A1.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert command_of(path) == ["mlp", "--out", str(path)]
    assert not path.exists()
    assert not asides(path)


@pytest.mark.parametrize("place", [0, 5, -1], ids=["header", "version", "result"])
def test_a_damaged_file_is_kept_under_another_name(
    run_file: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run_file.read_bytes().splitlines(keepends=True)
    target = 2 if place < 0 else 0
    lines[target] = lines[target][: max(place, 9)] + b"\x00" + lines[target][max(place, 9) + 1 :]
    damaged = b"".join(lines)
    for number in (1, 2):
        run_file.write_bytes(damaged)
        assert command_of(run_file) == ["mlp", "--out", str(run_file)]
        assert not run_file.exists()
        assert [path.name for path in asides(run_file)] == [f"A1.jsonl.aside-{each + 1}" for each in range(number)]
    assert all(path.read_bytes() == damaged for path in asides(run_file))
    assert f"kept as {asides(run_file)[0]}" in capsys.readouterr().err


def test_a_file_of_a_newer_torchmark_is_left_alone(run_file: Path) -> None:
    newer = run_file.read_bytes().replace(b'"schema":2', b'"schema":99', 1)
    run_file.write_bytes(newer)
    with pytest.raises(StoreError, match=r"schema is 99, newer than .*Upgrade torchmark"):
        command_of(run_file)
    assert run_file.read_bytes() == newer


@pytest.mark.parametrize("how", ["mode", "owner", "link"])
def test_a_file_that_others_may_have_written_is_not_gone_on_with(run_file: Path, tmp_path: Path, how: str) -> None:
    if how == "owner" and os.geteuid():
        pytest.skip("only root can give files away")
    if how == "link":
        run_file.rename(tmp_path / "elsewhere.jsonl")
        run_file.symlink_to(tmp_path / "elsewhere.jsonl")
    elif how == "owner":
        os.chown(run_file, 65534, -1)
    else:
        run_file.chmod(0o666)
    before = run_file.read_bytes()
    with pytest.raises(FleetError, match="is a link" if how == "link" else "other user"):
        command_of(run_file)
    assert run_file.read_bytes() == before


FAILING: dict[str, int] = {}  # path -> the error with which opening it fails, however it is opened


def fail_to_open(event: str, details: tuple[object, ...]) -> None:
    if event == "open" and FAILING and (number := FAILING.get(str(details[0]))):
        raise OSError(number, os.strerror(number))


sys.addaudithook(fail_to_open)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOSPC, errno.EMFILE], ids=os.strerror)
def test_a_file_that_cannot_be_read_just_now_is_left_alone(
    run_file: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setitem(FAILING, str(run_file), number)
        with pytest.raises(StoreError, match=os.strerror(number)):
            command_of(run_file)
    assert run_file.read_bytes() == before


def test_something_else_in_the_place_of_a_run_file_is_left_alone(folder: FleetFolder) -> None:
    path = folder.path / "A1.jsonl"
    path.symlink_to(path)
    with pytest.raises(StoreError, match="cannot use"):
        command_of(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="not a file"):
        command_of(path)


def test_nodes_that_start_together_anew_keep_what_they_had(folder: FleetFolder, run_file: Path) -> None:
    task = Task("A1", "A", ("n1", "n2"), ("mlp",), "A1")
    before = load(run_file)
    assert command_of(run_file, nodes=2)[-1] == str(run_file)
    assert not run_file.exists()
    assert load(folder.path / "A1.jsonl.aside-1") == before
    folder.keep(Fleet("", Terms("local"), (task,)))
    folder.keep_outcome(task, JobOutcome("done"))
    (standing,) = Observer(folder, Local()).look([task])
    assert "A1.jsonl.aside" in standing.reason
