"""`torchmark fit` from the command line to what it prints and keeps: real processes that run out of real memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_torchmark
from msgspec.structs import replace

from torchmark import cli
from torchmark.studies import fit


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 << 30), ("8 GB", 8 * 10**9), ("1.5g", 15 * 10**8), ("512MiB", 512 << 20), ("7B", 7)]
)
def test_memory_is_written_as_people_write_it(text: str, size: int) -> None:
    from torchmark.cli import options

    assert options.SIZE.convert(text, None, None) == size


def test_the_largest_that_fits_is_found_by_processes_that_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "PROBE_SETTINGS", replace(fit.PROBE_SETTINGS, budget_s=0.1, min_time_s=0.02))
    limit, step = 700 << 20, 1024
    done = run_torchmark(
        "fit", "tensor-add", "--vary", "size", "--device", "cpu", "--limit", "700MiB", "--step", f"{step}",
        "--label", "small",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is the largest that fits into 700 MiB" in done.stdout
    assert "Memory = " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    shown = run_torchmark("show", "small", "--format", "json")
    reported = json.loads(shown.stdout)
    results, fitting = reported["results"], reported["run"]["fitting"]
    sizes = {result["case"]["params"].get("size", 12288): result for result in results}
    largest = fitting["largest"]
    assert (fitting["parameter"], fitting["limit_bytes"], fitting["bound"]) == ("size", limit, "memory")
    assert sizes[largest]["memory"]["host_peak_bytes"] <= limit
    too_large = min(size for size, result in sizes.items() if result["status"] == "oom")
    assert 0 < too_large - largest <= step
    assert largest >= 2048
    assert len(sizes[largest]["processes"]) == fitting["tries"] == 3  # it fitted each time, and not by luck
    assert run_torchmark("check", "small").returncode == 0


def test_more_memory_than_there_is_cannot_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", "mlp", "--limit", "64TiB"]) == 2
    assert "65,536.0 GiB is more than the" in capsys.readouterr().err


def test_the_starter_file_can_be_fitted(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "my-model"]) == 0
    assert cli.main(["fit", "my_model.py", "--dry-run"]) == 0
    assert "batch from 1 to at most 1048576" in capsys.readouterr().out


def test_what_a_model_prints_is_in_the_log_and_not_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(
        "import sys, torch\n"
        "def build(batch: int = 1):\n"
        "    print('chatter', file=sys.stderr)\n"
        "    return torch.nn.Linear(8, 8), torch.ones(batch, 8)\n"
    )
    done = run_torchmark(
        "fit", "talk.py", "--device", "cpu", "--most", "1", "--budget", "1s", "--out", "run.jsonl", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "chatter" not in done.stdout + done.stderr
    assert "chatter" in (tmp_path / "run.jsonl.log").read_text()
