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
DIGITS, DISTINCT = 6, 3  # of samples relative to their median: decimals, and different values at least
WIDEST = 0.2  # a margin that explains everything would say nothing
_STEADY = ("stable", "noisy")  # whoever says that something disturbed the figure does not stand for it


FloatArray = NDArray[np.float64]


class Witness(Struct, frozen=True):
    """One file's figure for one case."""

    file: str
    run: str
    line: int
    case: str
    place: tuple[str, ...]  # the work, the device and the software: only what agrees in these can agree in time
    center_s: float
    margin: float  # relative
    samples: frozenset[str]  # what it rests on; equal samples are one measurement, however often they are sent in


class Corroboration(Struct, frozen=True):
    """What the files say of each other: figures that others support, copies, and figures that stand apart."""

    supported: frozenset[tuple[str, str]]  # file and case
    copies: tuple[tuple[Witness, Witness], ...]  # the second has the samples of the first
    apart: tuple[tuple[Witness, float, int], ...]  # how many times slower than so many others


def witness(file: str, run: str, line: int, machine: Machine, result: Result, samples: Iterable[str]) -> Witness | None:
    """A file's figure as it is held against those of others; `samples` are the digests of its series."""
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
        samples=frozenset(samples) or frozenset([_hash(figures)]),
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
        single, again = _without_copies(group)
        copies += again
        if len(single) < ENOUGH:
            continue
        for each in single:
            others = [other for other in single if other is not each]
            ratio = each.center_s / statistics.median(other.center_s for other in others)
            margin = min(max(each.margin, statistics.median(other.margin for other in others)), WIDEST)
            if max(ratio, 1 / ratio) > 1 + APART + SPREADS * margin:
                apart.append((each, ratio, len(others)))
            else:
                supported.add((each.file, each.case))
    supported |= {(copy.file, copy.case) for first, copy in copies if (first.file, first.case) in supported}
    return Corroboration(frozenset(supported), tuple(copies), tuple(apart))


def _without_copies(group: Sequence[Witness]) -> tuple[list[Witness], list[tuple[Witness, Witness]]]:
    single: list[Witness] = []
    copies: list[tuple[Witness, Witness]] = []
    for each in group:
        first = next((known for known in single if known.samples & each.samples), None)
        if first:
            copies.append((first, each))
        else:
            single.append(each)
    return single, copies


def digest(values: Sequence[float]) -> str:
    """By which equal samples are known again, even if all were multiplied by a factor. Series with hardly any spread
    are alike once they are normalised, so their digest is that of the values themselves."""
    plain = np.asarray(values, dtype=np.float64)
    median = float(np.median(plain)) if len(plain) else 0.0
    scaled = np.round(plain / median, DIGITS) if np.isfinite(median) and median > 0 else plain
    return _hash(scaled if len(np.unique(scaled)) >= DISTINCT else plain)


def _hash(values: Sequence[float] | FloatArray) -> str:
    return hashlib.sha256(np.asarray(values, dtype=np.float64).tobytes()).hexdigest()
