"""Leaderboards, outliers and figures per kind of machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.machines import (
    FALSE_ALARM,
    Board,
    Entry,
    Overall,
    find_outliers,
    rank_boards,
    tabulate,
)
from torchmark.records import Result, Run, RunHeader

FIELDS: dict[str, Any] = {
    "task": "mlp/infer",
    "version": 1,
    "dtype": "float32",
    "procedure": "",
    "setting": "",
    "cpu": "Xeon",
    "cores": 2,
    "memory_gib": 16,
    "device": "cpu",
    "model": "Xeon",
    "case": "mlp/infer@cpu/float32",
    "status": "ok",
    "reason": None,
    "verdict": "stable",
    "items": 100.0,
    "unit": "sample",
    "grade": "good",
    "disturbed": False,
    "file": "a.jsonl",
    "run": "a",
    "created": "2026-11-15T10:00:00Z",
    "label": None,
    "torch": "2.13.0",
}


def entry(cpu: str = "Xeon", center_s: float | None = 1.0, half: float = 0.01, **changes: Any) -> Entry:
    times = {"center_s": center_s, "low_s": None, "high_s": None}
    if center_s is not None:
        times |= {"low_s": center_s * (1 - half), "high_s": center_s * (1 + half)}
    return Entry(**(FIELDS | times | {"cpu": cpu, "run": cpu, "file": f"{cpu}.jsonl"} | changes))


def rank(*entries: Entry, top: int = 20) -> Board:
    ((board,), _) = rank_boards(entries, top)
    return board


def order(board: Board) -> list[tuple[str, int | None]]:
    return [(place.entry.cpu, place.rank) for place in (*board.places, *board.disturbed, *board.failed)]


def test_the_fastest_comes_first_with_its_rate_and_interval() -> None:
    board = rank(entry("slow", 2.0), entry("fast", 0.5, half=0.1))
    assert order(board) == [("fast", 1), ("slow", 2)]
    first = board.places[0]
    assert (first.rate, first.tied, board.unit) == (200.0, False, "sample")
    assert (first.low, first.high) == (pytest.approx(200 / 1.1), pytest.approx(200 / 0.9))


@pytest.mark.parametrize(
    "change",
    [
        {"task": "mlp/train"},
        {"task": "mlp/infer:batch=2"},
        {"version": 2},
        {"dtype": "bfloat16"},
        {"procedure": "+per-step"},
    ],
)
def test_other_work_is_another_board(change: dict[str, Any]) -> None:
    boards, _ = rank_boards([entry("a"), entry("b", **change)], 20)
    assert sorted(order(board) for board in boards) == [[("a", 1)], [("b", 1)]]


@pytest.mark.parametrize(
    "change", [{"cores": 4}, {"memory_gib": 32}, {"device": "cuda", "model": "H100"}, {"setting": "+compile"}]
)
def test_another_machine_device_or_setting_is_another_place_on_the_same_board(change: dict[str, Any]) -> None:
    assert len(rank(entry(), entry(**change)).places) == 2


def test_places_that_cannot_be_distinguished_share_a_rank() -> None:
    board = rank(entry("a", 1.0), entry("b", 1.015), entry("c", 1.03), entry("d", 1.1))
    assert order(board) == [("a", 1), ("b", 1), ("c", 3), ("d", 4)]
    assert [place.tied for place in board.places] == [True, True, False, False]


def test_a_machine_counts_once_with_its_latest_undisturbed_result() -> None:
    board = rank(
        entry("a", 1.0, run="1", created="2026-11-01"),
        entry("a", 2.0, run="2", created="2026-11-02"),
        entry("a", 2.0, run="2", created="2026-11-02", file="copy.jsonl"),
        entry("a", 9.0, run="3", created="2026-11-03", disturbed=True),
        entry("a", None, run="4", created="2026-11-04", status="oom", verdict=None),
    )
    (place,) = board.places
    assert (place.entry.center_s, place.runs, board.failed) == (2.0, 4, ())


def test_a_disturbed_result_is_listed_without_a_rank() -> None:
    board = rank(entry("busy", 0.5, disturbed=True), entry("calm", 1.0), entry("full", None, status="oom"))
    assert order(board) == [("calm", 1), ("busy", None), ("full", None)]
    assert (board.ranked_count, board.disturbed_count, board.failed_count) == (1, 1, 1)


def overall(*entries: Entry, top: int = 20) -> Overall | None:
    return rank_boards(sorted(entries, key=lambda each: each.group), top)[1]


def test_machines_are_ranked_over_the_work_that_they_share() -> None:
    """Twice as fast at one case and half as fast at another is equal; what few have done does not count."""
    found = overall(
        *(entry("a", 1.0, task=task) for task in ("one", "two", "three")),
        *(entry("b", seconds, task=task) for task, seconds in (("one", 2.0), ("two", 0.5))),
        *(entry("c", 4.0, task=task) for task in ("one", "two")),
        entry("c", 2.0, task="one", setting="+compile"),
        entry("d", 0.1, task="one"),
        entry("e", 0.1, task="two", disturbed=True),
    )
    assert found is not None
    assert found.tasks == ("one float32 version 1", "two float32 version 1")
    assert [(each.cpu, each.rank, each.tied) for each in found.standings] == [
        ("a", 1, True),
        ("b", 1, True),
        ("c", 3, False),
    ]
    scores = [each.score for each in found.standings]
    assert scores == pytest.approx([math.sqrt(0.1 * 0.5), math.sqrt(0.05 * 1.0), math.sqrt(0.05 * 0.125)])
    assert all(each.low < each.score < each.high for each in found.standings)
    assert (found.ranked_count, found.missing_count) == (3, 1)


def test_machines_that_share_no_work_are_not_ranked_overall() -> None:
    assert overall(entry("a", task="one"), entry("b", task="two")) is None
    assert overall(entry("a")) is None


def test_those_that_failed_come_last_without_a_rank() -> None:
    board = rank(entry("full", None, status="oom", verdict=None, items=None, unit=""), entry("fine"))
    assert order(board) == [("fine", 1), ("full", None)]
    assert (board.unit, board.ranked_count, board.failed_count) == ("sample", 1, 1)


@pytest.mark.parametrize("status", ["interrupted", "skipped"])
def test_what_was_not_tried_is_no_failure(status: str) -> None:
    assert rank_boards([entry(center_s=None, status=status, verdict=None)], 20) == ((), None)


@pytest.mark.parametrize("odd", [{"center_s": 0.0}, {"center_s": -1e-9}, {"center_s": 1e-300, "items": 1e300}])
def test_a_figure_that_cannot_be_is_not_ranked(odd: dict[str, Any]) -> None:
    assert order(rank(entry("odd", **odd), entry("fine"))) == [("fine", 1)]


def test_work_worth_nothing_is_ranked_by_steps() -> None:
    board = rank(entry(center_s=0.25, items=0.0, unit="step"))
    assert (board.places[0].rate, board.unit) == (4.0, "step")


def test_only_the_top_is_kept_and_the_others_are_counted() -> None:
    entries = [entry(f"{number}", 1.0 + number) for number in range(9)]
    entries += [entry(f"full{number}", None, status="oom", verdict=None) for number in range(5)]
    board = rank(*entries, top=3)
    assert [place.rank for place in board.places] == [1, 2, 3]
    assert (len(board.failed), board.ranked_count, board.failed_count) == (3, 9, 5)


def test_the_most_contested_board_comes_first() -> None:
    entries = [entry(task="lonely"), entry("a", task="full"), entry("b", task="full"), entry(task="another")]
    assert [board.task for board in rank_boards(entries, 20)[0]] == ["full", "another", "lonely"]


times = st.floats(1e-9, 1e3)
machines = st.lists(st.tuples(times, st.floats(0, 1.5)), min_size=1, max_size=12)


@given(machines, st.randoms(use_true_random=False))
def test_ranks_never_contradict_the_figures(figures: list[tuple[float, float]], random: Any) -> None:
    entries = [entry(f"{number}", center_s, half) for number, (center_s, half) in enumerate(figures)]
    board = rank(*entries)
    places = board.places
    assert len(places) == len(entries)
    assert [place.rate for place in places] == sorted((place.rate for place in places), reverse=True)
    for index, place in enumerate(places):
        assert place.low <= place.rate <= place.high <= math.inf
        leader = places[place.rank - 1]
        assert leader.rank == place.rank <= index + 1
        assert place.high >= leader.low
        if place.rank == index + 1 > 1:
            assert place.high < places[places[index - 1].rank - 1].low
    random.shuffle(entries)
    assert rank(*entries) == board


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


def test_of_three_no_one_can_distinguish_and_trifles_are_not_reported(fleet: Callable[..., list[Run]]) -> None:
    assert not find_outliers(fleet([1.0, 1.0, 2.0]))
    assert not find_outliers(fleet([]))
    still = fleet([1.0])[0]
    labels = [replace(still, header=replace(still.header, id=str(index))) for index in range(20)]
    assert not find_outliers(labels)  # all the same to the last digit


def test_equal_machines_are_hardly_ever_distinguished(fleet: Callable[..., list[Run]]) -> None:
    """Spread by 10%, so that what is too little to be reported is no excuse."""
    dice = random.Random(3)
    alarms = {
        size: sum(bool(find_outliers(fleet([dice.lognormvariate(0, 0.1) for _ in range(size)]))) for _ in range(150))
        for size in (4, 8, 24)
    }
    assert all(count <= 150 * FALSE_ALARM * 4 for count in alarms.values()), alarms


def test_a_row_has_the_median_and_the_range_of_its_kind(
    make_result: Callable[..., Result], make_header: Callable[..., RunHeader]
) -> None:
    def run(*results: Result) -> Run:
        return Run(make_header(), results)

    case = "mlp/infer@cpu/float32"
    lost = make_result(case, status="oom", estimate=None)
    members = [
        ("A", run(make_result(case, 0.010))),
        ("B", run(make_result(case, 0.002))),
        ("A", run(make_result(case, 0.012))),
        ("A", run(make_result(case, 0.011), make_result("matmul/infer@cpu/float32", status="oom", estimate=None))),
        ("A", run(lost)),
    ]
    first, second, third = tabulate(members)
    assert (first.case, first.kind, first.machines, first.step_s) == (case, "A", 3, 0.011)
    assert (first.low_s, first.high_s) == (0.010, 0.012)
    assert first.verdicts == ("stable 3", "oom 1")
    assert first.rate == 128 / 0.011
    assert (second.kind, second.machines, second.verdicts) == ("B", 1, ("stable",))
    assert second.spread == (0.002 * 1.004 - 0.002 * 0.996) / 2 / 0.002  # of one machine, its interval
    assert (third.case, third.step_s, third.spread) == ("matmul/infer@cpu/float32", None, None)
