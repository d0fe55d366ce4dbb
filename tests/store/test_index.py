"""What the index of a folder promises: it says what the files say, even if they or it were changed or damaged."""

from __future__ import annotations

import os
import shutil
import threading
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmark.analyze.machines import Entry
from torchmark.errors import StoreError
from torchmark.store import RunWriter, index
from torchmark.store.index import Folder, read_folder

TEXTS = ("mlp/infer@cpu/float32", "mlp/infer:batch=64@cpu/float32", "mlp/infer@cpu/bfloat16+compile+per-step")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def write(folder: Path, make_header, make_result):
    def written(name: str, *texts: str, center_s: float = 1e-3, **changes: object) -> Path:
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        with RunWriter.create(path, make_header(texts, id=name, **changes)) as writer:
            for text in texts:
                writer.finished(make_result(text, center_s))
        return path

    return written


def everything(folder: Path) -> tuple[list[Entry], Folder]:
    entries, found = read_folder(folder, Entry)
    return sorted(entries, key=lambda entry: (entry.file, entry.case)), found


def kept(home: Path) -> Path:
    (path,) = (home / "index").iterdir()
    return path


def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    names: list[str] = []
    load = index.load
    monkeypatch.setattr(index, "load", lambda path: (names.append(path.name), load(path))[1])
    return names


def test_an_entry_reports_what_a_ranking_needs(folder: Path, write) -> None:
    write("ab12", TEXTS[2], center_s=2e-3, label="nightly")
    (entry,), found = everything(folder)
    assert (found.files, found.extracts, found.problems) == (1, 1, ())
    assert entry.group == ("mlp/infer", 1, "bfloat16", "+per-step")
    assert (entry.setting, entry.case, entry.label, entry.file) == ("+compile", TEXTS[2], "nightly", "ab12.jsonl")
    assert (entry.center_s, entry.items, entry.unit, entry.status) == (2e-3, 128, "sample", "ok")
    assert (entry.cpu, entry.model, entry.torch) == ("Intel Xeon Platinum 8370C",) * 2 + ("2.13.0+cpu",)


def test_entries_of_one_group_come_together(folder: Path, write) -> None:
    for name in "abc":
        write(name, *TEXTS)
    boards = [entry.group for entry in read_folder(folder, Entry)[0]]
    assert len(boards) == 9
    assert sum(here != before for here, before in zip(boards[1:], boards, strict=False)) == 2


