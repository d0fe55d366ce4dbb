"""A RUN is, in this order: a file, `last`, a publication or one of its machines, a label, the beginning of an id."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmark.errors import UsageError
from torchmark.store import RunWriter, find_run, load_runs, new_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_header) -> Path:
    """A folder with two runs, one of them with the label of a publication."""
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    for name, second, label in (("ab12", 9, "m1-chips"), ("cd34", 3, "quiet")):
        header = make_header(id=name, created=f"2026-11-15T10:00:0{second}Z", label=label)
        RunWriter.create(new_path(header), header).close()
    return tmp_path


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("last", ["ab12"]),
        ("quiet", ["cd34"]),
        ("cd", ["cd34"]),
        ("m1-chips/xeon gold", ["m1-chips/Xeon Gold"]),
        ("intel-vs-m2", ["intel-vs-m2/M2 Max CPU", "intel-vs-m2/Intel i9 CPU"]),
    ],
)
def test_what_a_person_means_comes_as_runs(text: str, ids: list[str]) -> None:
    assert [run.header.id for run in load_runs(text)] == ids


@pytest.mark.usefixtures("home")
def test_a_publication_comes_before_a_label_and_after_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_header
) -> None:
    assert len(load_runs("m1-chips")) == 6
    monkeypatch.chdir(tmp_path)
    RunWriter.create(Path("m1-chips"), make_header(id="here")).close()
    assert [run.header.id for run in load_runs("m1-chips")] == ["here"]


@pytest.mark.usefixtures("home")
def test_what_is_published_has_no_file() -> None:
    with pytest.raises(UsageError, match="no run file"):
        find_run("m1-chips")
    with pytest.raises(UsageError, match="no run file"):
        find_run("m1-chips/M1 GPU")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "words"),
    [("m1-chip", "Did you mean 'm1-chips'"), ("simple-add/nothing", "Valid: AMD Ryzen"), ("zz", "Valid: .*simple-add")],
)
def test_publications_are_among_the_candidates(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_runs(text)


@pytest.mark.usefixtures("home")
def test_a_figure_that_was_printed_twice_is_one_result_unless_both_are_wanted() -> None:
    assert [len(run.results) for run in load_runs("m1-chips")] == [4, 5, 5, 3, 3, 3]
    assert [len(run.results) for run in load_runs("m1-chips", repeats=True)] == [6, 7, 7, 3, 3, 3]
