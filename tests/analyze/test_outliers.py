"""A machine that is out of line with its equals is named, and chance is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.analyze.machines import FALSE_ALARM, find_outliers
from torchmark.records import Result, Run, RunHeader

MakeResult, MakeHeader = Callable[..., Result], Callable[..., RunHeader]
CASES = ("mlp/infer@cpu/float32", "mlp/train@cpu/float32", "matmul/infer@cpu/float32")


@pytest.fixture
def fleet(
    make_result: MakeResult, make_header: MakeHeader, make_estimate: Callable[..., Any]
) -> Callable[[Sequence[float]], list[Run]]:
    """Runs of equal machines, each so many times as slow as usual, give or take a percent."""
    dice = random.Random(7)

    def make(factors: Sequence[float], verdict: str = "stable") -> list[Run]:
        runs = []
        for number, factor in enumerate(factors, 1):
            times = [factor * dice.gauss(1.0, 0.01) * 0.01 * (index + 1) for index in range(len(CASES))]
            seen = verdict if factor > 1 else "stable"
            results = tuple(
                make_result(case, estimate=make_estimate(step_s, verdict=seen))
                for case, step_s in zip(CASES, times, strict=True)
            )
            runs.append(Run(make_header(CASES, id=f"{number:08x}", label=f"A{number}"), results))
        return runs

    return make


def test_a_slow_machine_among_its_peers_is_named_with_what_slowed_it(fleet: Callable[..., list[Run]]) -> None:
    (found,) = find_outliers(fleet([1.0] * 6 + [1.09] + [1.0] * 5, "throttled"))
    assert found.text in {f"A7 is {share}% slower than its 11 peers, and throttled" for share in (8, 9, 10)}
    assert found.cases == 3


def test_one_bad_machine_does_not_hide_another(fleet: Callable[..., list[Run]]) -> None:
    found = find_outliers(fleet([1.0] * 10 + [1.2, 0.8]))
    assert [each.label for each in found] == ["A11", "A12"]  # the slowest first
    assert found[1].text.startswith("A12 is 2")
    assert "faster than its 10 peers" in found[1].text


def test_what_is_no_equal_is_no_peer(fleet: Callable[..., list[Run]]) -> None:
    runs = fleet([1.0] * 8 + [2.0])
    other = replace(runs[-1].header, machine=replace(runs[-1].header.machine, cpu="another"))
    assert find_outliers(runs)
    assert not find_outliers([*runs[:-1], replace(runs[-1], header=other)])


def test_of_three_nobody_can_tell_and_trifles_are_not_told(fleet: Callable[..., list[Run]]) -> None:
    assert not find_outliers(fleet([1.0, 1.0, 2.0]))
    assert not find_outliers(fleet([]))
    still = fleet([1.0])[0]
    labels = [replace(still, header=replace(still.header, id=str(index))) for index in range(20)]
    assert not find_outliers(labels)  # all the same to the last digit


def test_equal_machines_are_hardly_ever_told_apart(fleet: Callable[..., list[Run]]) -> None:
    """Spread by 10%, so that what is too little to be told is no excuse."""
    dice = random.Random(3)
    alarms = {
        size: sum(bool(find_outliers(fleet([dice.lognormvariate(0, 0.1) for _ in range(size)]))) for _ in range(150))
        for size in (4, 8, 24)
    }
    assert all(count <= 150 * FALSE_ALARM * 4 for count in alarms.values()), alarms
