"""The arithmetic of finding what fits: which size to try next, memory as a line over sizes, the most efficient size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import grade_of, is_contended
from torchmark.analyze.spread import relative_spread
from torchmark.records import Case, Fitting, Result, Run, Tried

TRIES = 3  # processes in which the largest size has to fit
EFFICIENT = 0.97  # of the highest rate: the smallest size that reaches it is the most efficient
CONTENDING = 0.85  # of the highest rate: what reaches it could be the most efficient in another process
RATE_TRIES = 2  # processes behind the rates of those
CONTENDED = "contended"  # as grades call it
RISING = 1.05  # times the least memory: below, the largest thing in memory is not yet what grows
_TRUSTED = 5  # sizes near the answer after which halving is surer than the model
_FINENESS = 32  # parts of the largest size that fits, one of which is a step
# The fields that a search and its stored conclusion have in common.
_KEPT = ("parameter", "limit_bytes", "bound", "largest", "efficient", "unit", "step", "duration_s")


class Probe(Struct, frozen=True):
    """One size that was tried; it fits if it did so every time."""

    size: int
    fits: bool
    result: Result  # of all tries together
    peaks: tuple[float, ...] = ()  # bytes, of each try that has one
    rate: float | None = None  # items a second
    tries: int = 1
    doubt: str = ""  # why no conclusion may rest on its rate

    @property
    def bytes(self) -> float | None:
        """The highest peak."""
        return max(self.peaks, default=None)


class MemoryModel(Struct, frozen=True):
    """bytes = fixed + per_item × size; `error` is how far the worst of the sizes it rests on is off."""

    fixed: float
    per_item: float
    error: float

    def size_for(self, limit_bytes: float) -> float:
        """The size that would take exactly so much."""
        return (limit_bytes - self.fixed) / self.per_item


class Fitted(Struct, frozen=True):
    """What was found. `bound` is what ends the search above: memory, the parameter's own limit, or time."""

    parameter: str
    unit: str
    probes: tuple[Probe, ...]  # by size
    limit_bytes: float
    bound: str
    step: int
    largest: int | None = None
    efficient: int | None = None
    model: MemoryModel | None = None
    duration_s: float = 0.0

    @property
    def answer(self) -> Probe | None:
        """The largest size that fits, with all that is known of it."""
        return next((probe for probe in self.probes if probe.size == self.largest), None)

    def conclusion(self, case: Case) -> Fitting:
        """The part of it that the run keeps, in addition to the results."""
        tried = [Tried(p.result.case.text, p.size, p.rate, p.tries, p.peaks, p.doubt) for p in self.probes]
        return Fitting(
            case=case,
            tries=self.answer.tries if self.answer else 0,
            fixed_bytes=self.model.fixed if self.model else None,
            item_bytes=self.model.per_item if self.model else None,
            line_error=self.model.error if self.model else 0.0,
            tried=tuple(tried),
            **{name: getattr(self, name) for name in _KEPT},
        )


def recall_fitted(run: Run) -> Fitted:
    """What a stored search has found, from what is kept of it."""
    found, results = run.fitting, {result.case.text: result for result in run.results}
    assert found is not None
    known = [(each, results[each.case]) for each in found.tried if each.case in results]
    probes = [
        Probe(each.size, result.status == "ok", result, each.peaks, each.rate, each.tries, each.doubt)
        for each, result in known
    ]
    fixed, per_item = found.fixed_bytes, found.item_bytes
    model = None if fixed is None or per_item is None else MemoryModel(fixed, per_item, found.line_error)
    return Fitted(probes=tuple(probes), model=model, **{name: getattr(found, name) for name in _KEPT})


def rate_center_s(result: Result) -> tuple[float, str]:
    """The step time behind a size's rate, from undisturbed processes where there are any, and why it is not
    reliable."""
    calm = [each for each in result.processes if not is_contended(each)] or list(result.processes)
    centers, ends = [each.center_s for each in calm], {"low_s": min(each.low_s for each in calm)}
    ends |= {"high_s": max(each.high_s for each in calm), "center_s": sum(centers) / len(centers)}
    grade = grade_of(replace(result, estimate=replace(calm[0], spread=relative_spread(centers), **ends)))
    return ends["center_s"], grade.cause if grade and grade.word == "poor" else ""


