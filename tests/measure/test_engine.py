"""The engine, through its documented door, on a virtual clock: what it says about step times whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from torchmark.devices.streams import stream
from torchmark.errors import TorchmarkError
from torchmark.measure.engine import Block, Conditions, Estimate, Progress, Settings, measure_pair, measure_steps
from torchmark.records import VERDICTS

Steps = Callable[[int], float]


class Bench:
    """A clock on which steps pass, and what was asked of it."""

    def __init__(self, step_s: Steps | float, sync_s: float = 0.0) -> None:
        self._step_s = step_s if callable(step_s) else lambda _: float(step_s)
        self.sync_s = sync_s
        self.now, self.steps = 0.0, 0
        self.blocks: list[int] = []
        self.played: list[float] = []

    def clock(self) -> float:
        return self.now

    def __call__(self, count: int) -> float:
        durations = [self._step_s(self.steps + index) for index in range(count)]
        self.steps += count
        self.blocks.append(count)
        self.played += durations
        total = sum(durations) + self.sync_s
        self.now += total
        return total

    def measure(self, **options) -> Estimate:
        return measure_steps(self, clock=self.clock, sync_cost_s=self.sync_s, **options)


def playing(kind: str, step_s: float, seed: int = 1, count: int = 200_000) -> Steps:
    times = stream(kind, np.random.default_rng(seed), count) * step_s
    return lambda index: float(times[index])


def test_a_quiet_step_is_stable_and_precise() -> None:
    found = Bench(playing("iid2", 0.01)).measure()
    assert (found.verdict, found.estimand, found.block_size) == ("stable", "median", 1)
    assert found.low_s <= found.center_s <= found.high_s
    assert found.center_s == pytest.approx(0.01, rel=0.01)
    assert found.precision <= 0.01
    assert found.effective_samples >= 20
    assert (found.flags, found.evidence) == ((), ())


def test_every_sample_is_kept_in_order_slow_ones_too() -> None:
    usual = playing("iid2", 0.01)
    bench = Bench(lambda index: 0.5 if index in (40, 77) else usual(index), sync_s=1e-5)
    found = bench.measure()
    first_sample = len(bench.played) - found.sample_count
    assert found.samples_s == pytest.approx(bench.played[first_sample:])
    assert max(found.samples_s) == pytest.approx(0.5)


def test_the_first_step_is_a_figure_of_its_own() -> None:
    found = Bench(lambda index: 3.0 if index == 0 else 0.01).measure()
    assert found.first_step_s == pytest.approx(3.0)
    assert max(found.samples_s) == pytest.approx(0.01)


def test_a_warm_up_is_cut_off() -> None:
    found = Bench(playing("warm-step", 0.01)).measure()
    assert found.warmup_cut >= 57  # of the 60 slow steps three were spent before sampling
    assert found.center_s == pytest.approx(0.01, rel=0.01)


def test_floats_and_blocks_say_the_same() -> None:
    plain = Bench(playing("iid10", 0.01))
    wrapped = Bench(playing("iid10", 0.01))
    one = plain.measure()
    other = measure_steps(lambda count: Block(wrapped(count)), clock=wrapped.clock)
    assert one == other


def test_it_works_on_the_real_clock_by_default() -> None:
    import time

    def block(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            sum(range(2000))
        return time.perf_counter() - started

    found = measure_steps(block, settings=Settings(budget_s=0.2, min_time_s=0.05))
    assert 0 < found.low_s <= found.center_s <= found.high_s


@pytest.mark.parametrize(("step_s", "block_size"), [(0.9e-6, 12), (9.9e-6, 2), (10e-6, 1), (15e-6, 1), (1e-3, 1)])
def test_a_step_is_timed_alone_from_ten_microseconds_on(step_s: float, block_size: int) -> None:
    found = Bench(step_s).measure()
    assert found.block_size == block_size
    assert found.estimand == ("median" if block_size == 1 else "mean")
    assert found.center_s == pytest.approx(step_s)
    assert found.verdict == "stable"


@given(st.floats(1e-7, 1e-2), st.floats(1e-6, 1e-3))
@trials(max_examples=15)
def test_a_block_is_as_short_as_keeps_the_sync_below_one_percent(step_s: float, sync_s: float) -> None:
    bench = Bench(step_s, sync_s)
    found = bench.measure(settings=Settings(budget_s=0.2, min_time_s=0.01))
    size = found.block_size
    assert sync_s <= 0.0101 * size * step_s
    assert size == 1 or sync_s > 0.0099 * (size - 1) * step_s or (size - 1) * step_s < 10e-6
    assert found.center_s == pytest.approx(step_s)


def test_a_sync_that_was_cheaper_than_calibrated_does_not_make_a_block_without_end() -> None:
    bench = Bench(5e-6, sync_s=40e-6)
    found = measure_steps(bench, clock=bench.clock, sync_cost_s=50e-6)  # a step alone then seems to take no time
    assert max(bench.blocks) <= 2000
    assert bench.now < 6
    assert found.center_s == pytest.approx(5e-6, rel=0.02)


def by_events(bench: Bench, idle_s: float = 0.0) -> Callable[[int], Block]:
    """A device that stamps every step, and waits for each to be launched."""

    def block(count: int) -> Block:
        total = bench(count) + count * idle_s
        bench.now += count * idle_s
        return Block(total, tuple(bench.played[-count:]))

    return block


def test_steps_with_events_are_seen_alone_inside_a_block() -> None:
    bench = Bench(playing("bimodal", 50e-6), sync_s=10e-6)
    found = measure_steps(by_events(bench), clock=bench.clock, sync_cost_s=10e-6)
    assert (found.estimand, found.block_size) == ("median", 18)  # by the slow one of the two levels
    assert found.samples_s == tuple(bench.played[-found.sample_count :])
    assert found.device_step_s == pytest.approx(np.mean(found.samples_s))
    assert found.flags == ("bimodal",)


def test_the_hosts_cost_of_a_call_is_not_taken_off_the_devices_own_time() -> None:
    bench = Bench(20e-6, sync_s=10e-6)
    settings = Settings(call_cost_s=3e-6)
    assert measure_steps(
        by_events(bench), clock=bench.clock, sync_cost_s=10e-6, settings=settings
    ).center_s == pytest.approx(20e-6)
    host = Bench(20e-6, sync_s=10e-6).measure(settings=settings)
    assert host.center_s == pytest.approx(17e-6)
    assert host.samples_s[0] == pytest.approx(17e-6)


def test_a_device_that_waits_for_launches_is_launch_bound() -> None:
    bench = Bench(playing("iid2", 50e-6), sync_s=10e-6)
    found = measure_steps(by_events(bench, idle_s=50e-6), clock=bench.clock, sync_cost_s=10e-6)
    assert found.flags == ("launch-bound",)
    assert found.wall_step_s == pytest.approx(2 * (found.device_step_s or 0), rel=0.01)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 30, 1000])
def test_a_number_of_steps_is_taken_literally(steps: int) -> None:
    bench = Bench(playing("iid2", 1e-3))
    found = bench.measure(settings=Settings(steps=steps, budget_s=1e-3))
    assert found.sample_count == len(found.samples_s) == steps
    assert set(bench.blocks) == {1}
    assert bench.steps == steps + 1  # the first is a figure of its own
    assert found.low_s <= found.center_s <= found.high_s


def test_enough_steps_that_were_fixed_beforehand_may_be_called_stable() -> None:
    assert Bench(playing("iid2", 1e-3)).measure(settings=Settings(steps=400)).verdict == "stable"
    assert Bench(playing("iid10", 1e-3)).measure(settings=Settings(steps=50)).verdict == "noisy"


@given(
    kind=st.sampled_from(["iid10", "sticky", "heavy-tail", "drift"]),
    step_s=st.floats(2e-3, 1.0),
    budget_s=st.floats(0.5, 5.0),
    seed=st.integers(0, 99),
)
@trials(max_examples=20)
def test_the_budget_is_kept(kind: str, step_s: float, budget_s: float, seed: int) -> None:
    bench = Bench(playing(kind, step_s, seed, 4_000))
    found = bench.measure(settings=Settings(target=1e-6, budget_s=budget_s))
    last = found.samples_s[-1]
    assert found.sample_count <= 3 or found.duration_s <= 1.1 * budget_s + max(last - found.samples_s[-2], 0.0)
    assert found.verdict != "stable"


def test_a_long_step_gives_few_samples_and_says_how_little_it_knows() -> None:
    found = Bench(playing("iid10", 30.0)).measure(settings=Settings(budget_s=5.0))
    assert found.sample_count == 1
    assert (found.low_s, found.high_s) == (found.center_s / 2, found.center_s * 2)
    assert found.verdict == "noisy"


def test_short_steps_are_confirmed_before_the_samples_run_out() -> None:
    """Fifty thousand of them pass within the least time that is waited before a look."""
    found = Bench(playing("iid2", 12e-6)).measure()
    assert found.verdict == "stable"
    assert found.sample_count <= Settings().max_samples


@pytest.mark.parametrize("step_s", [0.0, 1e-12, 1e9])
def test_no_step_is_too_short_or_too_long(step_s: float) -> None:
    def clock() -> float:  # steps that take no time would never use a budget up
        bench.now += 1e-6
        return bench.now

    bench = Bench(step_s)
    found = measure_steps(bench, clock=clock, settings=Settings(budget_s=2e-4, min_time_s=1e-5))
    assert found.verdict in VERDICTS
    assert found.center_s == pytest.approx(step_s, abs=1e-11)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
@pytest.mark.parametrize("after", [0, 1, 50])
def test_a_timer_that_gives_no_time_is_an_error_and_not_an_endless_loop(seconds: float, after: int) -> None:
    bench = Bench(lambda index: 0.01 if index < after else seconds)
    with pytest.raises(TorchmarkError, match="the timer says"):
        bench.measure()
    stamps = Bench(0.01)
    with pytest.raises(TorchmarkError, match="the timer says"):
        measure_steps(lambda count: Block(stamps(count), (seconds,) * count), clock=stamps.clock)


def test_a_sync_that_took_less_than_its_calibration_gives_no_negative_time() -> None:
    bench = Bench(1e-5)
    found = measure_steps(bench, clock=bench.clock, sync_cost_s=2e-5, settings=Settings(steps=20))
    assert 0 < min(found.samples_s) <= found.center_s


def reading(bench: Bench, **rates: float) -> Callable[[], Conditions]:
    """Conditions that grow at these rates a second; a clock that falls by its rate."""

    def read() -> Conditions:
        clock_hz = 3e9 - rates.get("clock_fall", 0.0) * bench.now
        grown = {name: rate * bench.now for name, rate in rates.items() if name != "clock_fall"}
        return Conditions(bench.now, 2.0, clock_hz=clock_hz, **grown)

    return read


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ({"other_cpu_s": 1.0}, "contended"),
        ({"steal_s": 0.2}, "contended"),
        ({"throttled_s": 0.2}, "contended"),
        ({"other_cpu_s": 0.01, "steal_s": 0.01}, "stable"),
        ({"clock_fall": 1e9}, "stable"),
    ],
)
def test_what_the_machine_says_at_checkpoints_decides(rates: dict[str, float], verdict: str) -> None:
    bench = Bench(playing("iid2", 0.01))
    assert bench.measure(conditions=reading(bench, **rates)).verdict == verdict


def test_shares_are_of_the_whole_measurement() -> None:
    bench = Bench(playing("iid2", 0.01))
    found = bench.measure(conditions=reading(bench, other_cpu_s=1.0))
    assert found.contention.other_cpu_share == pytest.approx(0.5)  # one of two cores
    assert "50%" in found.evidence[0]


def test_a_neighbour_that_came_halfway_is_seen() -> None:
    bench = Bench(playing("iid10", 0.01))

    def read() -> Conditions:
        return Conditions(bench.now, 2.0, other_cpu_s=max(bench.now - 2.5, 0.0))

    assert bench.measure(conditions=read).verdict == "contended"


def test_steps_that_waited_for_a_core_are_contended_where_nothing_else_can_be_read() -> None:
    bench = Bench(playing("iid2", 0.01))

    def block(count: int) -> Block:
        total = bench(count)
        return Block(total, wait_s=0.1 * total, switches=2)

    found = measure_steps(block, clock=bench.clock)
    assert (found.verdict, found.flags) == ("contended", ())
    assert found.contention.wait_share == pytest.approx(0.1)
    assert found.contention.switches == 2 * found.sample_count
    alone = measure_steps(block, clock=bench.clock, conditions=reading(bench, other_cpu_s=0.0))
    assert (alone.verdict, alone.flags) == ("stable", ("oversubscribed",))


@pytest.mark.parametrize(("fall", "verdict"), [(1e8, "throttled"), (0.0, "slowing")])
def test_a_slowdown_is_throttling_only_with_evidence(fall: float, verdict: str) -> None:
    bench = Bench(playing("throttle", 0.01))
    found = bench.measure(conditions=reading(bench, clock_fall=fall, other_cpu_s=0.0))
    assert found.verdict == verdict


def test_a_waiting_run_is_reported_at_checkpoints() -> None:
    heard: list[Progress] = []
    bench = Bench(playing("iid10", 0.01))
    found = bench.measure(progress=heard.append, settings=Settings(call_cost_s=0.001))
    assert [each.samples for each in heard] == sorted(each.samples for each in heard)
    assert all(0 <= each.low_s <= each.center_s <= each.high_s for each in heard)
    assert (heard[-1].samples, heard[-1].center_s) == (found.sample_count, found.center_s)


def pair(kind: str, slower: float, seed: int, turned: bool = False):
    bench = Bench(playing(kind, 0.01, seed, 3000))

    def other(count: int) -> float:
        seconds = bench(count)
        bench.now += (slower - 1) * seconds
        return slower * seconds

    a, b = (other, bench) if turned else (bench, other)
    return measure_pair(a, b, clock=bench.clock, seed=seed)


@pytest.mark.parametrize("kind", ["iid2", "warm-step", "bimodal"])
def test_a_true_difference_of_three_percent_is_found_and_none_where_none_is(kind: str) -> None:
    assert [pair(kind, 1.0, seed).verdict in ("same", "unsure") for seed in range(10)].count(True) >= 9
    assert [pair(kind, 1.03, seed).verdict for seed in range(10)].count("slower") >= 8


def test_a_comparison_turned_round_says_the_reverse() -> None:
    for seed in range(5):
        forwards, backwards = pair("iid2", 1.05, seed), pair("iid2", 1.05, seed, turned=True)
        assert (forwards.verdict, backwards.verdict) == ("slower", "faster")
        assert forwards.ratio * backwards.ratio == pytest.approx(1, abs=0.02)
        assert forwards.low <= 1.05 <= forwards.high or forwards.ratio == pytest.approx(1.05, rel=0.01)


def test_the_cost_of_calls_does_not_blur_a_difference() -> None:
    a, b = Bench(3e-6), Bench(2e-6)

    def clock() -> float:
        return a.now + b.now

    found = measure_pair(a, b, clock=clock, settings=Settings(call_cost_s=1e-6, budget_s=0.1))
    assert found.ratio == pytest.approx(0.5)
    assert found.verdict == "faster"


def test_pairs_take_turns_in_random_order() -> None:
    order: list[str] = []
    bench = Bench(0.01)

    def named(name: str) -> Callable[[int], float]:
        return lambda count: (order.append(name), bench(count))[1]

    found = measure_pair(named("a"), named("b"), clock=bench.clock, settings=Settings(steps=200))
    turns = ["".join(order[index : index + 2]) for index in range(6, len(order), 2)]
    assert set(turns) == {"ab", "ba"}
    assert len(turns) == found.pairs == 200
