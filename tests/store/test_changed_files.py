"""A run file that other programs replace, cut, move, delete or write to: no announced result is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from injection.changes import appended_to, cut, moved, replaced
from torchmark.errors import StoreError
from torchmark.store import RunWriter, files, load
from torchmark.store import writer as writing
from torchmark.store.lines import Checksum, Ended, Started
from torchmark.store.reader import Account, examine

CASES = tuple(f"mlp/infer:batch={size}@cpu/float32" for size in (1, 2, 3))

HOLD = """
import sys
from torchmark.store import RunWriter
writer = RunWriter.resume(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def edited(path: Path) -> None:
    path.with_suffix(".copy").write_text("something else\n")
    path.with_suffix(".copy").replace(path)


def edited_in_place(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"mlp", b"MLP"))


def folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def folder_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


CHANGES = (replaced, edited, edited_in_place, appended_to, cut, moved, Path.unlink, folder_moved, folder_deleted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run.jsonl"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_nothing_that_was_written_is_lost(
    path: Path, make_header, make_result, change: Callable[[Path], object], after: int
) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        for number, text in enumerate(CASES):
            if number == after:
                change(path)
            writer.write(Started(text, 0))
            writer.finished(make_result(text))
        if after == len(CASES):
            change(path)
    assert [result.case.text for result in load(path).results] == [*CASES]
    assert writer.read() == load(path)
    assert isinstance([*examine(path)][-1][1], Checksum)


@pytest.mark.parametrize("number", [2, 6, 7])
def test_an_edit_while_a_line_is_synchronised_is_noticed(
    path: Path, make_header, make_result, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls, usual = [0], os.fsync

    def fsync(descriptor: int) -> None:
        usual(descriptor)
        calls[0] += 1
        if calls[0] == number:
            edited_in_place(path)

    with RunWriter.create(path, make_header(CASES)) as writer:
        monkeypatch.setattr(os, "fsync", fsync)
        for text in CASES:
            writer.write(Started(text, 0))
            writer.finished(make_result(text))
        writer.write(Ended())
    assert [result.case.text for result in load(path).results] == [*CASES]
    assert isinstance([*examine(path)][-1][1], Checksum)


def test_an_edit_that_leaves_size_and_time_as_they_were_is_noticed_at_the_end(
    path: Path, make_header, make_result
) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        for text in CASES:
            writer.finished(make_result(text))
        about = path.stat()
        edited_in_place(path)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert [result.case.text for result in load(path).results] == [*CASES]
    assert isinstance([*examine(path)][-1][1], Checksum)


def test_another_programs_version_is_kept_and_named(path: Path, make_header, make_result) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        edited(path)
        writer.finished(make_result(CASES[0]))
    aside = path.with_name("run.jsonl.aside-1")
    assert aside.read_text() == "something else\n"
    assert str(aside) in writer.notes[0]


def test_a_file_that_cannot_be_restored_is_an_error_and_the_results_are_still_there(
    path: Path, make_header, make_result
) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        writer.finished(make_result(CASES[0]))
        folder_moved(path)
        path.parent.write_text("a file where the folder was")
        with pytest.raises(StoreError, match="cannot write"):
            writer.finished(make_result(CASES[1]))
    assert [result.case.text for result in writer.read().results] == [CASES[0], CASES[1]]
    assert writer.notes == []


@pytest.mark.parametrize("part", [0, 100])
@pytest.mark.parametrize("change", [replaced, edited, edited_in_place, appended_to, cut, Path.unlink])
def test_a_full_disk_changes_no_file_and_the_next_line_restores_everything(
    path: Path, make_header, make_result, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], part: int
) -> None:
    def write_part(descriptor: int, data: bytes) -> int:
        os.write(descriptor, data[:part])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunWriter.create(path, make_header(CASES)) as writer:
        writer.finished(make_result(CASES[0]))
        change(path)
        before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
        with monkeypatch.context() as full:
            full.setattr(writing, "write_all", write_part)
            full.setattr(files, "write_all", write_part)
            for _ in range(2):
                with pytest.raises(StoreError, match="No space left"):
                    writer.finished(make_result(CASES[1]))
        assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before
        assert writer.notes == []
        writer.finished(make_result(CASES[2]))
    assert [result.case.text for result in load(path).results] == [*CASES]
    aside = path.with_name("run.jsonl.aside-1")
    assert not aside.exists() or aside.read_bytes() == before["run.jsonl"]
    assert aside.exists() == (change in (edited, edited_in_place, appended_to))


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_left_alone(path: Path, make_header, make_result, put: Callable[[Path], object]) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        path.unlink()
        put(path)
        with pytest.raises(StoreError, match="no longer a file"):
            writer.finished(make_result(CASES[0]))
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert writer.notes == []


def test_a_process_is_written_at_once_with_its_samples(path: Path, make_header, make_result, make_estimate) -> None:
    newest = make_result(CASES[0], processes=(make_estimate(samples_s=(1.0, 2.0)),))
    with RunWriter.create(path, make_header(CASES)) as writer:
        writer.measured(0, newest, newest)
    (account,) = (part for _, part in examine(path) if isinstance(part, Account))
    assert account.result.case.text == CASES[0]
    assert {process: tuple(values) for process, values in account.samples.items()} == {0: (1.0, 2.0)}


@contextlib.contextmanager
def another_writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_is_refused_and_reported_who_the_first_is(path: Path, make_header) -> None:
    RunWriter.create(path, make_header(CASES)).close()
    with another_writer(path) as other:
        before = path.read_bytes()
        with pytest.raises(StoreError) as raised:
            RunWriter.resume(path)
        assert path.read_bytes() == before
        assert "is being written by" in raised.value.cause
        if Path("/proc/locks").exists():
            assert f"process {other.pid}" in raised.value.cause
        assert load(path).header.cases == CASES  # readers are not refused
        other.send_signal(signal.SIGKILL)
        other.wait()
    RunWriter.resume(path).close()


def test_a_file_that_another_writer_has_taken_over_is_left_to_it(path: Path, make_header, make_result) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        replaced(path)
        with another_writer(path):
            before = path.read_bytes()
            with pytest.raises(StoreError, match="is being written by"):
                writer.finished(make_result(CASES[0]))
            assert path.read_bytes() == before


def test_restoring_leaves_no_descriptor_open(path: Path, make_header, make_result) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("only Linux lists descriptors")
    with RunWriter.create(path, make_header(CASES)) as writer:
        before = len([*folder.iterdir()])
        for change in (replaced, edited, moved, cut):
            change(path)
            writer.finished(make_result(CASES[0]))
        assert len([*folder.iterdir()]) == before
        replaced(path)
        with another_writer(path):
            for _ in range(3):
                with pytest.raises(StoreError, match="is being written by"):
                    writer.finished(make_result(CASES[0]))
        assert len([*folder.iterdir()]) == before


def test_a_file_that_is_replaced_while_it_is_opened_is_not_cut(
    path: Path, make_header, make_result, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter.create(path, make_header(CASES)) as writer:
        writer.finished(make_result(CASES[0]))
    longer = path.read_bytes()
    usual = writing.claim

    def claim(descriptor: int, place: Path) -> None:
        usual(descriptor, place)
        path.with_suffix(".copy").write_bytes(longer[: longer.index(b"\n") + 1])
        path.rename(path.with_suffix(".former"))
        path.with_suffix(".copy").rename(path)

    monkeypatch.setattr(writing, "claim", claim)
    with pytest.raises(StoreError, match="replaced by another program"):
        RunWriter.resume(path)
    assert path.with_suffix(".former").read_bytes() == longer
