"""Commands that are killed at any moment lose nothing that they announced, and leave nothing behind."""

from __future__ import annotations

import signal
import time

import pytest

import faults
from injection import kills


# How long each takes undisturbed, or so long that it announces something.
@pytest.mark.parametrize(
    ("name", "takes_s", "count"),
    [
        ("run", 1.5, 4),
        ("fit", 3.0, 2),
        ("export", 0.4, 3),
        ("report", 1.5, 2),
        *(
            pytest.param(name, takes_s, 5, marks=pytest.mark.thorough)
            for name, takes_s in (
                ("ab", 15.0),
                ("tune", 10.0),
                ("limits", 12.0),
                ("replicate", 10.0),
                ("fleet run", 5.0),
            )
        ),
    ],
)
def test_kills_at_random_moments(name, takes_s, count):
    command = next(command for command in kills.COMMANDS if command.name == name)
    for number in range(count):
        tally = kills.kill(command, takes_s, 1, number)
        assert tally.held, tally
        assert tally.injected == 1


@pytest.mark.usefixtures("gate")
def test_a_lost_result_and_an_orphan_would_be_noticed(tmp_path, start, wait_until):
    """The judge is no rubber stamp: it counts processes that carry the mark."""
    out = tmp_path / "run.jsonl"
    process = start("run", "faulty/infer:fault=wait@fake/float32", "--steps", "5", "--out", str(out))
    wait_until(lambda: out.exists() and "started" in out.read_text())
    assert faults.alive(str(tmp_path)) >= 2
    process.kill()
    process.communicate()
    assert faults.left_behind(str(tmp_path))[0] == 0


@pytest.mark.parametrize("name", ["run", "ab", "fit", "fleet run", "export", "report"])
def test_an_announced_result_that_is_not_kept_would_be_noticed(name):
    said = {
        "run": "[1/1] null/infer@fake/float32: 1 ms",
        "ab": "pair 1: no interval yet",
        "fit": "number 1: 1 MB, 2 item/s",
        "fleet run": "A1: null/infer@fake/float32: 1 ms",
        "export": "Wrote export.jsonl",
        "report": "wrote report.html",
    }
    command = next(command for command in kills.COMMANDS if command.name == name)
    with kills.trial() as place:
        (place.folder / "heard").write_text("")
        assert kills.faults_of(place, command) == ([], [])
        (place.folder / "heard").write_text(said[name] + "\n")
        (lost,), unreadable = kills.faults_of(place, command)
        assert lost
        assert not unreadable
        (place.temporary / "left").touch()
        assert place.leftovers() == ["tmp/left"]


def test_an_interrupt_during_the_imports_prints_no_traceback(start):
    for delay_s in (0.06, 0.09, 0.12, 0.15):
        process = start("runs")
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        assert "Traceback" not in said or "torchmark" not in said, said
