"""`torchmark report` makes files that can be sent around, says where they are, and harms no other file."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from torchmark.cli import main

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-run.jsonl"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, next to a folder with one run."""
    home = tmp_path / "runs"
    home.mkdir()
    (home / "one.jsonl").write_bytes(EXAMPLE.read_bytes())
    monkeypatch.setenv("TORCHMARK_HOME", str(home))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_the_latest_run_becomes_a_page_here_and_says_so(folder: Path, capsys: Capture) -> None:
    assert main(["report"]) == 0
    page = folder / "torchmark-report.html"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    output = capsys.readouterr()
    assert output.out == ""
    assert "wrote torchmark-report.html (" in output.err
    assert "kB)" in output.err
    assert [path.name for path in folder.iterdir()] == [page.name]


def test_its_own_pages_are_made_anew_and_other_files_are_left_alone(folder: Path, capsys: Capture) -> None:
    assert main(["report", "-o", "page.html"]) == 0
    assert main(["report", "-o", "page.html"]) == 0
    precious = folder / "run.jsonl"
    precious.write_bytes(EXAMPLE.read_bytes())
    assert main(["report", "-o", "run.jsonl", "--format", "html"]) == 2
    assert "--force" in capsys.readouterr().err
    assert precious.read_bytes() == EXAMPLE.read_bytes()
    assert main(["report", "-o", "run.jsonl", "--format", "svg", "--force"]) == 0
    assert precious.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("card.svg", b"<svg"),
        ("card.png", b"\x89PNG"),
        ("results.csv", b"run,"),
        ("run.md", b"-"),
        ("page.HTML", b"<!doc"),
    ],
)
def test_the_name_of_the_file_reports_the_format(folder: Path, name: str, beginning: bytes) -> None:
    assert main(["report", "last", "-o", name]) == 0
    assert (folder / name).read_bytes().startswith(beginning)


@pytest.mark.parametrize("name", ["page.html", "card.svg", "card.png"])
def test_a_page_or_card_of_ours_is_replaced(folder: Path, name: str) -> None:
    for _ in range(2):
        assert main(["report", "last", "-o", str(folder / name)]) == 0


def test_the_mark_in_a_picture_leaves_it_whole(folder: Path) -> None:
    assert main(["report", "last", "-o", "card.png"]) == 0
    rest, chunks = (folder / "card.png").read_bytes()[8:], []
    while rest:
        length = int.from_bytes(rest[:4], "big")
        chunks.append(rest[4 : 8 + length])
        assert int.from_bytes(rest[8 + length : 12 + length], "big") == zlib.crc32(chunks[-1])
        rest = rest[12 + length :]
    assert [chunk[:4] for chunk in chunks[:2]] == [b"IHDR", b"tEXt"]
    assert chunks[-1] == b"IEND"


@pytest.mark.parametrize("name", ["report.pdf", "run.jsonl", "card.jpeg"])
def test_an_unknown_ending_is_refused_and_the_known_ones_are_listed(folder: Path, name: str, capsys: Capture) -> None:
    assert main(["report", "last", "-o", name]) == 2
    assert ".html, .md, .csv, .json, .svg, .png" in capsys.readouterr().err
    assert not (folder / name).exists()
    assert main(["report", "last", "-o", name, "--format", "csv"]) == 0
    assert (folder / name).read_bytes().startswith(b"run,")


def test_a_file_without_an_ending_is_a_page(folder: Path) -> None:
    assert main(["report", "last", "-o", "page"]) == 0
    assert (folder / "page").read_bytes().startswith(b"<!doc")


def test_text_goes_to_stdout(capsys: Capture) -> None:
    assert main(["report", "last", "m1-chips", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len({row["run"] for row in rows}) == 7
    assert main(["report", "last", "--format", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["run"]["id"] == "10a3e21e"
    assert main(["report", "last", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_markdown_begins_with_what_the_run_says(capsys: Capture) -> None:
    assert main(["report", "last", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("- ")
    assert "| case |" in text


def test_the_baseline_may_be_a_published_machine(folder: Path, capsys: Capture) -> None:
    assert main(["report", "last", "--baseline", "m1-chips/M1 CPU"]) == 0
    assert "Compared with M1 CPU" in (folder / "torchmark-report.html").read_text(encoding="utf-8")
    assert main(["report", "last", "--baseline", "m1-chips"]) == 2
    assert "'m1-chips/M1 CPU'" in capsys.readouterr().err


def test_a_card_is_of_one_run(capsys: Capture) -> None:
    assert main(["report", "last", "m1-chips", "--format", "svg"]) == 2
    assert "a card shows one run, not 7" in capsys.readouterr().err


def test_a_damaged_file_is_named_and_the_others_are_reported(folder: Path, capsys: Capture) -> None:
    (folder / "bad.jsonl").write_text("{}", encoding="utf-8")
    assert main(["report", "last", "bad.jsonl"]) == 0
    assert "left out: bad.jsonl is not a run file" in capsys.readouterr().err
    assert main(["report", "bad.jsonl"]) == 4


def test_a_place_that_cannot_be_written_is_an_error_with_a_fix(capsys: Capture) -> None:
    assert main(["report", "-o", "no/such/folder/page.html"]) == 4
    error = capsys.readouterr().err
    assert "cannot write no/such/folder/page.html" in error
    assert "--out" in error


def test_the_page_needs_neither_torch_nor_samples(folder: Path) -> None:
    code = "import sys; from torchmark.cli import main; assert main(['report', 'last']) == 0; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert not {"torch", "transformers", "diffusers", "pandas"} & set(done.stdout.split())
