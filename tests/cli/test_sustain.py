"""`--sustain` and the prices from the command line to the run file, on the fake device's virtual clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.store import load

CASE = "null/infer@fake/float32"


def run(fake: str, *arguments: str) -> CompletedProcess[str]:
    return run_torchmark("run", CASE, *arguments, environment={"TORCHMARK_FAKE": fake})


def result(fake: str, *arguments: str) -> dict[str, Any]:
    done = run(fake, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["results"][0]
    return found


def test_a_case_is_kept_going_for_the_whole_time_and_distinguished_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    done = run("stream=drift,step=0.02", "--sustain", "2m", "--out", str(out))
    assert done.returncode == 0, done.stderr
    reported = " ".join(done.stdout.split())
    both_ends = r"[\d.]+ ms a step in the first [\d.]+ s, [\d.]+ ms in the last"
    change = r"\d+% slower \(\d+% to \d+%\), \+\d+% a minute; no meter shows why"
    assert re.search(rf"Sustained null/infer: {both_ends}: {change}", reported)
    stored = load(out)
    (found,) = stored.results
    assert found.estimate is not None
    assert found.sustained is not None
    assert (stored.header.sustain_s, len(found.processes)) == (120.0, 1)
    assert "--sustain 120s" in stored.header.command
    assert found.estimate.duration_s == pytest.approx(120, rel=0.02)
    assert found.sustained.interval[0] > 0.5  # 3 in 10,000 a step, over thousands of steps
    assert found.sustained.slope > 0.1


def test_short_steps_find_room_for_the_whole_time() -> None:
    found = result("stream=iid2,step=0.0002", "--sustain", "20s")
    seen = found["estimate"]
    assert seen["sample_count"] < 20_000
    assert seen["duration_s"] == pytest.approx(20, rel=0.05)
    assert seen["block_size"] > 1
    assert seen["center_s"] == pytest.approx(0.0002, rel=0.02)


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("stream=throttle,step=0.01,meter=hot", "throttled"),
        ("stream=throttle,step=0.01,meter=steady", "slowing"),
        ("stream=throttle,step=0.01", "slowing"),
        ("stream=iid2,step=0.01,meter=hot", "stable"),
    ],
)
def test_a_slow_down_is_throttling_only_where_a_meter_says_so(script: str, verdict: str) -> None:
    found = result(script, "--rigor", "quick", "--budget", "20s")
    seen = found["estimate"]
    assert seen["verdict"] == verdict
    if verdict == "throttled":
        assert seen["evidence"][0] == "the device held its clock down: heat"
        assert "the clock fell from 2.00 to" in seen["evidence"][1]
        assert seen["metered"]["temperature_c"] == [50.0, 95.0]
    if "meter" in script:
        assert seen["metered"]["mean_w"] == pytest.approx(50.0)


def test_the_cause_of_a_slow_down_that_lasts_is_named() -> None:
    found = result("stream=throttle,step=0.5,meter=hot", "--sustain", "5m")
    assert found["estimate"]["verdict"] == "throttled"
    assert "the clock fell from 2.00 to 1.6" in found["sustained"]["cause"]
    assert found["sustained"]["last_s"] / found["sustained"]["first_s"] == pytest.approx(1.2, abs=0.02)


def test_what_is_kept_going_is_not_limited_in_another_way(capsys: pytest.CaptureFixture[str]) -> None:
    for other in (("--steps", "5"), ("--budget", "1m")):
        assert cli.main(["run", CASE, "--sustain", "2m", *other]) == 2
        assert "--sustain sets how long each case runs. Leave --steps and --budget out" in capsys.readouterr().err
    assert cli.main(["run", CASE, "--sustain", "2m", "--dry-run"]) == 0
    assert "1 case, 1 process each, run for 2.00 min each" in capsys.readouterr().out


def test_prices_are_for_a_run_and_for_what_is_stored_but_never_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.jsonl"
    script = "stream=iid2,step=0.01,meter=steady"
    done = run(script, "--steps", "200", "--out", str(out), "--price-per-hour", "2.75")
    assert done.returncode == 0, done.stderr
    reported = " ".join(done.stdout.split())
    assert "Cost at your prices: 2.75 an hour of this machine No result has items that could be counted." in reported
    assert "2.75" not in out.read_text()
    example = str(Path(__file__).parents[2] / "docs" / "example-run.jsonl")
    for command in (["show", example], ["show", example, "--details"], ["report", example, "--format", "md"]):
        assert cli.main([*command, "--price-per-hour", "2.75", "--watt-price", "0.4"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "0.400 a kilowatt-hour" in text
        assert "for a million" in text
    assert cli.main(["show", "m1-chips", "--price-per-hour", "1"]) == 2
    assert "a price is that of one" in capsys.readouterr().err
    assert cli.main(["show", str(out), "--price-per-hour", "-1"]) == 2
