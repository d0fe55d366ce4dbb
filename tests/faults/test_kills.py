"""A run that is killed at any moment loses nothing that it had announced, and leaves nobody behind."""

from __future__ import annotations

import pytest


def test_kills_at_random_moments(faults):
    tally = faults.kill_many("fake", 5, seed=1, beside=2)
    assert tally.held, tally
    assert tally.injected >= 5


@pytest.mark.usefixtures("gate")
def test_a_lost_result_and_an_orphan_would_be_noticed(faults, tmp_path, start, wait_until):
    """The judge is no rubber stamp: it counts what is missing in a file, and processes that carry the mark."""
    out = tmp_path / "run.jsonl"
    text = "faulty/infer:fault=wait@fake/float32"
    process = start("run", text, "--steps", "5", "--out", str(out))
    wait_until(lambda: out.exists() and "started" in out.read_text())
    assert faults.alive(str(tmp_path)) >= 2
    process.kill()
    process.communicate()
    assert faults.inspect(out, [text]) == (1, [])
    assert faults.inspect(out, []) == (0, [])
    assert faults.left_behind(str(tmp_path))[0] == 0
    out.write_text("nonsense\n")
    assert faults.inspect(out, [])[1]
