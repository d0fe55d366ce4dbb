"""The stopwatch loses no time between its laps, takes the share that is asked for, and gives up in time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.errors import DoesNotFitError
from torchmark.measure.replay import paced
from torchmark.measure.training_script import FEWEST_STEPS, Stopwatch, due, would_take
from torchmark.records import Laps


@given(st.integers(1, 100_000), st.floats(1e-6, 1.0))
def test_a_share_is_at_least_five_steps_and_never_more_than_all(published: int, scale: float) -> None:
    count = due(published, scale)
    assert min(FEWEST_STEPS, published) <= count <= published
    assert count >= scale * published or count == published
    assert due(published, 1.0) == published


def test_laps_are_all_of_the_time_between_start_and_end() -> None:
    watch = Stopwatch(60.0)
    before = time.perf_counter()
    watch.start()
    started = ended = time.perf_counter()
    time.sleep(0.01)
    watch.lap("moving")
    for _ in watch.loop("step", 100, 5):
        time.sleep(0.001)
        ended = time.perf_counter()
    after = time.perf_counter()
    assert [(laps.stage, len(laps.seconds), laps.published, laps.is_work) for laps in watch.stages.values()] == [
        ("moving", 1, 1, False),
        ("step", 5, 100, True),
    ]
    assert ended - started <= watch.seconds <= after - before


def test_steps_that_cannot_all_fit_end_the_loop_and_say_how_long_they_would_take() -> None:
    watch = Stopwatch(0.5)
    with pytest.raises(DoesNotFitError, match=r"would take .* h"):
        sleep_through(watch, 100)
    assert len(watch.stages["step"].seconds) <= 2


def sleep_through(watch: Stopwatch, count: int) -> None:
    for _ in watch.loop("step", 1_000_000, 1_000_000, count):
        time.sleep(0.02)


def test_several_loops_share_the_laps_that_are_due() -> None:
    watch = Stopwatch(60.0)
    assert [[*watch.loop("step", 100, 5, 3)] for _ in range(3)] == [[0, 1, 2], [0, 1], []]
    assert len(watch.stages["step"].seconds) == 5


def test_what_the_device_had_not_done_is_measured_after_the_clock_was_stopped() -> None:
    before, watch = time.perf_counter(), Stopwatch(60.0)
    for _ in watch.loop("step", 5, 5):
        pass
    stopped = time.perf_counter()
    watch.finish(lambda: time.sleep(0.02))
    assert watch.unfinished_s >= 0.02
    assert watch.seconds <= stopped - before


def test_steps_that_stand_for_many_more_are_given_what_the_device_still_had_to_do() -> None:
    moving, steps = Laps("moving", [1.0]), Laps("step", [0.1, 0.1], 1000, is_work=True)
    assert paced((moving, steps), 0.4) == (moving, Laps("step", pytest.approx([0.3, 0.3]), 1000, is_work=True))


@pytest.mark.parametrize(("seconds", "text"), [(42.4, "42 s"), (400, "7 min"), (6.04 * 3600, "6.0 h")])
def test_times_are_reported_as_people_report_them(seconds: float, text: str) -> None:
    assert would_take(seconds) == f"would take {text}"
