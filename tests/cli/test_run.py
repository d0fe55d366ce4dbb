"""`torchmark run` from the command line to the run file: with the fake device, real workers, and every kind of end."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.cli.run import RunOptions, make_plan, plan_rest
from torchmark.library import Measurement, make_header
from torchmark.measure.machine import Surveyed
from torchmark.records import DeviceInfo, Machine, Run, parse_case
from torchmark.store import load

COMMAND = [sys.executable, "-m", "torchmark"]
CASES = [f"null/infer@fake/float32+threads={number}" for number in (1, 2, 3)]
SLEEPING = "stream=iid2,step=0.02,sleep=on"


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "stream=iid2,step=0.01")


def run(*arguments: str, fake: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_torchmark(*arguments, environment={"TORCHMARK_FAKE": fake} if fake else None)


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TORCHMARK_FAKE": SLEEPING}
    return subprocess.Popen(
        [*COMMAND, "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def fails(capsys: pytest.CaptureFixture[str], code: int, words: str, *arguments: str) -> None:
    got = cli.main(arguments)
    out, err = capsys.readouterr()
    assert (got, out) == (code, ""), err
    assert err.startswith("torchmark: error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("mpl", "unknown workload 'mpl'. Did you mean 'mlp'?"),
        ("mlp --device cdua", "unknown device 'cdua'. Did you mean 'cuda'?"),
        ("mlp --device cuda:x", "does not say which cuda device"),
        ("mlp --dtype float23", "unknown dtype 'float23'. Did you mean 'float"),
        ("mlp --mode trian", "unknown mode of mlp 'trian'. Did you mean 'train'?"),
        ("mlp -p bach=16", "unknown parameter of mlp 'bach'. Did you mean 'batch'?"),
        ("mlp -p batch=0", "batch=0 is not possible for mlp"),
        ("mlp -p batch=many", "batch=many is not possible for mlp"),
        ("mlp -p batch", "Write NAME=VALUE"),
        ("tensor-add -p variant=residnt", "unknown variant of tensor-add 'residnt'. Did you mean 'resident'?"),
        ("mlp --compile maybe", "unknown compile 'maybe'"),
        ("mlp --transfer per-stpe", "unknown transfer 'per-stpe'. Did you mean 'per-step'?"),
        ("mlp --option layout", "Write NAME=VALUE, such as --option layout=channels-last"),
        ("mlp --option layuot=x", "unknown option 'layuot'. Did you mean 'layout'?"),
        ("mlp --option mode=train", "unknown option 'mode'. Valid: attention, bind, gradients, isa, layout"),
        ("resnet50 --way layout=sideways", "unknown layout of resnet50 'sideways'"),
        ("--way layout=contiguous", "--option needs a workload"),
        ("mlp --threads 0", "threads cannot be 0"),
        ("mlp --threads two", "'two' is not a number of threads"),
        ("mlp --budget 0", "must be above 0"),
        ("mlp --budget soon", "'soon' is not a time. Write 30s, 5m or 1h30m"),
        ("mlp --budget " + "1" * 60 + "x", "is not a time"),
        ("mlp --target 0", "is not a share between 0 and 1"),
        ("mlp --target 200%", "is not a share between 0 and 1"),
        ("mlp --steps 0", "0 is not in the range"),
        ("mlp --rigor utmost", "'utmost' is not one of"),
        ("mlp --budgett 5s", "Did you mean '--budget'"),
        ("mlp --suite quick", "a suite and workloads were both named"),
        ("--dtype bfloat16", "--dtype needs a workload"),
        ("--workers 2", "--workers needs a workload"),
        ("mlp --mode train --workers 2 --nodes 2", "--nodes and --rendezvous belong together"),
        ("mlp --mode train --workers 2 --rendezvous a:1", "--nodes and --rendezvous belong together"),
        ("mlp --mode train --workers 2 --nodes 2 --rendezvous a", "'a' is not HOST:PORT"),
        ("mlp --mode train --workers 3 --nodes 2 --rendezvous a:1", "cannot be divided among 2 nodes"),
        ("mlp/infer@cpu/float99", "unknown dtype 'float99'"),
        ("mlp/infer@cpu", "is not a case"),
        ("mlp/infer@gpu/float32", "a case cannot be on 'gpu'"),
        ("mlp --label last", "'last' already means another run"),
        ("mlp --label last~1", "'last~1' already means another run"),
        ("mlp --label m1-chips", "'m1-chips' already means another run"),
        ("mlp --label rtx3090", "'rtx3090' already means another run"),
        ("mlp --label a/b", "'a/b' means a file"),
        ("mlp --label a.jsonl", "'a.jsonl' means a file"),
        ("mlp --label=", "'' is not a label"),
        ("mlp --label=-x", "'-x' is not a label"),
        ("--resume last", "there are no runs"),
        ("--resume last mlp", "--resume continues with the cases and settings of that run"),
        ("--resume last --watch", "--resume continues with the cases and settings of that run"),
    ],
)
def test_wrong_input_is_one_line_with_the_cure_and_nothing_is_started(capsys, tmp_path, arguments, words) -> None:
    fails(capsys, 2, words, "run", *arguments.split())
    assert not (tmp_path / "home").exists()


def test_a_time_is_read_as_people_write_it(capsys) -> None:
    for text in ("90", "90s", "1.5m", "1m30s", "90000ms", "0.025h"):
        assert cli.main(["run", CASES[0], "--budget", text, "--dry-run"]) == 0
        assert "1 case, at least 3 processes each, at most 90.0 s in all" in capsys.readouterr().out


def test_a_dry_run_shows_the_cases_and_measures_nothing(capsys, tmp_path: Path) -> None:
    assert cli.main(["run", *CASES, "--budget", "3m", "--dry-run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == CASES
    assert "3 cases, at least 3 processes each" in out[-1]
    assert not (tmp_path / "home").exists()


def test_a_device_that_is_not_here_is_one_line_and_exit_4() -> None:
    done = run("run", "null", "--device", "xpu:7")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("torchmark: error: ")
    assert done.stderr.count("\n") == 1
    assert "xpu" in done.stderr


def test_gpu_is_the_accelerator_that_is_here_or_a_usage_error(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(*names: str) -> Callable[..., Surveyed]:
        infos = [DeviceInfo(name, "") for name in names]
        return lambda devices, _: Surveyed(
            Machine(
                "", 1, 1, 1, "", "", devices=tuple(each for each in infos if devices is None or each.name in devices)
            )
        )

    monkeypatch.setattr("torchmark.measure.machine.survey", machine("cpu"))
    fails(capsys, 2, "no accelerator was found here", "run", "mlp", "--device", "gpu")
    monkeypatch.setattr("torchmark.measure.machine.survey", machine("xpu:0", "xpu:1", "cpu"))
    assert cli.main(["run", "mlp", "--device", "cpu,gpu", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["mlp/infer@xpu:0/float32", "mlp/infer@cpu/float32"]


def test_a_home_that_cannot_be_made_is_answered_with_another_place(capsys, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    for place, cause in (("/proc/nowhere", "No such file"), (str(tmp_path / "file"), "A part of the path is a file")):
        monkeypatch.setenv("TORCHMARK_HOME", place)
        assert cli.main(["run", CASES[0]]) == 4
        reported = capsys.readouterr().err
        assert cause in reported
        assert "or set TORCHMARK_HOME to a folder that you can write to" in reported
        assert "--resume" not in reported


def test_few_steps_that_were_asked_for_are_not_blamed_on_the_budget(capsys) -> None:
    assert cli.main(["run", CASES[0], "--steps", "5"]) == 0
    reported = " ".join(capsys.readouterr().out.split())
    assert "5 samples, as asked for with --steps: too few for a reliable ±" in reported
    assert "budget" not in reported


def test_an_output_place_that_cannot_be_used_is_exit_4_and_harms_no_file(capsys, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    fails(capsys, 4, "File exists", "run", CASES[0], "--out", str(tmp_path / "file"))
    fails(capsys, 4, "cannot write", "run", CASES[0], "--out", str(tmp_path / "file" / "run.jsonl"))
    fails(capsys, 2, "is a directory", "run", CASES[0], "--out", str(tmp_path))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b'{"kind":"header","schema":99,"header":{}}\n', b"\xff\xfe\n"])
@pytest.mark.parametrize("arguments", [["run", "--resume"], ["show"]], ids=["resume", "show"])
def test_a_file_that_is_no_run_is_exit_4_and_stays_as_it_is(capsys, tmp_path, content, arguments) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    fails(capsys, 4, str(path), *arguments, str(path))
    assert path.read_bytes() == content


def test_a_run_is_measured_kept_and_found_again_by_its_label(capsys, tmp_path: Path) -> None:
    assert cli.main(["run", *CASES[:2], "--budget", "120s", "--label", "nightly"]) == 0
    out, err = capsys.readouterr()
    assert "null/infer" in out
    assert "grade" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out + err
    assert err.count("process 3 ") == 2  # without a terminal, every process leaves one line
    (path,) = (tmp_path / "home").glob("*.jsonl")
    stored = load(path)
    assert stored.header.cases == tuple(CASES[:2])
    assert [(result.status, len(result.processes)) for result in stored.results] == [("ok", 3)] * 2
    assert cli.main(["show", "nightly"]) == 0
    assert capsys.readouterr().out == out
    words = stored.header.command.split()
    assert cli.main([*words[1:], "--dry-run"]) == 0  # the command in the file is one that works
    assert capsys.readouterr().out.splitlines()[:2] == CASES[:2]


@pytest.mark.parametrize("format_", ["table", "md", "csv", "json", "jsonl"])
def test_every_format_goes_to_stdout_alone(capsys, format_: str) -> None:
    assert cli.main(["run", CASES[0], "--steps", "5", "--format", format_]) == 0
    out = capsys.readouterr().out
    if format_ == "json":
        (result,) = json.loads(out)["results"]
        assert (result["status"], result["estimate"]["sample_count"]) == ("ok", 5)
        assert result["estimate"]["center_s"] == pytest.approx(0.01, rel=0.1)
    elif format_ == "jsonl":
        assert all(json.loads(line) for line in out.splitlines())
    elif format_ == "csv":
        (row,) = csv.DictReader(io.StringIO(out))
        assert row["status"] == "ok"
    elif format_ == "md":
        assert "|---" in out or "| ---" in out or "|:--" in out
    else:
        assert "null/infer" in out


def test_steps_are_done_however_long_they_take(capsys) -> None:
    assert cli.main(["run", *CASES, "--steps", "7", "--dry-run"]) == 0
    assert "3 cases, 1 process each, 7 steps each" in capsys.readouterr().out
    done = run("run", *CASES[:2], "--steps", "60", "--format", "json", fake=SLEEPING)
    assert [result["estimate"]["sample_count"] for result in json.loads(done.stdout)["results"]] == [60, 60]


def test_a_run_in_which_nothing_succeeds_is_exit_3_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "run.log"  # a name that workers must not print into
    done = run("run", *CASES[:2], "--out", str(out), fake="fault=crash")
    assert done.returncode == 3
    assert done.stdout.count("crashed") >= 2
    assert "SIGABRT" in done.stdout
    assert "Traceback" not in done.stderr
    assert "Full errors and output of the workers: " in done.stderr
    assert [result.status for result in load(out).results] == ["crashed", "crashed"]


def test_a_suite_that_goes_on_leaves_out_what_does_not_fit_and_named_cases_are_tried(full_run) -> None:
    cases = tuple(map(parse_case, CASES))
    for workloads, is_guarded in (((), True), (("null",), False)):
        options = RunOptions(workloads=workloads, dry_run=True)
        plan = make_plan(cases, options)
        header = make_header(Measurement(plan, full_run.header.machine), None)
        rest, _ = plan_rest(Run(header), options)
        assert plan.guarded == header.guarded == rest.guarded == is_guarded


def test_a_run_of_another_machine_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    assert run("run", CASES[0], "--rigor", "quick", "--out", str(out)).returncode == 0
    lines = out.read_text().splitlines(keepends=True)
    elsewhere = lines[0].replace('"logical_cores":', '"logical_cores":9')
    out.write_text(elsewhere)
    done = run("run", "--resume", str(out))
    assert done.returncode == 2
    assert "started on another machine: its logical_cores was 9" in done.stderr
    assert out.read_text() == elsewhere


def test_a_complete_run_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    assert run("run", CASES[0], "--budget", "10s", "--out", str(out)).returncode == 0
    before = out.read_bytes()
    done = run("run", "--resume", str(out))
    assert done.returncode == 0
    assert "This run is complete; nothing was measured." in done.stderr
    assert out.read_bytes() == before
    more = run("run", "--resume", str(out), "--budget", "5s")
    assert more.returncode == 0, more.stderr
    assert len(load(out).results[0].processes) > 3


def test_no_figure_is_lost_when_the_budget_ends(tmp_path: Path) -> None:
    """The first process takes most of the budget, the second one does not fit any more."""
    out = tmp_path / "run.jsonl"
    done = run("run", CASES[0], "--budget", "4s", "--out", str(out), fake="stream=iid2,step=0.5,sleep=on")
    assert done.returncode == 0, done.stderr
    assert load(out).results[0].status == "ok"


def test_two_runs_do_not_measure_at_once_unless_they_want_to(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    process = start(*CASES, "--steps", "10000", "--out", str(out))
    wait_until(out.exists)
    refused = run("run", CASES[0], "--steps", "3")
    assert refused.returncode == 4
    assert f"process {process.pid}" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not list((tmp_path / "home").glob("*.jsonl"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert run("run", CASES[0], "--steps", "3").returncode == 0


def test_watching_prints_a_line_a_second_until_stopped(tmp_path: Path) -> None:
    process = start(CASES[0], "--watch")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, heard = process.communicate(timeout=60)
    assert (process.returncode, heard) == (0, "")
    assert all(line.startswith(f"{CASES[0]} · ") and "steps/s" in line for line in lines)
    assert not list((tmp_path / "home").glob("*.jsonl"))


def test_only_one_case_can_be_watched(capsys) -> None:
    fails(capsys, 2, "--watch shows one case, not 2", "run", *CASES[:2], "--watch")


def test_real_work_is_measured_and_its_numbers_checked() -> None:
    done = run("run", "mlp", "matmul", "--tiny", "--device", "cpu", "--budget", "6s", "--format", "json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["status"] for result in results] == ["ok", "ok"]
    for result in results:
        assert result["estimate"]["low_s"] <= result["estimate"]["center_s"] <= result["estimate"]["high_s"]
        assert result["numeric"]["error"] <= result["numeric"]["tolerance"]
        assert result["work"]["flops"] > 0
