"""Two sides that take turns, with real processes: equal ones, one that is slower, one that fails."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from torchmark.records import parse_case
from torchmark.studies.ab import (
    LONG_TURN_S,
    ROUNDS,
    SLOW_ROUNDS,
    TURN_S,
    VERY_SLOW_ROUNDS,
    Plan,
    Side,
    Study,
    rounds_for,
    turn_seconds,
)

CASE = parse_case("null/infer@fake/float32")


def plan(script_a: str = "step=0.01", script_b: str = "step=0.01,seed=1", **changes: object) -> Plan:
    a, b = (
        Side(name, CASE, sys.executable, {"TORCHMARK_FAKE": script})
        for name, script in (("A", script_a), ("B", script_b))
    )
    return Plan(a, b, **changes)  # type: ignore[arg-type]


def test_equal_sides_are_the_same_and_nothing_is_left_of_them() -> None:
    others = set(psutil.Process().children(recursive=True))  # servers of other tests
    study = Study(plan())
    assert list(study.pairs()) == [1, 2, 3, 4, 5]
    found = study.outcome()
    assert (found.verdict, found.stopped, len(found.ratios)) == ("same", "clear", 5)
    assert found.a.machine is not None
    assert {len(results) for results in study.processes.values()} == {5}
    assert study.processes["A"][0].processes[0].samples_s
    assert found.a.result.processes[0].samples_s == ()
    assert set(psutil.Process().children(recursive=True)) <= others


def test_five_percent_slower_is_found() -> None:
    study = Study(plan(script_b="step=0.0105,seed=1"))
    list(study.pairs())
    found = study.outcome()
    assert (found.verdict, found.stopped) == ("slower", "clear")
    assert found.ratio == pytest.approx(1.05, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 1.05 <= found.high


def test_a_spent_budget_ends_it_without_an_answer() -> None:
    study = Study(plan(budget_s=0.1))
    assert list(study.pairs()) == [1]
    found = study.outcome()
    assert (found.verdict, found.stopped, found.low) == ("unsure", "budget", None)
    assert found.ratio == found.ratios[0]


@pytest.mark.parametrize(("broken", "name"), [("a", "A"), ("b", "B")])
def test_the_side_that_fails_is_named_with_its_reason(broken: str, name: str) -> None:
    study = Study(plan(**{f"script_{broken}": "fault=crash"}))
    assert list(study.pairs()) == []
    found = study.outcome()
    assert (found.stopped, found.verdict, found.ratio) == ("failed", "unsure", None)
    sides = {"A": found.a.result, "B": found.b.result}
    assert sides.pop(name).status == "crashed"
    assert next(iter(sides.values())).status == "interrupted"


def test_what_is_thrown_meanwhile_ends_both_processes() -> None:
    def interrupt(name: str, _: object) -> None:
        if name == "B":
            raise KeyboardInterrupt

    others = set(psutil.Process().children(recursive=True))  # servers of other tests
    study = Study(plan(), interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(study.pairs())
    assert study.outcome().stopped == "interrupted"
    end = time.monotonic() + 30
    while set(psutil.Process().children(recursive=True)) - others:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_slow_steps_get_fewer_rounds_and_one_step_a_turn() -> None:
    assert [rounds_for(step_s) for step_s in (1e-6, 0.5, 2.0, 30.0)] == [ROUNDS, ROUNDS, SLOW_ROUNDS, VERY_SLOW_ROUNDS]
    assert [turn_seconds(step_s) for step_s in (1e-6, 0.2, 0.5)] == [TURN_S, pytest.approx(0.6), LONG_TURN_S]
    assert turn_seconds(30.0) < 1.0
