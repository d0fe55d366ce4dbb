"""`torchmark report --leaderboard`: a folder of run files becomes one page, through the real entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchmark.cli import main
from torchmark.errors import EXIT_COULD_NOT_RUN, EXIT_FINE, EXIT_USAGE
from torchmark.store import RunWriter


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, full_run, make_header) -> Path:
    """The same results from three machines, and a file that is none."""
    path = tmp_path / "private" / "our-runs"
    for number in range(3):
        machine = replace(full_run.header.machine, cpu=f"Processor {number}")
        header = make_header(full_run.header.cases, id=f"run{number}", machine=machine)
        with RunWriter.create(path / f"{number}.jsonl", header) as writer:
            for result in full_run.results:
                writer.finished(result)
    (path / "broken.jsonl").write_bytes(b"nonsense")
    return path


def test_a_folder_becomes_a_page_that_does_not_say_where_it_lay(folder: Path) -> None:
    assert main(["report", "--leaderboard", str(folder), "-o", "board.html"]) == EXIT_FINE
    page = Path("board.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("Processor 2", "our-runs", "4 run files", "15 results", "broken.jsonl"))
    assert "private" not in page


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_text_goes_to_stdout_with_the_places_that_were_asked_for(
    folder: Path,
    form: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["report", "--leaderboard", str(folder), "--format", form, "--top", "2"]) == EXIT_FINE
    text = capsys.readouterr().out
    assert text.count("Processor") > 4
    if form == "json":
        assert {len(board["places"]) for board in json.loads(text)["boards"]} == {0, 2}


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
sys.exit(" ".join({{"torch", "numpy", "scipy", "altair", "vl_convert"}} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
