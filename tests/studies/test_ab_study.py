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
    Comparison,
    ComparisonOptions,
    PairMeasured,
    Side,
    rounds_for,
    turn_seconds,
)
from torchmark.studies.study import Completed

CASE = parse_case("null/infer@fake/float32")


def plan(script_a: str = "step=0.01", script_b: str = "step=0.01,seed=1", **changes: object) -> ComparisonOptions:
    a, b = (
        Side(name, CASE, sys.executable, {"TORCHMARK_FAKE": script})
        for name, script in (("A", script_a), ("B", script_b))
    )
    return ComparisonOptions(a, b, **changes)  # type: ignore[arg-type]


def counts(study: Comparison) -> list[int]:
    """Measure pair after pair; the counts that are announced."""
    return [event.count for event in study.events() if isinstance(event, PairMeasured)]


def test_equal_sides_are_the_same_and_nothing_is_left_of_them() -> None:
    others = set(psutil.Process().children(recursive=True))  # servers of other tests
    study = Comparison(plan())
    events = list(study.events())
    assert [event.count for event in events if isinstance(event, PairMeasured)] == [1, 2, 3, 4, 5]
    found = study.outcome()
    assert (found.verdict, found.stopped, len(found.ratios)) == ("same", "clear", 5)
    assert found.a.machine is not None
    stored = [event for event in events if isinstance(event, Completed)]
    assert [(event.side, event.process) for event in stored] == [(side, pair) for pair in range(5) for side in "AB"]
    assert stored[0].newest.processes[0].samples_s
    assert found.a.result.processes[0].samples_s == ()
    assert set(psutil.Process().children(recursive=True)) <= others


def test_five_percent_slower_is_found() -> None:
    study = Comparison(plan(script_b="step=0.0105,seed=1"))
    counts(study)
    found = study.outcome()
    assert (found.verdict, found.stopped) == ("slower", "clear")
    assert found.ratio == pytest.approx(1.05, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 1.05 <= found.high


def test_a_spent_budget_ends_it_without_an_answer() -> None:
    study = Comparison(plan(budget_s=0.1))
    assert counts(study) == [1]
    found = study.outcome()
    assert (found.verdict, found.stopped, found.low) == ("unsure", "budget", None)
    assert found.ratio == found.ratios[0]
    assert found.a.result.estimate is not None
    assert found.a.result.estimate.sample_count <= 2 * (TURN_S / 0.01 + 1)  # two turns of each side


@pytest.mark.parametrize(("broken", "name"), [("a", "A"), ("b", "B")])
def test_the_side_that_fails_is_named_with_its_reason(broken: str, name: str) -> None:
    study = Comparison(plan(**{f"script_{broken}": "fault=crash"}))
    assert counts(study) == []
    found = study.outcome()
    assert (found.stopped, found.verdict, found.ratio) == ("failed", "unsure", None)
    sides = {"A": found.a.result, "B": found.b.result}
    assert sides.pop(name).status == "crashed"
    assert next(iter(sides.values())).status == "interrupted"


def test_what_is_thrown_meanwhile_ends_both_processes() -> None:
    def interrupt(_: object, who: str = "") -> None:
        if who == "B":
            raise KeyboardInterrupt

    others = set(psutil.Process().children(recursive=True))  # servers of other tests
    study = Comparison(plan())
    study.listen = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(study.events())
    assert study.outcome().stopped == "interrupted"
    end = time.monotonic() + 30
    while set(psutil.Process().children(recursive=True)) - others:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_slow_steps_get_fewer_rounds_and_one_step_a_turn() -> None:
    assert [rounds_for(step_s) for step_s in (1e-6, 0.5, 2.0, 30.0)] == [ROUNDS, ROUNDS, SLOW_ROUNDS, VERY_SLOW_ROUNDS]
    assert [turn_seconds(step_s) for step_s in (1e-6, 0.2, 0.5)] == [TURN_S, pytest.approx(0.6), LONG_TURN_S]
    assert turn_seconds(30.0) < 1.0
