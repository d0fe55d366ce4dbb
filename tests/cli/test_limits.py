"""`torchmark limits` from the command line to the run file, and what later runs make of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from command_line import run_torchmark
from msgspec.structs import replace

from torchmark import cli
from torchmark.cli.execution import hint_at_limits
from torchmark.report import render
from torchmark.store import find_run, keep_limits, load
from torchmark.studies import limits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--dtype float23", "unknown dtype 'float23'. Did you mean 'float"),
        ("--device cdua", "unknown device 'cdua'. Did you mean 'cuda'?"),
        ("--budget soon", "'soon' is not a time"),
    ],
)
def test_wrong_input_is_reported_before_anything_starts(capsys, own_place: Path, arguments: str, words: str) -> None:
    assert cli.main(["limits", *arguments.split()]) == 2
    assert words in capsys.readouterr().err
    assert not own_place.exists()


def test_a_dry_run_shows_what_is_measured_first(capsys) -> None:
    assert cli.main(["limits", "--device", "cpu", "--dtype", "float32,bfloat16", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "matmul/infer:size=256@cpu/bfloat16\n" in out
    assert "then larger products as long as they pay, within 50 s" in out


def test_the_hint_about_limits_keeps_to_the_width_of_the_terminal(capsys, monkeypatch, full_run) -> None:
    for columns in (80, 50):
        monkeypatch.setenv("COLUMNS", str(columns))
        hint_at_limits(full_run)
        reported = capsys.readouterr().err
        assert max(map(len, reported.splitlines())) <= columns
        assert reported.split()[-2:] == ["torchmark", "limits"]


def test_limits_are_a_run_like_any_other_and_later_results_are_held_against_them(
    capsys, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small sizes in a short time: what is found is low, but it is found, kept and used."""
    monkeypatch.setattr(limits, "SETTINGS", replace(limits.SETTINGS, budget_s=0.2, min_time_s=0.05))
    done = run_torchmark("limits", "--device", "cpu", "--dtype", "float32", "--tiny", "--budget", "22s")
    assert done.returncode == 0, done.stderr
    for word in ("arithmetic", "float32", "FLOP/s", "triad", "GB/s", "round trip", "FLOP/byte"):
        assert word in done.stdout
    (path,) = own_place.glob("*.jsonl")
    found = load(path)
    assert found.header.open_ended
    assert not found.problems
    assert {result.status for result in found.results} == {"ok"}
    assert not (own_place / "limits").exists()  # tiny sizes find no limits
    assert cli.main(["check", str(path)]) == 0
    keep_limits(found.header.machine, found.header.machine.devices[0], path)
    later = run_torchmark(
        "run", "matmul", "tensor-add", "--tiny", "--device", "cpu", "--budget", "5s", "--rigor", "quick"
    )
    assert later.returncode == 0, later.stderr
    assert "Of this machine's peak, by what bounds it" in later.stdout
    capsys.readouterr()
    assert cli.main(["show", "last", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["workload"] for row in rows} == {"matmul", "tensor-add"}
    assert all(float(row["peak_share"]) > 0 and row["bound"] for row in rows)
    assert {result.peak.limits for result in load(find_run("last")).results if result.peak} == {found.header.id}


def test_limits_that_were_not_found_are_held_against_no_one(own_place: Path) -> None:
    done = run_torchmark("limits", "--device", "cpu", "--dtype", "float32", "--budget", "1s")
    assert done.returncode == 3
    assert "Not kept: the search is not complete." in done.stdout
    assert not (own_place / "limits").exists()


def test_what_failed_and_what_is_slow_is_said(make_result, make_estimate, make_header) -> None:
    from torchmark.records import Limiting, Run, Work

    def product(dtype: str, seconds: float) -> object:
        timed = make_estimate(seconds)
        return make_result(
            f"matmul/infer:size=256@cpu/{dtype}",
            estimate=timed,
            processes=(timed,),
            work=Work(1, "product", 3.3e7, 8e5),
            params={"size": 256, "batch": 1, "rows": 0},
        )

    dead = make_result(
        "matmul/infer:size=256@cpu/bfloat16",
        status="crashed",
        reason="the worker was ended by SIGILL during first step",
        estimate=None,
    )
    results = (product("float32", 1e-4), dead, product("float16", 2e-2))
    text = render(Run(make_header(), results, limiting=Limiting(True)), "table", 100)
    assert "330 GFLOP/s" in text
    assert "no fast path: 200 times slower than float32" in text
    assert "SIGILL" in text


@pytest.fixture
def measure_limits(monkeypatch: pytest.MonkeyPatch, make_result, make_estimate):
    """`torchmark limits` on workers that take a millisecond, while other programs take a share of the processor that
    depends on the case."""
    from msgspec.structs import asdict

    from torchmark.measure.cases import full_params
    from torchmark.measure.messages import MeasureJob
    from torchmark.records import Contention, DeviceInfo, Machine, Result
    from torchmark.workloads import find_workload
    from torchmark.workloads.contract import Setting

    devices = (DeviceInfo("cpu", "Xeon", memory_bytes=1 << 30, cache_bytes=1 << 20),)
    machine = Machine("Xeon", 1, 1, 16, "Linux 6", "3.11", torch="2.13.0", devices=devices)
    monkeypatch.setattr("torchmark.cli.studies.look", lambda *_: machine)

    def limits(taken, *arguments: str) -> int:
        def run(job: MeasureJob, *_: object) -> Result:
            case = job.case
            workload, params = find_workload(case.workload), full_params(case)
            work = workload.work(params, Setting(case.mode, dtype=case.dtype))
            found = make_estimate(
                1e-3 * (work.flops or 1e9) / 1e9, contention=Contention(other_cpu_share=taken(case)), samples_s=(1e-3,)
            )
            return make_result(case.text, estimate=found, processes=(found,), work=work, params=asdict(params))

        monkeypatch.setattr("torchmark.studies.limits.measure_case", run)
        return cli.main(["limits", "--device", "cpu", "--dtype", "float32,bfloat16", *arguments])

    return limits


def test_a_disturbed_ceiling_is_not_kept_and_what_is_missing_is_said(capsys, measure_limits) -> None:
    from torchmark.library import stored_ceilings

    assert measure_limits(lambda case: 0.3 if case.dtype == "bfloat16" else 0.0) == 0
    out = capsys.readouterr().out
    assert "Kept: later results are compared with these limits." in out
    assert "busy or times varied too much: cpu bfloat16." in " ".join(out.split())
    assert "close other programs and run: torchmark limits" in out
    known = stored_ceilings(load(find_run("last")).header.machine).devices["cpu"]
    assert set(known.flops) == {"float32"}
    assert cli.main(["show", "last"]) == 0
    assert capsys.readouterr().out == out


def test_a_busy_machine_keeps_no_ceilings_at_all(capsys, own_place: Path, measure_limits) -> None:
    assert measure_limits(lambda _: 0.3) == 0
    assert "Not kept: the machine was busy." in capsys.readouterr().out
    assert not (own_place / "limits").exists()


def test_a_disturbed_ceiling_is_measured_again_while_there_is_time(capsys, measure_limits) -> None:
    seen: dict[str, int] = {}

    def once(case) -> float:
        seen[case.text] = seen.get(case.text, 0) + 1
        return 0.3 if seen[case.text] == 1 else 0.0

    assert measure_limits(once) == 0
    out = capsys.readouterr().out
    assert "Kept: later results are compared with these limits." in out
    assert "Unknown, because" not in out