def usual_step(size: int) -> int:
    """How fine an answer is worth its time: about 3%, in a power of two."""
    return 1 if size < 2 * _FINENESS else 2 ** int(math.log2(size / _FINENESS))


def bracket(probes: Sequence[Probe], lowest: int, highest: int) -> tuple[int, int]:
    """The smallest size known not to fit and the largest below it that fits; one beyond each end where there is
    none."""
    fails = min((each.size for each in probes if not each.fits), default=highest + 1)
    fits = max((each.size for each in probes if each.fits and each.size < fails), default=lowest - 1)
    return fits, fails


def next_size(
    probes: Sequence[Probe], lowest: int, highest: int, limit_bytes: float, step: int | None = None
) -> int | None:
    """What to try next; None where the answer is known to one step. Doubles until something does not fit, or goes where
    the memory model says, and bisects where that did not help."""
    low, high = bracket(probes, lowest, highest)
    if low < lowest:
        return None if high <= lowest else lowest
    fine = step or usual_step(low)
    if high - low <= fine or low >= highest:
        return None
    model = fit_memory(probes)
    guess = int(model.size_for(limit_bytes)) if model else None
    if high > highest and (guess is None or 2 * low <= guess):
        return min(2 * low, highest)
    tried, near = {each.size for each in probes}, len([each for each in probes if each.size > low / 2])
    for size in (guess, guess + fine) if guess is not None and near < _TRUSTED else ():
        if low + fine <= size <= high - fine and size not in tried:
            return size
    return min(max((low + min(high, 2 * low + 1)) // 2, low + 1), highest)


def fit_memory(probes: Sequence[Probe]) -> MemoryModel | None:
    """A line through the peaks, as far down as they rise with the size; None where there are too few of them."""
    points = sorted((each.size, each.bytes) for each in probes if each.fits and each.bytes)
    least = min((held for _, held in points), default=0.0)
    rising = [(size, held) for size, held in points if held > RISING * least]
    if len(rising) < 2:
        return None
    sizes, held = np.array(rising, dtype=float).T
    per_item, fixed = (float(value) for value in np.polyfit(sizes, held, 1))
    if per_item <= 0:
        return None
    error = float(np.max(np.abs(fixed + per_item * sizes - held) / held))
    return MemoryModel(fixed, per_item, error)


def doubtful(probes: Sequence[Probe]) -> list[Probe]:
    """Unreliable sizes that keep the most efficient one from being named."""
    decisive = {each.size for each in _deciding(probes)}
    return [each for each in probes if each.fits and each.doubt and (each.size in decisive or each.doubt == CONTENDED)]


def most_efficient(probes: Sequence[Probe]) -> int | None:
    """The smallest size whose rate is as good as the highest."""
    return min((each.size for each in _reaching(EFFICIENT, probes)), default=None)


def next_contender(probes: Sequence[Probe]) -> int | None:
    """The next size to measure again: one on which the most efficient size depends, seen in too few processes."""
    due = [each for each in _deciding(probes) if each.tries < RATE_TRIES]
    due += [each for each in doubtful(probes) if each.tries < TRIES]
    return min((each.size for each in due), default=None)


def _deciding(probes: Sequence[Probe]) -> list[Probe]:
    near, efficient = _reaching(CONTENDING, probes), most_efficient(probes)
    highest = max(near, key=lambda each: each.rate or 0.0, default=None)
    return [each for each in near if each is highest or (efficient is not None and each.size <= efficient)]


def _reaching(share: float, probes: Sequence[Probe]) -> list[Probe]:
    rated = [(each.rate, each) for each in probes if each.fits and each.rate]
    highest = max((rate for rate, _ in rated), default=0.0)
    return [each for rate, each in rated if rate >= share * highest]
