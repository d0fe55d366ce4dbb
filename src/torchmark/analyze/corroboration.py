"""Do several run files of the same device and software agree? That they are independent is claimed, not known."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from torchmark.records import Machine, Result

ENOUGH = 3  # files
APART = 0.10  # what fresh processes, other memory and a warmer room explain
SPREADS = 3.0  # and how many of the files' own margins beside that
WIDEST = 0.2  # a margin that explains everything would say nothing
_STEADY = ("stable", "noisy")  # whoever says that something disturbed the figure does not stand for it

DIGITS, DISTINCT = 6, 3  # of the digest: decimals of samples relative to their median, and different values at least
WINDOW, FEWEST = 256, 10  # samples of a process that are compared one by one: at most, and at least
NEAR, COPIED = 1e-5, 0.9  # relative difference of copied samples, and their share; honest repeats differ by far more
NOISE = 10 * NEAR  # typical deviation from the median below which samples of independent processes may be that near

FloatArray = NDArray[np.float64]


class Series(Struct, frozen=True, eq=False):
    """What is kept of a process's samples to recognise copies of them."""

    digest: str
    logs: FloatArray  # relative to their median, so that a factor does not matter; empty if there is too little to see


class Witness(Struct, frozen=True):
    """One file's figure for one case."""

    file: str
    run: str
    line: int
    case: str
    place: tuple[str, ...]  # the work, the device and the software: only what agrees in these can agree in time
    center_s: float
    margin: float  # relative
    series: tuple[Series, ...]  # one for each process; near copies are one measurement, however often they are sent in
    counts: bool = True  # False: it is compared with others, but supports none of them


class Corroboration(Struct, frozen=True):
    """What the files say of each other: figures that others support, copies, and figures that stand apart."""

    supported: frozenset[tuple[str, str]]  # file and case
    copies: tuple[tuple[Witness, Witness], ...]  # the second has nearly the samples of the first
    apart: tuple[tuple[Witness, float, int], ...]  # how many times slower than so many others


def witness(
    file: str, run: str, line: int, machine: Machine, result: Result, series: Sequence[Series]
) -> Witness | None:
    """A file's figure as it is compared with those of others; `series` has the samples of each process."""
    estimate, device = result.estimate, result.case.device
    if result.status != "ok" or estimate is None or estimate.verdict not in _STEADY:
        return None
    if estimate.center_s <= max(estimate.call_cost_s, 0.0):
        return None
    info = next(((each.model, each.driver, each.cores) for each in machine.devices if each.name == device), None)
    parts = (machine.cpu, machine.physical_cores, machine.torch, machine.torch_build, info)
    figures = (estimate.center_s, estimate.low_s, estimate.high_s, estimate.sample_count)
    return Witness(
        file=file,
        run=run,
        line=line,
        case=result.case.text,
        place=(result.case.text, str(result.version), *map(str, parts)),
        center_s=estimate.center_s,
        margin=estimate.precision,
        series=tuple(series) or (Series(_hash(figures), np.empty(0)),),
    )


def corroborate(witnesses: Iterable[Witness]) -> Corroboration:
    """Compare what can be compared: each figure with the median of all others of the same work, device and software."""
    groups: dict[tuple[str, ...], list[Witness]] = {}
    for each in witnesses:
        groups.setdefault(each.place, []).append(each)
    supported: set[tuple[str, str]] = set()
    copies: list[tuple[Witness, Witness]] = []
    apart: list[tuple[Witness, float, int]] = []
    for group in groups.values():
        originals = _originals(group)
        copies += [(first, each) for each, first in zip(group, originals, strict=True) if first is not each]
        counting = [each for each, first in zip(group, originals, strict=True) if first is each and each.counts]
        for each, first in zip(group, originals, strict=True):
            others = [other for other in counting if other is not first]
            if len(others) < ENOUGH - 1:
                continue
            ratio = each.center_s / statistics.median(other.center_s for other in others)
            margin = min(max(each.margin, statistics.median(other.margin for other in others)), WIDEST)
            if max(ratio, 1 / ratio) > 1 + APART + SPREADS * margin:
                apart.append((each, ratio, len(others)))
            else:
                supported.add((each.file, each.case))
    return Corroboration(frozenset(supported), tuple(copies), tuple(apart))


def _originals(group: Sequence[Witness]) -> list[Witness]:
    """For each witness the first that has its samples, often itself. Those that count come before all others."""
    known, found = _Known(), {}
    for index in sorted(range(len(group)), key=lambda index: not group[index].counts):
        found[index] = known.find(group[index].series)
        if found[index] is None:
            known.add(group[index])
    return [found[index] or each for index, each in enumerate(group)]


class _Known:
    """Series of the witnesses that are no copies. Those of one length are compared in one operation."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Witness] = {}
        self._by_length: dict[int, tuple[list[FloatArray], list[Witness]]] = {}

    def add(self, owner: Witness) -> None:
        for each in owner.series:
            self._by_digest.setdefault(each.digest, owner)
            logs, owners = self._by_length.setdefault(len(each.logs), ([], []))
            logs.append(each.logs)
            owners.append(owner)

    def find(self, series: Iterable[Series]) -> Witness | None:
        """The witness with nearly the same samples in one of its processes."""
        for each in series:
            if found := self._by_digest.get(each.digest):
                return found
            logs, owners = self._by_length.get(len(each.logs), ([], []))
            if logs and len(each.logs):
                distances = np.asarray(logs) - each.logs
                distances -= np.median(distances, axis=1, keepdims=True)
                copied = np.mean(np.abs(distances) < NEAR, axis=1) >= COPIED
                if copied.any():
                    return owners[int(np.argmax(copied))]
        return None


def keep(values: Sequence[float]) -> Series:
    """Reduce a process's samples to what recognises copies of them."""
    samples = np.asarray(values, dtype=np.float64)[:WINDOW]
    logs = np.empty(0)
    if len(samples) >= FEWEST and np.isfinite(samples).all() and (samples > 0).all():
        relative = np.log(samples / np.median(samples))
        logs = relative if np.median(np.abs(relative)) >= NOISE else logs
    return Series(digest(values), logs)


def digest(values: Sequence[float]) -> str:
    """By which equal samples are known again, even if all were multiplied by a factor. Series with hardly any spread
    are alike once they are normalised, so their digest is that of the values themselves."""
    plain = np.asarray(values, dtype=np.float64)
    median = float(np.median(plain)) if len(plain) else 0.0
    scaled = np.round(plain / median, DIGITS) if np.isfinite(median) and median > 0 else plain
    return _hash(scaled if len(np.unique(scaled)) >= DISTINCT else plain)


def _hash(values: Sequence[float] | FloatArray) -> str:
    return hashlib.sha256(np.asarray(values, dtype=np.float64).tobytes()).hexdigest()
