"""Known work is accepted; another workload, version, parameter or work of a step is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from torchmark.measure.cases import compare_with_known
from torchmark.records import Result, Work
from torchmark.store import load

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-run.jsonl"


@pytest.fixture(scope="module")
def known() -> Result:
    return next(result for result in load(EXAMPLE).results if result.case.workload == "mlp")


def places(result: Result) -> list[str]:
    return [place.removeprefix("$.result.") for place, _ in compare_with_known(result)]


def test_everything_in_a_recorded_run_is_known() -> None:
    assert {result.case.text: places(result) for result in load(EXAMPLE).results if places(result)} == {}


def test_what_is_not_known_here_is_reported(known: Result) -> None:
    case, work = known.case, known.work
    assert work is not None
    changes: list[tuple[Result, str]] = [
        (replace(known, case=replace(case, workload="fast-thing")), "case"),
        (replace(known, case=replace(case, mode="dream")), "case"),
        (replace(known, case=replace(case, params={"depth": 3})), "case"),
        (replace(known, version=99), "version"),
        (replace(known, version=0), "version"),
        (replace(known, params={"batch": 1, "outputs": 2}), "params"),
        (replace(known, numeric=None), "numeric"),
        (replace(known, work=None), "work"),
        (replace(known, work=replace(work, items=work.items * 10)), "work.items"),
        (replace(known, work=replace(work, flops=work.flops * 2)), "work.flops"),
        (replace(known, work=replace(work, unit="step")), "work.unit"),
    ]
    assert [place in places(result) for result, place in changes] == [True] * len(changes)


def test_an_older_version_of_a_workload_is_known_but_not_worked_out_again(known: Result, monkeypatch) -> None:
    from torchmark.workloads import find_workload

    monkeypatch.setattr(type(find_workload("mlp")), "version", 3)
    assert places(replace(known, version=2, work=Work(1, "x"), params={})) == []


def test_a_name_from_a_file_is_looked_up_and_never_imported(known: Result) -> None:
    for name in ("os", "torchmark.cli", "../../etc/passwd", "antigravity"):
        assert places(replace(known, case=replace(known.case, workload=name))) == ["case"]
