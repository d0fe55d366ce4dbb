"""`torchmark report --leaderboard`: a folder of run files becomes one page, through the real entry point."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run_torchmark

from torchmark.cli import main
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_USAGE


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


CASES = ("null/infer@fake/float32", "null/infer@fake/bfloat16")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real run of a played device."""
    path = tmp_path_factory.mktemp("measured") / "run.jsonl"
    script = {"TORCHMARK_FAKE": "stream=iid2,step=0.01,seed=1", "TORCHMARK_LOCK": str(path.with_suffix(".lock"))}
    assert run_torchmark("run", *CASES, "--out", str(path), environment=script).returncode == 0
    return path.read_bytes()


def sealed(data: bytes) -> bytes:
    """The lines of a run file with the checksum that belongs to them."""
    *lines, _ = data.splitlines(keepends=True)
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join([*lines, json.dumps({"kind": "checksum", "sha256": digest}).encode(), b"\n"])


@pytest.fixture
def folder(tmp_path: Path, measured: bytes) -> Path:
    """The same results from three machines, and a file that is none."""
    path = tmp_path / "private" / "our-runs"
    path.mkdir(parents=True)
    for number in range(3):
        data = re.sub(rb'"cpu":"[^"]*"', b'"cpu":"Processor %d"' % number, measured, count=1)
        data = re.sub(rb'"id":"[^"]*"', b'"id":"run%d"' % number, data, count=1)
        (path / f"{number}.jsonl").write_bytes(sealed(data))
    (path / "broken.jsonl").write_bytes(b"nonsense")
    return path


def board_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["report", "--leaderboard", str(folder), "--format", "json"]) == EXIT_FINE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_machines_are_ranked_by_board_and_overall(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = board_of(folder, capsys)
    assert [len(board["places"]) for board in found["boards"]] == [3, 3]
    assert {place["grade"] for board in found["boards"] for place in board["places"]} == {"good"}
    assert len(found["overall"]["tasks"]) == 2
    assert [each["rank"] for each in found["overall"]["standings"]] == [1, 1, 1]


@pytest.mark.parametrize("reseal", [False, True])
def test_a_forged_file_is_left_out_and_named(folder: Path, capsys: pytest.CaptureFixture[str], reseal: bool) -> None:
    """Twice as fast as it was: with the checksum of the true run, and with one of its own."""
    path = folder / "1.jsonl"
    forged = re.sub(rb'("estimate":\{"center_s":)([0-9.e-]+)', rb"\g<1>0.005", path.read_bytes())
    assert forged != path.read_bytes()
    path.write_bytes(sealed(forged) if reseal else forged)
    assert main(["check", str(path)]) == 1
    capsys.readouterr()
    for _ in range(2):  # read from the file, then from the index
        found = board_of(folder, capsys)
        assert not [place for board in found["boards"] for place in board["places"] if place["cpu"] == "Processor 1"]
        (problem,) = [text for text in found["source"]["problems"] if text.startswith("1.jsonl")]
        assert problem.startswith("1.jsonl: it fails the check: line ")


def test_a_contended_row_is_not_ranked_among_the_undisturbed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "1.jsonl"
    data = re.sub(rb'"other_cpu_share":[^,}]*', b'"other_cpu_share":0.4', path.read_bytes())
    path.write_bytes(sealed(re.sub(rb'"verdict":"[a-z]*"', b'"verdict":"contended"', data)))
    for board in board_of(folder, capsys)["boards"]:
        assert {place["cpu"] for place in board["places"]} == {"Processor 0", "Processor 2"}
        (apart,) = board["disturbed"]
        assert (apart["cpu"], apart["rank"], apart["grade"]) == ("Processor 1", None, "poor: contended")
    assert main(["report", "--leaderboard", str(folder), "--format", "md"]) == EXIT_FINE
    assert "poor: contended" in capsys.readouterr().out


def test_a_folder_becomes_a_page_that_does_not_name_it(folder: Path) -> None:
    assert main(["report", "--leaderboard", str(folder), "-o", "board.html"]) == EXIT_FINE
    page = Path("board.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("Processor 2", "4 run files", "6 results", "broken.jsonl"))
    assert "private" not in page
    assert "our-runs" not in page


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_text_goes_to_stdout_with_the_places_that_were_asked_for(
    folder: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--leaderboard", str(folder), "--format", form, "--top", "2"]) == EXIT_FINE
    text = capsys.readouterr().out
    assert text.count("Processor") >= 4
    if form == "json":
        assert {len(board["places"]) for board in json.loads(text)["boards"]} == {2}


def test_changed_files_show_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["report", "--leaderboard", str(folder), "--format", "csv"]
    main(command)
    assert "Processor 1" in capsys.readouterr().out
    (folder / "1.jsonl").unlink()
    main(command)
    assert "Processor 1" not in capsys.readouterr().out


def test_a_folder_with_nothing_to_rank_is_an_error_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["report", "--leaderboard", "runs"]) == EXIT_USAGE
    assert "no run files in runs" in capsys.readouterr().err
    (tmp_path / "runs" / "broken.jsonl").write_bytes(b"nonsense")
    assert main(["report", "--leaderboard", "runs"]) == EXIT_COULD_NOT_RUN
    assert "broken.jsonl is not a run file" in capsys.readouterr().err
    assert not Path("torchmark-leaderboard.html").exists()


def test_torch_and_the_drawing_of_charts_are_not_imported(folder: Path) -> None:
    program = f"""
import sys
from torchmark.cli import main
assert main(["report", "--leaderboard", {str(folder)!r}, "-o", "board.html"]) == 0
sys.exit(" ".join({{"torch", "altair", "vl_convert"}} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
