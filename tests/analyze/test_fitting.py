"""Whatever memory does over sizes, the search ends within one step of what an exhaustive one would find."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.search import Probe, bracket, fit_memory, most_efficient, next_contender, next_size, usual_step
from torchmark.records import Result, parse_case

RESULT = Result(parse_case("mlp/infer@cpu/float32"), "ok")


def search(memory, limit: float, highest: int, step: int | None = None) -> tuple[int, list[Probe]]:
    """The largest size that fits, as found, and all that was tried."""
    probes: list[Probe] = []
    while (size := next_size(probes, 1, highest, limit, step)) is not None:
        assert 1 <= size <= highest
        assert size not in {probe.size for probe in probes}
        held = memory(size)
        probes.append(Probe(size, held <= limit, RESULT, (held,) if held <= limit else ()))
    return max((probe.size for probe in probes if probe.fits), default=0), probes


@given(
    fixed=st.floats(1, 1e3), per_item=st.floats(0.001, 300), bend=st.floats(1, 1.6), limit=st.floats(2, 5e4),
    highest=st.integers(1, 1 << 20), step=st.none() | st.integers(1, 5),
)  # fmt: skip
def test_it_ends_within_one_step_of_the_truth(fixed, per_item, bend, limit, highest, step) -> None:
    def memory(size: int) -> float:
        return max(fixed, 0.8 * fixed + per_item * size**bend)

    found, probes = search(memory, limit, highest, step)
    assert found == 0 or memory(found) <= limit
    beyond = found + (step or usual_step(found))
    assert beyond > highest or memory(beyond) > limit
    assert len(probes) <= 45


def test_a_straight_line_is_followed_to_its_end_in_few_probes() -> None:
    found, probes = search(lambda size: 500 + 3.0 * size, limit=8000, highest=1 << 20)
    assert 2500 - usual_step(2500) < found <= 2500
    assert len(probes) <= 15
    assert sum(not probe.fits for probe in probes) <= 3
    model = fit_memory(probes)
    assert model is not None
    assert (model.fixed, model.per_item) == (pytest.approx(500), pytest.approx(3))
    assert model.size_for(8000) == pytest.approx(2500)
    assert model.error < 1e-9


def test_where_memory_does_not_rise_there_is_no_line() -> None:
    flat = [Probe(size, True, RESULT, (100.0,)) for size in (1, 2, 4, 8)]
    assert fit_memory(flat) is None
    assert next_size(flat, 1, 1 << 20, 1000.0) == 16


def test_the_most_efficient_is_the_smallest_that_is_good_enough() -> None:
    rates = {1: 10.0, 2: 19.0, 4: 30.0, 8: 30.5, 16: 29.0}
    probes = [Probe(size, True, RESULT, (1.0,), rate) for size, rate in rates.items()]
    assert most_efficient(probes) == 4
    assert most_efficient([Probe(1, False, RESULT)]) is None


def test_what_comes_near_the_highest_rate_is_tried_once_more() -> None:
    rates = {1: 10.0, 2: 26.0, 4: 29.5, 8: 28.0, 16: 30.0, 32: 29.0}
    probes = [Probe(size, True, RESULT, (1.0,), rate) for size, rate in rates.items()]
    for wanted in (2, 4, 16):  # not 8 and 32: whatever they are, 4 is smaller
        assert next_contender(probes) == wanted
        probes = [replace(each, tries=2) if each.size == wanted else each for each in probes]
    assert next_contender(probes) is None
    assert next_contender([Probe(1, False, RESULT)]) is None


def test_what_fits_above_a_failure_is_luck() -> None:
    probes = [Probe(size, size != 7, RESULT) for size in (4, 6, 7, 8)]
    assert bracket(probes, 1, 100) == (6, 7)
    assert bracket([], 1, 100) == (0, 101)


def test_nothing_fits_at_all() -> None:
    found, probes = search(lambda size: 10.0 * size, limit=5, highest=100)
    assert (found, len(probes)) == (0, 1)
