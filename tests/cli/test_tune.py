"""`torchmark tune` from the command line to what it prints and keeps, with real processes."""

from __future__ import annotations

import json

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.store import find_run, load


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tune nowhere", "unknown workload 'nowhere'"),
        ("tune mlp --keep colour", "unknown setting 'colour'"),
        ("tune mlp --also colour=red", "unknown setting 'colour'"),
        ("tune mlp --also batch", "'batch' is not NAME=VALUE"),
        ("tune mlp -p batch=1,2", "that is 2 cases"),
        ("tune mnist-ddp-mlp/train@cpu/float32+workers=2", "takes 2 workers"),
        ("tune mlp/infer@cpu/float32+layout=channels-last", "unknown option of mlp/infer 'layout'"),
        ("tune mlp/train@cpu/float32+gradients=no-grad", "unknown option of mlp/train 'gradients'"),
        ("tune resnet50/infer@cpu/float32+layout=channels-first", "Did you mean 'channels-last'?"),
        ("fit null", "unknown parameter of null 'batch'"),
        ("fit bert-encode --vary size", "size of bert-encode is no number of things"),
        ("fit mlp --limit much", "'much' is not an amount of memory. Write 8GiB or 500MB"),
        ("fit mlp --limit 0GiB", "is not an amount of memory"),
        ("fit mlp --limit 5", "'5' has no unit. Write 5GiB, 5MB or 5B"),
        ("fit mlp --dtype float31", "unknown dtype 'float31'"),
    ],
)
def test_mistakes_are_reported_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert cli.main([*arguments.split(), "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_a_plan_lists_what_is_tried_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "resnet50", "--keep", "threads", "--also", "batch=64", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resnet50/infer@cpu/float32"
    assert "resnet50/infer@cpu/bfloat16+layout=channels-last" in lines
    assert "resnet50/infer@cpu/float32+compile" in lines
    assert "resnet50/infer:batch=64@cpu/float32" in lines
    assert not any("threads" in line for line in lines)


def test_where_nothing_is_to_gain_it_says_so_and_keeps_a_sound_run() -> None:
    done = run_torchmark("tune", "null/infer@fake/float32", "--label", "nothing")
    assert done.returncode == 0, done.stderr
    assert "Nothing that was tried is faster than the default beyond chance." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    run = load(find_run("nothing"))
    assert [result.status for result in run.results] == ["ok"]
    assert run.header.command.startswith("torchmark tune null/infer@fake/float32")
    assert run.tuning
    assert run.tuning.winner == run.tuning.default == run.results[0].case
    assert run_torchmark("check", "nothing").returncode == 0


def test_a_default_that_fails_ends_it_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "fault=oom,after=0")
    done = run_torchmark("tune", "null/infer@fake/float32")
    assert done.returncode == 3
    assert "itself ended as oom: out of memory: MemoryError" in done.stderr


@pytest.mark.thorough
def test_real_processes_take_turns_and_the_winner_can_be_run_again() -> None:
    """One that is forked and one that needs an interpreter of its own: both have right numbers."""
    done = run_torchmark(
        "tune", "mlp", "-p", "batch=2", "--keep", "dtype,compile,threads,gradients", "--also", "wait=passive",
        "--device", "cpu", "--label", "small", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_case = dict(zip(found["run"]["cases"], found["results"], strict=True))
    base, passive = (f"mlp/infer:batch=2@cpu/float32{more}" for more in ("", "+wait=passive"))
    assert by_case.keys() == {base, passive}
    measured = [result for result in by_case.values() if result["status"] != "skipped"]  # on a busy machine, maybe
    assert {result["status"] for result in measured} == {"ok"}
    assert all(result["numeric"]["error"] <= result["numeric"]["tolerance"] for result in measured)
    assert by_case[base]["settings"]["omp_wait_policy"] is None
    if by_case[passive] in measured:
        assert by_case[passive]["settings"]["omp_wait_policy"] == "passive"
        assert found["tuned"]["relative"][base] == 1
    assert run_torchmark("check", "small").returncode == 0
    assert run_torchmark("run", found["tuned"]["winner"], "--dry-run").returncode == 0


def test_a_budget_that_is_up_before_the_default_is_measured_is_one_line() -> None:
    done = run_torchmark("tune", "null/infer@fake/float32", "--budget", "1ms")
    assert done.returncode == 3, done.stderr
    assert "Give it more time with --budget" in done.stderr