def test_only_what_changed_is_read_again(folder: Path, write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLED_NS", -(10**12))
    for name in "abc":
        write(name, TEXTS[0])
    everything(folder)
    names = read_files(monkeypatch)
    assert len(everything(folder)[0]) == 3
    assert names == []
    write("b", *TEXTS)
    write("d", TEXTS[0])
    (folder / "a.jsonl").unlink()
    entries, _ = everything(folder)
    assert sorted(names) == ["b.jsonl", "d.jsonl"]
    assert [entry.file[0] for entry in entries] == ["b", "b", "b", "c", "d"]


def test_a_file_of_the_same_size_and_time_with_other_content_is_read_again(folder: Path, write) -> None:
    path = write("a", TEXTS[0], center_s=1e-3)
    everything(folder)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"center_s":0.001', b'"center_s":0.002'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert everything(folder)[0][0].center_s == 2e-3


def test_a_file_that_was_written_just_now_may_change_within_a_tick(
    folder: Path, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED_NS", 10**12)  # however late this machine is
    write("a", TEXTS[0])
    everything(folder)
    names = read_files(monkeypatch)
    everything(folder)
    assert names == ["a.jsonl"]


def test_what_cannot_be_read_is_reported_and_hides_nothing(folder: Path, write, home: Path) -> None:
    write("fine", TEXTS[0])
    (folder / "broken.jsonl").write_bytes(b"nonsense\n")
    (folder / "folder.jsonl").mkdir()
    large = write("large", TEXTS[0])
    large.write_bytes(large.read_bytes().replace(b'"version":1,', b'"version":%d,' % 10**30))
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "notes.txt").write_text("not a run")
    for _ in range(2):
        entries, found = everything(folder)
        assert [entry.file for entry in entries] == ["fine.jsonl"]
        assert found.files == 3
        assert [problem.split()[0].rstrip(",:") for problem in found.problems] == ["broken.jsonl", "large.jsonl"]
    assert str(folder) not in "".join(found.problems)
    assert kept(home).is_file()


@pytest.mark.skipif(os.name != "posix", reason="other systems know no such names")
def test_a_file_whose_name_is_no_text_is_one_as_well(folder: Path, write) -> None:
    write("a", TEXTS[0]).rename(folder / os.fsdecode(b"\xff.jsonl"))
    (folder / os.fsdecode(b"\xfe.jsonl")).write_bytes(b"nonsense")
    for _ in range(2):
        entries, found = everything(folder)
        assert [entry.file for entry in entries] == ["\\udcff.jsonl"]
        assert len(found.problems) == 1


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_what_is_no_folder_is_an_error_that_helps(tmp_path: Path, missing: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="Name a folder of run files"):
        read_folder(tmp_path / missing, Entry)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"nonsense" * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:500]),
        lambda path: path.write_bytes(path.read_bytes()[:400] + bytes(path.stat().st_size - 400)),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"mlp", b"MLP")),
        lambda path: path.chmod(0o666),
    ],
    ids=["nonsense", "torn", "zeros", "empty", "changed", "open"],
)
def test_a_broken_index_is_made_anew(folder: Path, write, home: Path, harm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLED_NS", -(10**12))
    for name in "abc":
        write(name, *TEXTS)
    before = everything(folder)
    harm(kept(home))
    assert everything(folder) == before
    names = read_files(monkeypatch)
    assert everything(folder) == before
    assert names == []


def test_where_no_index_can_be_kept_the_answer_is_the_same(folder: Path, write, home: Path) -> None:
    write("a", *TEXTS)
    home.write_bytes(b"a file where the folder should be")
    assert len(everything(folder)[0]) == 3


def test_writers_at_the_same_time_do_no_harm(folder: Path, write) -> None:
    for name in "abcdefgh":
        write(name, *TEXTS)
    answers: list[int] = []

    def ask() -> None:
        answers.extend(len(everything(folder)[0]) for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [24] * 20


changes = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from(["write", "write", "append", "remove", "corrupt", "touch", "rename"]),
    st.integers(1, 3),
)


@settings(max_examples=25)
@given(steps=st.lists(st.lists(changes, max_size=4), min_size=1, max_size=5), settled=st.booleans())
def test_after_any_changes_the_index_equals_a_fresh_one(
    folder: Path, write, home: Path, steps: list[list[tuple[str, str, int]]], settled: bool
) -> None:
    for path in (*folder.iterdir(), *(home / "index").glob("*")):
        path.unlink()
    clock = count(1_000_000_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SETTLED_NS", -(10**12) if settled else 10**12)
        for step in steps:
            for name, change, number in step:
                apply(folder, write, name, change, number, next(clock))
            remembered = everything(folder)
            (home / "index").mkdir(parents=True, exist_ok=True)
            (home / "index").rename(home / "aside")
            assert everything(folder) == remembered
            shutil.rmtree(home / "index", ignore_errors=True)
            (home / "aside").rename(home / "index")


def apply(folder: Path, write, name: str, change: str, number: int, now: int) -> None:
    path = folder / f"{name}.jsonl"
    if change == "write":
        write(name, *TEXTS[:number], center_s=number * 1e-3)
    elif path.exists():
        content = path.read_bytes()
        {
            "append": lambda: path.write_bytes(content + b'{"kind":"spread","process_spread":0.%d}\n' % number),
            "remove": path.unlink,
            "corrupt": lambda: path.write_bytes(content[: len(content) // number - 1] + b"?\n"),
            "touch": path.touch,
            "rename": lambda: path.rename(folder / f"{name}{number}.jsonl"),
        }[change]()
    if path.exists():
        os.utime(path, (now, now))  # a test is quicker than the tick of a file's clock


def test_a_file_that_fails_the_check_gives_nothing_and_is_not_checked_again(
    folder: Path, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("good", TEXTS[0])
    write("bad", TEXTS[0])
    monkeypatch.setattr(index, "SETTLED_NS", -(10**12))
    checked: list[str] = []

    def check(path: Path) -> str:
        checked.append(path.name)
        return "it is forged" if path.name == "bad.jsonl" else ""

    for _ in range(2):
        entries, found = read_folder(folder, Entry, check=check)
        assert [entry.file for entry in entries] == ["good.jsonl"]
        assert found.problems == ("bad.jsonl: it is forged",)
    assert sorted(checked) == ["bad.jsonl", "good.jsonl"]
    assert len(list(read_folder(folder, Entry)[0])) == 2  # what was not checked is another question
