"""Machines that stand out among their peers: slower or faster than the spread between equal ones explains.

Machines are peers where processor, cores, memory, devices and torch agree. Each is described by one number, how its
step times compare with those of the others over all cases that they have in common, and the numbers of a group are
put to Rosner's generalised test for several outliers, so that one bad machine cannot hide another.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from torchmark.analyze.student import critical
from torchmark.records import Result, Run

FEWEST = 4  # machines: of three, nobody can tell which one is odd
CHANCE = 0.01  # that anything is said of a group in which all are equal
LEAST = 0.03  # nobody sends a technician for less
MOST_SHARE = 0.25  # of a group that can stand out; beyond that it is two groups
TELLING = 1 / 3  # of its results, from which what disturbed them is worth a word
_DISTURBED = ("throttled", "contended", "slowing")


class Outlier(Struct, frozen=True):
    """A run whose machine stands out. `ratio` is its step time over that of its peers: above 1, it is slower."""

    label: str
    run: str  # its id
    ratio: float
    peers: int
    cases: int
    disturbed: str | None = None  # the verdict that may explain it

    @property
    def text(self) -> str:
        """In one sentence."""
        how = f"{self.ratio - 1:.0%} slower" if self.ratio > 1 else f"{1 / self.ratio - 1:.0%} faster"
        why = f", and {self.disturbed}" if self.disturbed and self.ratio > 1 else ""
        return f"{self.label} is {how} than its {self.peers} peers{why}"


def find_outliers(runs: Sequence[Run]) -> tuple[Outlier, ...]:
    """All that stand out, the slowest first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_kind(run), []).append(run)
    found = [outlier for group in groups.values() if len(group) >= FEWEST for outlier in _among(group)]
    return tuple(sorted(found, key=lambda outlier: -outlier.ratio))


def _kind(run: Run) -> tuple[object, ...]:
    machine = run.header.machine
    devices = tuple((device.name, device.model, device.memory_bytes) for device in machine.devices)
    return machine.cpu, machine.physical_cores, machine.memory_gib, machine.torch, machine.torch_build, devices


def _among(runs: Sequence[Run]) -> list[Outlier]:
    times = [{_work(result): math.log(step_s) for result in run.results if (step_s := _step_s(result))} for run in runs]
    known = Counter(work for each in times for work in each)
    middle = {
        work: statistics.median(each[work] for each in times if work in each)
        for work, count in known.items()
        if count >= FEWEST
    }
    numbers = {
        index: statistics.fmean(each[work] - middle[work] for work in each if work in middle)
        for index, each in enumerate(times)
        if any(work in middle for work in each)
    }
    usual = statistics.median(numbers.values()) if numbers else 0.0
    odd = {index: math.exp(numbers[index] - usual) for index in _test(numbers)}
    told = {index: ratio for index, ratio in odd.items() if max(ratio, 1 / ratio) > 1 + LEAST}
    return [
        Outlier(
            label=runs[index].header.label or runs[index].header.id,
            run=runs[index].header.id,
            ratio=ratio,
            peers=len(numbers) - len(told),
            cases=sum(work in middle for work in times[index]),
            disturbed=_disturbed(runs[index]),
        )
        for index, ratio in told.items()
    ]


def _test(numbers: dict[int, float]) -> list[int]:
    """The most extreme one is taken away, again and again; the last one that was too extreme makes all before it so."""
    left, taken, count = dict(numbers), list[int](), 0
    for _ in range(max(1, int(len(numbers) * MOST_SHARE)) if len(numbers) >= FEWEST else 0):
        mean, spread = statistics.fmean(left.values()), statistics.stdev(left.values())
        if not spread:
            break
        farthest = max(left, key=lambda index: abs(left[index] - mean))
        extreme = abs(left[farthest] - mean) / spread
        taken.append(farthest)
        if extreme > _critical(len(left)):
            count = len(taken)
        del left[farthest]
    return taken[:count]


def _critical(size: int) -> float:
    t = critical(size - 2, CHANCE / size)
    return (size - 1) * t / math.sqrt((size - 2 + t * t) * size)


def _work(result: Result) -> tuple[str, int]:
    return result.case.text, result.version


def _step_s(result: Result) -> float | None:
    estimate = result.estimate if result.status == "ok" else None
    return estimate.center_s if estimate and estimate.center_s > max(estimate.call_cost_s, 0.0) else None


def _disturbed(run: Run) -> str | None:
    verdicts = Counter[str](result.estimate.verdict for result in run.results if result.estimate)
    shares = {name: verdicts[name] / verdicts.total() for name in _DISTURBED if verdicts[name]}
    worst = max(shares, key=lambda name: shares[name], default=None)
    return worst if worst and shares[worst] >= TELLING else None
