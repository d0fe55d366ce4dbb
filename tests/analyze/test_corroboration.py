"""Three files agree or one of them stands apart; copies of one measurement never count as several."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from torchmark.analyze.check import Corroboration, Witness, corroborate, keep, witness
from torchmark.devices.streams import KINDS, stream

CASE = "mlp/infer@cpu/float32"
Make = Callable[..., Witness]


@pytest.fixture
def make(make_header, make_result, make_estimate) -> Make:
    def witness_of(name: str, center_s: float = 1e-3, samples: object = None, **machine: object) -> Witness:
        result = make_result(CASE, estimate=make_estimate(center_s))
        about = replace(make_header().machine, **machine)
        series = keep([center_s, hash(name)] if samples is None else samples)
        found = witness(name, f"run of {name}", 5, about, result, [series])
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
    found = found_by(*(make(name, samples=[1e-3, 2e-3]) for name in "abc"))
    assert found.supported == frozenset()
    assert [(first.file, copy.file) for first, copy in found.copies] == [("a", "b"), ("a", "c")]


@pytest.mark.parametrize("factor", [1.003, 0.997, 1 / 3, 1e3])
def test_a_factor_makes_no_new_measurement(factor: float) -> None:
    series = [1e-3 * (1 + 0.01 * math.sin(7.3 * number)) for number in range(2000)]
    assert keep([factor * value for value in series]).digest == keep(series).digest
    assert keep([*series[1:], series[0]]).digest != keep(series).digest


def test_steady_series_of_two_machines_are_no_copies() -> None:
    for series in ([1e-3], [1e-3, 1.1e-3], [1e-3] * 50, []):
        assert not series or keep([2 * value for value in series]).digest != keep(series).digest


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


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def digits(values: np.ndarray, count: int = 7) -> np.ndarray:
    return np.array([float(f"{value:.{count}g}") for value in values])


def jitter(values: np.ndarray, relative: float) -> np.ndarray:
    return values * (1 + relative * np.random.default_rng(8).standard_normal(len(values)))


def changed(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values)) == 3, 1.3 * values, values)


ALTERED = {
    "rounded": digits,
    "jitter of 1e-7": lambda values: jitter(values, 1e-7),
    "jitter of 1e-6": lambda values: jitter(values, 1e-6),
    "one sample changed": changed,
    "one sample changed, rounded": lambda values: digits(changed(values)),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
@pytest.mark.parametrize("count", [20, 150, 3000])
@pytest.mark.parametrize("kind", ["iid2", "bimodal", "ar1", "preempt", "quiet"])
def test_altered_copies_count_once(make: Make, random, kind: str, count: int, alter) -> None:
    """Also a second copy with other changes than the first."""
    original = 1e-3 * (np.exp(5e-4 * random.standard_normal(count)) if kind == "quiet" else stream(kind, random, count))
    copies = alter(1.003 * original), alter(digits(1.006 * original, 9))
    found = found_by(*(make(name, samples=samples) for name, samples in zip("abc", (original, *copies), strict=True)))
    assert [(first.file, copy.file) for first, copy in found.copies] == [("a", "b"), ("a", "c")]
    assert found.supported == frozenset()


def ticks(random: np.random.Generator, count: int, tick: float, noise: float) -> np.ndarray:
    return np.round(np.exp(noise * random.standard_normal(count)) / tick) * tick


def patterned(random: np.random.Generator, count: int, noise: float) -> np.ndarray:
    """Each step has a time of its own, as where inputs differ in length; all runs have the same inputs."""
    pattern = np.random.default_rng(1).uniform(0, 0.3, 64)
    return np.exp(pattern[np.arange(count) % 64] + noise * random.standard_normal(count))


HONEST: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    **{kind: lambda random, count, kind=kind: stream(kind, random, max(count, 100))[:count] for kind in KINDS},
    "quiet": lambda random, count: np.exp(5e-4 * random.standard_normal(count)),
    "very quiet": lambda random, count: np.exp(1e-5 * random.standard_normal(count)),
    "coarse clock": lambda random, count: ticks(random, count, 0.01, 0.02),
    "fine clock": lambda random, count: ticks(random, count, 1e-3, 0.01),
    "growing": lambda random, count: np.exp(np.linspace(0, 0.5, count) + 1e-3 * random.standard_normal(count)),
    "pattern": lambda random, count: patterned(random, count, 1e-3),
    "quiet pattern": lambda random, count: patterned(random, count, 3e-4),
}


@pytest.mark.parametrize("count", [12, 30, 150, 1000, 30_000])
@pytest.mark.parametrize("kind", HONEST)
def test_independent_repeats_are_no_copies(make: Make, random, kind: str, count: int) -> None:
    repeats = [make(str(index), samples=1e-3 * HONEST[kind](random, count)) for index in range(30)]
    found = corroborate(repeats)
    assert found.copies == ()
    assert len(found.supported) == len(repeats)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("noise", [5e-4, 0.02])
def test_short_series_are_copies_only_if_they_are_equal(make: Make, random, noise: float, count: int) -> None:
    series = [1e-3 * np.exp(noise * random.standard_normal(count)) for _ in range(30)]
    found = corroborate(make(str(index), samples=each) for index, each in enumerate([*series, series[0]]))
    assert [(first.file, copy.file) for first, copy in found.copies] == [("0", "30")]


def test_what_does_not_count_supports_nothing_but_is_compared(make: Make) -> None:
    doubtful = replace(make("c"), counts=False)
    assert found_by(make("a"), make("b"), doubtful).supported == {("c", CASE)}
    slow = replace(make("d", 2e-3), counts=False)
    assert [each.file for each, _, _ in found_by(make("a"), make("b"), slow).apart] == ["d"]


def test_a_doubtful_file_does_not_make_a_sound_one_its_copy(make: Make) -> None:
    first, second = make("a", samples=[1e-3, 2e-3]), make("b", samples=[1e-3, 2e-3])
    found = found_by(replace(first, counts=False), second, make("c"), make("d"))
    assert [(original.file, copy.file) for original, copy in found.copies] == [("b", "a")]
    assert ("b", CASE) in found.supported


def test_a_copy_that_stands_apart_is_named(make: Make) -> None:
    """Its times are multiplied by two: the samples are those of `a`, the figure is not."""
    samples = [1e-3, 1.1e-3, 1.2e-3]
    copy = make("copy", 2e-3, [2 * value for value in samples])
    found = found_by(make("a", samples=samples), make("b"), make("c"), copy)
    assert [each.file for each, _, _ in found.apart] == ["copy"]
    assert found.supported == {(name, CASE) for name in "abc"}
