"""A search for what fits, on machines whose memory is not the same in every process."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark import records
from torchmark.analyze.search import CONTENDING, RATE_TRIES, TRIES
from torchmark.records import Contention, Memory, Result, Work, parse_case
from torchmark.studies.fit import Fit, FitOptions, Probed
from torchmark.studies.study import Announcement, Completed

CASE = parse_case("mlp/infer@cpu/float32")
LIMIT = 1000 << 20
HERE = records.Machine("a processor", 2, 2, 16, "Linux", "3")


class Machine(Fit):
    """One on which a size takes fixed + per item, and up to `chance` more of that, as it comes."""

    def __init__(self, seed: int, chance: float, per_item: int, most: int | None = None) -> None:
        super().__init__(FitOptions(CASE, limit_bytes=LIMIT, most=most), HERE)
        self._random, self._chance, self._per_item = random.Random(seed), chance, per_item
        self.needed: dict[int, list[float]] = {}

    def _measure(self, size: int) -> Result:
        needed = ((300 << 20) + self._per_item * size) * (1 + self._random.uniform(0, self._chance))
        self.needed.setdefault(size, []).append(needed)
        result = Result(replace(CASE, params={"batch": size}), "ok", memory=Memory(host_peak_bytes=int(needed)))
        return result if needed <= LIMIT else replace(result, status="oom", reason="too much")


@given(seed=st.integers(0, 10**6), chance=st.sampled_from([0.0, 0.02, 0.1]), per_item=st.integers(1 << 16, 80 << 20))
def test_the_answer_fitted_every_time_and_nothing_smaller_failed(seed: int, chance: float, per_item: int) -> None:
    study = Machine(seed, chance, per_item)
    list(study.events())
    found = study.conclusion()
    assert found.bound == "memory"
    assert found.largest is not None
    assert len(study.needed[found.largest]) == found.tries == TRIES
    assert max(study.needed[found.largest]) <= LIMIT
    failed = [size for size, needed in study.needed.items() if max(needed) > LIMIT]
    assert found.largest < min(failed) <= found.largest + found.step
    assert all(len(needed) <= TRIES for needed in study.needed.values())


@example(seed=67229, chance=0.1, knee=63)
@given(seed=st.integers(0, 10**6), chance=st.sampled_from([0.0, 0.1]), knee=st.integers(1, 500))
def test_rates_near_the_highest_are_of_two_processes(make_estimate, seed: int, chance: float, knee: int) -> None:
    class Rated(Machine):
        """Its rate rises up to a knee, and the pace of its processes differs by a tenth."""

        def _measure(self, size: int) -> Result:
            made = make_estimate(center_s=(knee + size) * self._random.uniform(1.0, 1.1) * 1e-3)
            work = Work(size, "item")
            return replace(super()._measure(size), estimate=made, processes=(made,), work=work)

    study = Rated(seed, chance, 1 << 20)
    list(study.events())
    found = study.conclusion()
    rates = {probe.size: probe.rate for probe in study.probes.values() if probe.fits and probe.size <= found.largest}
    highest = max(rates, key=lambda size: rates[size])
    near = {size for size, rate in rates.items() if rate >= CONTENDING * rates[highest] and size <= found.efficient}
    assert found.efficient in near
    near.add(highest)
    assert all(len(study.needed[size]) >= RATE_TRIES for size in near)
    assert all(len(needed) <= TRIES for needed in study.needed.values())
    failed = [size for size, needed in study.needed.items() if max(needed) > LIMIT]
    assert found.largest is not None
    assert found.largest < min(failed) <= found.largest + found.step  # even if it was found out while rates were sought


def test_where_memory_is_no_limit_nothing_is_tried_again() -> None:
    study = Machine(0, 0.0, 1 << 10, most=64)
    list(study.events())
    assert (study.conclusion().bound, study.conclusion().largest) == ("parameter", 64)
    assert all(len(needed) == 1 for needed in study.needed.values())


def test_a_try_that_ends_for_another_reason_changes_nothing() -> None:
    class Slow(Machine):
        def _measure(self, size: int) -> Result:
            again = size in self.needed
            result = super()._measure(size)
            return replace(result, status="timeout", reason="too slow") if again else result

    study = Slow(0, 0.0, 1 << 20)
    stored = [event.newest.status for event in study.events() if isinstance(event, Completed)]
    found = study.conclusion()
    assert (found.bound, found.tries) == ("memory", 1)
    assert "timeout" not in stored


def test_every_try_is_reported_with_what_is_known_of_its_size() -> None:
    study = Machine(7, 0.1, 1 << 20)
    events = [event for event in study.events() if isinstance(event, Completed | Announcement)]
    stored, announced = events[::2], events[1::2]  # each is stored before it is announced
    tried = [(event.probe.size, event.probe.tries) for event in announced if isinstance(event, Probed)]
    assert [event.process + 1 for event in stored if isinstance(event, Completed)] == [tries for _, tries in tried]
    assert [tries for size, tries in tried if size == study.conclusion().largest] == [1, 2, 3]
    again = [event.newest.status for event in stored if isinstance(event, Completed) and event.process]
    assert again[-2:] == ["ok", "ok"]


class Failing(Machine):
    """Some sizes end for a reason that has nothing to do with memory."""

    def __init__(self, broken: Callable[[int], bool], reason: str) -> None:
        super().__init__(0, 0.0, 1 << 20)
        self._broken, self._reason = broken, reason

    def _measure(self, size: int) -> Result:
        result = super()._measure(size)
        return replace(result, status="crashed", reason=self._reason) if self._broken(size) else result


def test_an_error_of_the_model_is_no_want_of_memory() -> None:
    study = Failing(lambda size: size > 64, "model.py, line 3: IndexError: index out of range in self")
    list(study.events())
    assert (study.conclusion().bound, study.conclusion().largest) == ("crashed", 64)


def test_a_worker_that_died_where_something_smaller_ran_had_no_room() -> None:
    study = Failing(lambda size: size > 64, "the worker was ended by SIGSEGV during steps")
    list(study.events())
    assert (study.conclusion().bound, study.conclusion().largest) == ("memory", 64)


def test_sizes_that_are_too_small_to_work_are_passed_over() -> None:
    study = Failing(lambda size: size < 4, "ValueError: Expected more than 1 value per channel")
    tried = [event.probe.size for event in study.events() if isinstance(event, Probed)]
    assert tried[:3] == [1, 2, 4]
    assert (study.conclusion().bound, study.conclusion().tried[0].size) == ("memory", 4)
    hopeless = Failing(lambda _: True, "ValueError: never")
    list(hopeless.events())
    assert (hopeless.conclusion().bound, hopeless.conclusion().largest) == ("crashed", None)


def test_a_longer_sequence_counts_by_its_tokens(make_estimate) -> None:
    class Reading(Fit):
        def _measure(self, size: int) -> Result:
            made = make_estimate(center_s=0.01 * size)
            return Result(self.case, "ok", estimate=made, processes=(made,), work=Work(8, "sample"))

    Reading.case = parse_case("bert-encode/infer:batch=8@cpu/float32")
    study = Reading(FitOptions(Reading.case, "sequence", limit_bytes=LIMIT), HERE)
    assert study.probe(4).rate == study.probe(16).rate == pytest.approx(800.0)
    assert study.conclusion().unit == "token"


def test_one_stray_crash_undoes_nothing_that_is_known(make_estimate) -> None:
    """The rates are measured again when the largest is known; a worker that is killed then says nothing of memory."""

    class Killed(Machine):
        def _measure(self, size: int) -> Result:
            again, made = size in self.needed and size < 100, make_estimate(center_s=1e-3 * size + 1e-4)
            found = replace(super()._measure(size), estimate=made, processes=(made,), work=Work(size, "item"))
            return replace(found, status="crashed", reason="the worker was ended by SIGKILL") if again else found

    study = Killed(0, 0.0, 1 << 20)
    list(study.events())
    assert study.conclusion().largest is not None
    assert study.conclusion().largest > 600


@pytest.mark.parametrize(("busy", "efficient", "tries"), [(0, 8, 2), (1, 8, 3), (9, None, 3)])
def test_no_size_is_called_efficient_by_processes_that_others_slowed(
    make_estimate, busy: int, efficient: int | None, tries: int
) -> None:
    class Busy(Machine):
        """Size 8 has the best rate, and other programs are busy while its first processes run."""

        def _measure(self, size: int) -> Result:
            share = 0.3 if size == 8 and len(self.needed.get(8, [])) < busy else 0.0
            made = make_estimate(1e-3 * max(size, 8) * (1 + share), contention=Contention(other_cpu_share=share))
            return replace(super()._measure(size), estimate=made, processes=(made,), work=Work(size, "item"))

    study = Busy(0, 0.0, 1 << 20, most=16)
    list(study.events())
    found = study.conclusion()
    assert found.efficient == efficient
    assert len(study.needed[8]) == tries
