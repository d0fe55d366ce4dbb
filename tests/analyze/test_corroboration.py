"""Three files agree or one of them stands apart; copies of one measurement never count as several."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from torchmark.analyze.corroboration import Corroboration, Witness, corroborate, digest, witness

CASE = "mlp/infer@cpu/float32"
Make = Callable[..., Witness]


@pytest.fixture
def make(make_header, make_result, make_estimate) -> Make:
    def witness_of(name: str, center_s: float = 1e-3, samples: str = "", **machine: object) -> Witness:
        result = make_result(CASE, estimate=make_estimate(center_s))
        about = replace(make_header().machine, **machine)
        found = witness(name, f"run of {name}", 5, about, result, [digest([center_s, hash(samples or name)])])
        assert found
        return found

    return witness_of


def found_by(*witnesses: Witness) -> Corroboration:
    return corroborate(witnesses)


def test_three_files_that_agree_support_each_other(make: Make) -> None:
    found = found_by(make("a", 1.00e-3), make("b", 1.03e-3), make("c", 0.98e-3))
    assert found.supported == {(name, CASE) for name in "abc"}
    assert found.apart == found.copies == ()


def test_two_files_prove_nothing(make: Make) -> None:
    assert found_by(make("a"), make("b")) == Corroboration(frozenset(), (), ())


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 20.0])
def test_one_that_stands_apart_is_named_and_the_others_are_not(make: Make, factor: float) -> None:
    found = found_by(make("a", 1.00e-3), make("b", 1.01e-3), make("c", 0.99e-3), make("d", factor * 1e-3))
    ((who, ratio, count),) = found.apart
    assert (who.file, count) == ("d", 3)
    assert ratio == pytest.approx(factor, rel=0.02)
    assert found.supported == {(name, CASE) for name in "abc"}


def test_equal_samples_count_once(make: Make) -> None:
    found = found_by(make("a", samples="s"), make("b", samples="s"), make("c", samples="s"))
    assert found.supported == frozenset()
    assert [(first.file, copy.file) for first, copy in found.copies] == [("a", "b"), ("a", "c")]


@pytest.mark.parametrize("factor", [1.003, 0.997, 1 / 3, 1e3])
def test_a_factor_makes_no_new_measurement(factor: float) -> None:
    series = [1e-3 * (1 + 0.01 * math.sin(7.3 * number)) for number in range(2000)]
    assert digest([factor * value for value in series]) == digest(series)
    assert digest([*series[1:], series[0]]) != digest(series)


def test_steady_series_of_two_machines_are_no_copies() -> None:
    for series in ([1e-3], [1e-3, 1.1e-3], [1e-3] * 50, []):
        assert not series or digest([2 * value for value in series]) != digest(series)


@pytest.mark.parametrize("other", [{"torch": "2.9.0"}, {"cpu": "Another"}, {"physical_cores": 1}, {"devices": ()}])
def test_another_device_or_software_is_no_witness(make: Make, other: dict[str, object]) -> None:
    assert found_by(make("a"), make("b"), make("c", **other)).supported == frozenset()


def test_a_margin_that_explains_everything_explains_nothing(make: Make) -> None:
    vague = replace(make("d", 5e-3), margin=1e9)
    assert [each.file for each, _, _ in found_by(make("a"), make("b"), make("c"), vague).apart] == ["d"]


def test_a_failed_or_disturbed_case_bears_no_witness(make_header, make_result, make_estimate) -> None:
    for result in (
        make_result(CASE, status="oom", reason="x"),
        make_result(CASE, estimate=make_estimate(verdict="contended")),
    ):
        assert witness("a", "id", 1, make_header().machine, result, []) is None
