"""`torchmark replicate` from the command line to the run file, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.publications import names
from torchmark.store import load

COMMAND = [sys.executable, "-m", "torchmark"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("m1-chip", "unknown publication 'm1-chip'. Did you mean 'm1-chips'?"),
        ("m1-chips --scale 0", "is not a share between 0 and 1"),
        ("m1-chips --scale 1.5", "is not a share between 0 and 1"),
        ("m1-chips --budget soon", "is not a time"),
        ("m1-chips --device cdua", "unknown device 'cdua'. Did you mean 'cuda'?"),
    ],
)
def test_a_mistake_is_one_line_that_helps(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["replicate", *arguments.split()])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert words in err
    assert err.count("\n") == 1


def test_a_dry_run_lists_every_case_once_and_keeps_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["replicate", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines if "@cpu" in line} == set(names())
    assert len(set(lines)) == len(lines)
    assert not (tmp_path / "home").exists()


def test_a_replication_is_printed_kept_shown_and_compared(tmp_path: Path) -> None:
    """With a budget that only the cheapest row fits into: all the others must say why."""
    out = tmp_path / "run.jsonl"
    arguments = ["replicate", "m1-chips", "--scale", "0.002", "--budget", "4s", "--device", "cpu", "--out", str(out)]
    done = run_torchmark(*arguments)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = [line for line in done.stdout.splitlines() if line.strip().startswith(("M1", "RTX", "Xeon"))]
    assert len(rows) == 29  # as many as the publication has figures
    assert all(
        any(word in row for word in ("~", "not asked for", "would take", "its turn", "timeout", "-")) for row in rows
    )
    stored = load(out, samples=True)
    mlp = next(result for result in stored.results if result.case.workload == "mlp")
    assert (mlp.status, mlp.case.protocol) == ("ok", "as-published")
    assert mlp.estimate is not None
    assert len(mlp.estimate.samples_s) == 20
    assert "--scale 0.002" in stored.header.command
    shown = run_torchmark("show", str(out), "--format", "json")
    assert json.loads(shown.stdout)["results"][0]["case"]["protocol"] == "as-published"
    compared = run_torchmark("compare", str(out), "m1-chips/M1 CPU")
    assert "mlp/infer:outputs=512" in compared.stdout


@pytest.mark.thorough
def test_an_interrupt_keeps_what_there_is(tmp_path: Path) -> None:
    import signal
    import time

    out = tmp_path / "run.jsonl"
    arguments = ["replicate", "m1-chips", "--scale", "0.01", "--budget", "5m", "--device", "cpu", "--out", str(out)]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (out.exists() and '"started","case":"resnet50' in out.read_text()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "~" in printed
    statuses = {result.case.workload: result.status for result in load(out).results}
    assert (statuses["mlp"], statuses["resnet50"]) == ("ok", "interrupted")
