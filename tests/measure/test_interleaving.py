"""Turns of one side: each gives its median, all of them one estimate, and the other side's time counts for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from torchmark.analyze.verdict import contention_of
from torchmark.devices.fake import Fake, Script
from torchmark.errors import TorchmarkError
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.timing import Turns, joined
from torchmark.records import Conditions

MOST_TURNS = 8


def turns(step_s: float = 0.01, sync_s: float = 0.0, most: int = DEFAULTS.max_samples) -> tuple[Turns, Fake]:
    device = Fake("fake", Script(stream="iid2", step=step_s, sync=sync_s))
    return Turns(device, lambda: None, step_s, replace(DEFAULTS, max_samples=most), MOST_TURNS), device


def test_a_turn_lasts_as_long_as_asked_and_gives_its_median() -> None:
    side, device = turns()
    began = device.clock()
    found = [side.take(0.3, side.block_size) for _ in range(4)]
    assert found == pytest.approx([0.01] * 4, rel=0.02)
    estimate = side.estimate(first_step_s=0.5)
    assert estimate.center_s == pytest.approx(0.01, rel=0.01)
    assert estimate.first_step_s == 0.5
    assert estimate.duration_s == pytest.approx(4 * 0.3, rel=0.1)
    assert device.clock() - began > estimate.duration_s  # the steps before each turn are no samples
    assert len(estimate.samples_s) == estimate.sample_count == pytest.approx(4 * 30, abs=12)


def test_a_slow_step_is_a_turn() -> None:
    side, _ = turns(step_s=4.0)
    assert side.take(0.3, side.block_size) == pytest.approx(4.0, rel=0.1)
    assert side.estimate(4.0).sample_count == 1


def test_short_steps_are_timed_in_blocks_and_never_fill_the_room_for_later_turns() -> None:
    side, _ = turns(step_s=1e-5, sync_s=1e-5, most=40 * MOST_TURNS)
    assert side.block_size >= 90
    found = [side.take(10.0, side.block_size) for _ in range(MOST_TURNS)]
    assert found == pytest.approx([1e-5] * MOST_TURNS, rel=0.05)
    assert side.estimate(1e-5).estimand == "mean"
    with pytest.raises(TorchmarkError, match="at most"):
        side.take(0.1, side.block_size)


def test_what_the_other_side_did_between_two_turns_is_not_held_against_this_one() -> None:
    """Ten turns of a second each; nine seconds of the other side at full load lie between them."""
    spans = [
        (Conditions(t, 2.0, other_cpu_s=18.0 * t), Conditions(t + 1, 2.0, other_cpu_s=18.0 * t))
        for t in range(0, 100, 10)
    ]
    seen = contention_of(joined(spans), None, None)
    assert seen.other_cpu_share == 0.0
    assert joined(spans)[-1].at_s == 10.0
    disturbed = [
        (before, Conditions(after.at_s, 2.0, other_cpu_s=(after.other_cpu_s or 0) + 1)) for before, after in spans
    ]
    assert contention_of(joined(disturbed), None, None).other_cpu_share == pytest.approx(0.5)


def test_what_cannot_be_read_stays_unread() -> None:
    spans = [(Conditions(0.0), Conditions(1.0)), (Conditions(5.0), Conditions(6.0))]
    assert {reading.steal_s for reading in joined(spans)} == {None}
    assert np.diff([reading.at_s for reading in joined(spans)]).tolist() == [1.0, 0.0, 1.0]
