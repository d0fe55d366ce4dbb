"""Readings become power, clock and heat, and evidence only where there is some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.efficiency import item_energy, step_energy
from torchmark.analyze.verdict import combine, held_down, is_paging, metered_of
from torchmark.records import Conditions, Metered, Work

COUNTED = [Conditions(float(second), energy_j=100.0 + 50.0 * second) for second in range(6)]


def test_power_is_energy_over_time_and_its_peak_that_of_a_second() -> None:
    burst = [replace(each, energy_j=(each.energy_j or 0) + (30.0 if each.at_s >= 3 else 0.0)) for each in COUNTED]
    found = metered_of(burst)
    assert (found.mean_w, found.peak_w) == (pytest.approx(56.0), pytest.approx(80.0))


def test_readings_that_lie_close_together_make_no_peak() -> None:
    close = [*COUNTED[:2], Conditions(1.001, energy_j=160.0), *COUNTED[2:]]
    assert metered_of(close).peak_w == pytest.approx(50.0)


@given(st.lists(st.floats(1.0, 500.0), min_size=1, max_size=20))
def test_the_mean_is_never_above_the_peak(watts: list[float]) -> None:
    total, readings = 0.0, [Conditions(0.0, energy_j=0.0)]
    for second, power in enumerate(watts, 1):
        total += power
        readings.append(Conditions(float(second), energy_j=total))
    found = metered_of(readings)
    assert found.mean_w is not None
    assert found.peak_w is not None
    assert found.mean_w <= found.peak_w * (1 + 1e-9)


def test_a_window_that_is_too_short_for_a_counter_gives_no_power() -> None:
    assert metered_of([Conditions(0.0, energy_j=1.0), Conditions(0.3, energy_j=30.0)]) == Metered()
    assert metered_of([]) == Metered()
    assert metered_of([Conditions(0.0), Conditions(9.0)]) == Metered()


def test_energy_of_a_step_and_of_an_item(make_result, make_estimate) -> None:
    seen = make_estimate(0.010, metered=Metered(mean_w=50.0), wall_step_s=0.012)
    result = make_result(estimate=seen, work=Work(items=4, unit="sample"))
    assert step_energy(seen) == pytest.approx(0.6)
    assert item_energy(result) == pytest.approx(0.15)
    assert item_energy(replace(result, work=Work(items=0, unit="step"))) is None
    assert step_energy(make_estimate()) is None


def test_the_processes_of_a_case_share_their_power_and_keep_the_worst_heat(make_estimate) -> None:
    cool = Metered(mean_w=40.0, peak_w=45.0, clock_hz=(3e9, 3e9), temperature_c=(40.0, 60.0), major_faults=2)
    hot = Metered(
        mean_w=60.0, peak_w=90.0, clock_hz=(3e9, 2e9), temperature_c=(60.0, 99.0), throttle=("heat",), major_faults=1
    )
    found = combine([make_estimate(metered=cool), make_estimate(metered=hot)]).metered
    assert found == Metered(50.0, 90.0, (3e9, 2e9), (60.0, 99.0), ("heat",), 2)
    assert combine([make_estimate(), make_estimate()]).metered == Metered()


def test_a_limit_that_always_held_is_no_evidence_but_heat_is() -> None:
    def reported(first: tuple[str, ...], last: tuple[str, ...]) -> list[str]:
        return held_down([Conditions(0.0, throttle=first), Conditions(1.0, throttle=last)])

    assert reported(("power limit",), ("power limit",)) == []
    assert reported((), ("power limit",)) == ["the device held its clock down: power limit"]
    assert reported(("heat",), ("heat",)) == ["the device held its clock down: heat"]


def test_one_core_at_rest_is_no_fall_of_the_clock() -> None:
    clocks = [3e9] * 8 + [1e9]
    assert held_down([Conditions(float(at), clock_hz=clock) for at, clock in enumerate(clocks)]) == []
    fallen = [3e9] * 4 + [2e9] * 5
    assert held_down([Conditions(float(at), clock_hz=clock) for at, clock in enumerate(fallen)]) == [
        "the clock fell from 3.00 to 2.00 GHz"
    ]


def test_memory_that_leaves_for_the_disk_is_paging() -> None:
    def grown(**changes: int) -> bool:
        first, last = Conditions(0.0, swap_bytes=0, major_fault_count=0), Conditions(2.0, swap_bytes=0)
        return is_paging([first, replace(last, **changes)])

    assert grown(swap_bytes=64 << 20)
    assert not grown(swap_bytes=1 << 20)
    assert grown(major_fault_count=100)
    assert not grown(major_fault_count=3)
