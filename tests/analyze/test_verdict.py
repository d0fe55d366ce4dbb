"""The verdict follows the evidence, in a fixed order, and names it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.analyze.grades import worst
from torchmark.analyze.spread import Interval
from torchmark.analyze.statistics import Reading
from torchmark.analyze.verdict import contention_of, is_bimodal, judge
from torchmark.devices.streams import stream
from torchmark.records import VERDICTS, Conditions, Contention, Trend

ORDER = ("contended", "throttled", "slowing", "drifting", "warming", "noisy", "stable", "as-published")
HOT = (Conditions(0.0, thermal_count=1), Conditions(5.0, thermal_count=4))
NO_OTHERS = Contention()
BUSY = Contention(other_cpu_share=0.3)


def reading(**changes: Any) -> Reading:
    fields: dict[str, Any] = {
        "interval": Interval(1.0, 0.995, 1.005),
        "cut": 0,
        "time": 1.0,
        "trend": Trend(0.0, 0.0),
        "warming": False,
        "trending": False,
        "slowing": False,
        "evidence_time": 1.0,
    }
    return Reading(**(fields | changes))


class Judgement(NamedTuple):
    verdict: str
    flags: tuple[str, ...]
    evidence: tuple[str, ...]


def judged(contention: Contention = NO_OTHERS, conditions=(), confirmed: bool = True, **changes: Any) -> Judgement:
    return Judgement(*judge(reading(**changes), confirmed, contention, conditions, target=0.01))


def test_the_order_of_the_verdicts_is_fixed() -> None:
    assert VERDICTS == ORDER


@given(st.integers(0, 6))
def test_the_first_verdict_that_holds_is_given(first: int) -> None:
    """Everything that could be said from `first` on is true; nothing that would come before."""
    falling = Trend(-0.1, -9.0)
    judgement = judged(
        contention=BUSY if first <= 0 else Contention(),
        conditions=HOT if first <= 1 else (),
        slowing=first <= 2,
        trending=first <= 3,
        trend=falling,
        warming=first <= 4,
        confirmed=first > 5,
    )
    assert judgement.verdict == ORDER[first]
    assert bool(judgement.evidence) == (judgement.verdict != "stable")


@given(st.lists(st.sampled_from(ORDER), min_size=1))
def test_of_several_processes_the_worst_verdict_counts(verdicts) -> None:
    assert ORDER.index(worst(verdicts)) == min(map(ORDER.index, verdicts))


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ("other_cpu_share", "other processes used 30% of the processor"),
        ("steal_share", "the hypervisor took 30% of the processor away"),
        ("throttled_share", "a quota stopped the process for 30% of the time"),
    ],
)
def test_a_process_that_takes_time_is_named(share: str, words: str) -> None:
    assert judged(Contention(**{share: 0.3})) == Judgement("contended", (), (words,))
    assert judged(Contention(**{share: 0.01})).verdict == "stable"


def test_waiting_for_a_core_is_contention_only_where_others_took_it() -> None:
    assert judged(Contention(wait_share=0.2)).verdict == "contended"  # who else is there cannot be read
    both = judged(Contention(wait_share=0.2, other_cpu_share=0.3))
    assert (both.verdict, both.flags) == ("contended", ())
    alone = judged(Contention(wait_share=0.2, other_cpu_share=0.0))
    assert (alone.verdict, alone.flags) == ("stable", ("oversubscribed",))
    assert judged(Contention(wait_share=0.01)).verdict == "stable"


def test_a_slow_probe_is_contention_unless_no_other_program_was_there() -> None:
    assert judged(Contention(probe_dilation=1.1)).evidence == ("a reference calculation became 10% slower",)
    assert judged(Contention(probe_dilation=1.1, other_cpu_share=0.0)).verdict == "stable"
    assert judged(Contention(probe_dilation=1.02)).verdict == "stable"


def test_throttled_needs_evidence_and_evidence_needs_a_slowdown() -> None:
    dropped = (Conditions(0.0, clock_hz=3e9), Conditions(5.0, clock_hz=2e9))
    assert judged(slowing=True).verdict == "slowing"
    assert judged(slowing=True, conditions=HOT).evidence == ("the hardware throttled itself 3 times",)
    assert judged(slowing=True, conditions=dropped).evidence == ("the clock fell from 3.00 to 2.00 GHz",)
    assert judged(conditions=HOT).verdict == "stable"
    steady = (Conditions(0.0, clock_hz=3e9, thermal_count=7), Conditions(5.0, clock_hz=2.95e9, thermal_count=7))
    assert judged(slowing=True, conditions=steady).verdict == "slowing"


def test_a_trend_upwards_is_slowing_and_downwards_drifting() -> None:
    assert judged(trending=True, trend=Trend(0.05, 6)).verdict == "slowing"
    assert judged(trending=True, trend=Trend(-0.05, -6)) == Judgement(
        "drifting", (), ("step times moved by -5.0% while measuring",)
    )


def test_noisy_says_what_was_reached_and_never_contradicts_itself() -> None:
    wide = judged(confirmed=False, interval=Interval(1.0, 0.96, 1.04))
    assert wide.evidence == ("the interval reached ±4.0% where ±1% was asked for",)
    narrow = judged(confirmed=False, interval=Interval(1.0, 0.998, 1.002))
    assert narrow.verdict == "noisy"
    assert "±0.20% was reached, but" in narrow.evidence[0]


def test_memory_that_goes_to_the_disk_is_flagged_and_a_few_late_pages_are_not() -> None:
    def with_faults(count: int) -> Judgement:
        return judged(
            conditions=(Conditions(0.0, major_fault_count=100), Conditions(5.0, major_fault_count=100 + count))
        )

    assert with_faults(2000).flags == ("paging",)
    assert with_faults(20).flags == ()


def test_shares_are_of_the_time_and_of_the_cores() -> None:
    first = Conditions(10.0, 4.0, other_cpu_s=100.0, steal_s=1.0, throttled_s=0.0, probe_s=2e-3)
    last = Conditions(20.0, 4.0, other_cpu_s=120.0, steal_s=5.0, throttled_s=1.0, probe_s=2.2e-3)
    found = contention_of([first, last], wait_share=0.1, switches=3)
    assert (found.other_cpu_share, found.steal_share, found.throttled_share) == (0.5, 0.1, 0.1)
    assert found.probe_dilation == pytest.approx(1.1)
    assert (found.wait_share, found.switches) == (0.1, 3)


def test_what_a_clock_tick_could_have_made_is_nothing() -> None:
    found = contention_of([Conditions(0.0, other_cpu_s=1.0), Conditions(0.5, other_cpu_s=1.03)], None, None)
    assert found.other_cpu_share == 0.0


def test_what_cannot_be_read_is_unknown_and_not_zero() -> None:
    assert contention_of([], None, None) == Contention()
    assert contention_of([Conditions(0.0), Conditions(5.0)], None, None) == Contention()


def test_two_levels_are_distinguished_from_one() -> None:
    chance = np.random.default_rng(1)
    assert all(is_bimodal(stream("bimodal", chance, 300)) for _ in range(30))
    for kind in ("iid2", "iid10", "preempt", "heavy-tail"):
        assert sum(is_bimodal(stream(kind, chance, 300)) for _ in range(50)) <= 1, kind
    assert not is_bimodal(np.full(100, 0.01))
    assert not is_bimodal(chance.uniform(1, 2, 300))
    assert not is_bimodal(stream("bimodal", chance, 20))
