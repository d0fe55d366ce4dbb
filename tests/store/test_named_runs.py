"""A RUN is, in this order: a file, `last`, a publication or one of its machines, a label, the beginning of an id."""

from __future__ import annotations

import re
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
        ("3090", ["RTX 3090 (m1-chips, simple-add)"]),
        ("rtx3090", ["RTX 3090 (m1-chips, simple-add)"]),
        ("M1 CPU", ["M1 CPU (m1-chips, simple-add)"]),
        ("apple m1 cpu", ["M1 CPU (m1-chips, simple-add)"]),
        ("m1 ultra cpu", ["m1-chips/M1 Ultra CPU"]),
        ("v100", ["V100 (apple-silicon-bert, simple-add)"]),
        ("1080Ti", ["simple-add/Server GPU GTX1080Ti"]),
        ("overheat", ["simple-add/Server GPU (Overheat)"]),
        ("server cpu", ["simple-add/Server CPU"]),
        ("5218R", ["m1-chips/Xeon Gold"]),
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
    with pytest.raises(UsageError, match="no run file"):
        find_run("3090")


@pytest.mark.usefixtures("home")
def test_a_label_comes_before_a_published_machine(make_header) -> None:
    header = make_header(id="ef56", label="3090")
    RunWriter.create(new_path(header), header).close()
    assert [run.header.id for run in load_runs("3090")] == ["ef56"]


@pytest.mark.usefixtures("home")
def test_every_candidate_of_an_ambiguous_name_can_be_typed() -> None:
    with pytest.raises(UsageError, match="'M1' could be 8 published machines") as caught:
        load_runs("M1")
    listed = re.findall(r"'([^']+)'", caught.value.cause)[1:]
    assert len(listed) == 8
    for name in listed:
        (run,) = load_runs(name)
        assert run.results


@pytest.mark.usefixtures("home")
def test_machines_of_several_publications_have_all_their_figures() -> None:
    (joined,) = load_runs("3090")
    parts = [run for name in ("m1-chips/RTX3090", "simple-add/Nvidia 3090 GPU") for run in load_runs(name)]
    assert list(joined.results) == [result for run in parts for result in run.results]
    assert joined.header.cases == tuple(result.case.text for result in joined.results)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m1-chip", "Did you mean 'm1-chips'"),
        ("simple-add/nothing", "Valid: AMD Ryzen"),
        ("zz", "Valid: .*simple-add"),
        ("M1 Utra GPU", "Did you mean 'M1 Ultra GPU'"),
    ],
)
def test_publications_are_among_the_candidates(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_runs(text)


@pytest.mark.usefixtures("home")
def test_a_figure_that_was_printed_twice_is_one_result_unless_both_are_wanted() -> None:
    assert [len(run.results) for run in load_runs("m1-chips")] == [4, 5, 5, 3, 3, 3]
    assert [len(run.results) for run in load_runs("m1-chips", repeats=True)] == [6, 7, 7, 3, 3, 3]
