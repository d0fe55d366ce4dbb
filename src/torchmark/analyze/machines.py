"""Many machines: which stand out among their peers, and one figure per case for each kind of machine.

Machines are peers where processor, cores, memory, devices and torch agree. Each is described by one number, how its
step times compare with those of the others over all cases that they have in common, and the numbers of a group go
through Rosner's generalised test for several outliers, so that one bad machine cannot hide another.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from torchmark.analyze.spread import critical
from torchmark.records import DISTURBED, Result, Run

LEAST_MACHINES = 4  # among three, the odd one cannot be identified
FALSE_ALARM = 0.01  # of an outlier in a group of equal machines
LEAST = 0.03  # smaller deviations are not worth a visit
MOST_SHARE = 0.25  # of a group that can stand out; beyond that it is two groups
MENTIONED_SHARE = 1 / 3  # of its results, from which their disturbance is mentioned


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
    found = [outlier for group in groups.values() if len(group) >= LEAST_MACHINES for outlier in _among(group)]
    return tuple(sorted(found, key=lambda outlier: -outlier.ratio))


def _kind(run: Run) -> tuple[object, ...]:
    machine = run.header.machine
    devices = tuple((device.name, device.model, device.memory_bytes) for device in machine.devices)
    return machine.cpu, machine.physical_cores, machine.memory_gib, machine.torch, machine.torch_build, devices


def _among(runs: Sequence[Run]) -> list[Outlier]:
    times = [
        {(each.case.text, each.version): math.log(step_s) for each in run.results if (step_s := _step_s(each))}
        for run in runs
    ]
    known = Counter(work for each in times for work in each)
    middle = {
        work: statistics.median(each[work] for each in times if work in each)
        for work, count in known.items()
        if count >= LEAST_MACHINES
    }
    numbers = {
        index: statistics.fmean(each[work] - middle[work] for work in each if work in middle)
        for index, each in enumerate(times)
        if any(work in middle for work in each)
    }
    usual = statistics.median(numbers.values()) if numbers else 0.0
    odd = {index: math.exp(numbers[index] - usual) for index in _rosner(numbers)}
    found = {index: ratio for index, ratio in odd.items() if max(ratio, 1 / ratio) > 1 + LEAST}
    return [
        Outlier(
            label=runs[index].header.label or runs[index].header.id,
            run=runs[index].header.id,
            ratio=ratio,
            peers=len(numbers) - len(found),
            cases=sum(work in middle for work in times[index]),
            disturbed=_disturbance(runs[index]),
        )
        for index, ratio in found.items()
    ]


def _rosner(numbers: dict[int, float]) -> list[int]:
    """Remove the most extreme again and again; the last one beyond its limit makes all before it outliers."""
    left, taken, count = dict(numbers), list[int](), 0
    for _ in range(max(1, int(len(numbers) * MOST_SHARE)) if len(numbers) >= LEAST_MACHINES else 0):
        mean, spread = statistics.fmean(left.values()), statistics.stdev(left.values())
        if not spread:
            break
        farthest = max(left, key=lambda index: abs(left[index] - mean))
        extreme = abs(left[farthest] - mean) / spread
        taken.append(farthest)
        size = len(left)
        t = critical(size - 2, FALSE_ALARM / size)
        if extreme > (size - 1) * t / math.sqrt((size - 2 + t * t) * size):
            count = len(taken)
        del left[farthest]
    return taken[:count]


def _step_s(result: Result) -> float | None:
    estimate = result.estimate if result.status == "ok" else None
    return estimate.center_s if estimate and estimate.center_s > max(estimate.call_cost_s, 0.0) else None


def _disturbance(run: Run) -> str | None:
    verdicts = Counter[str](result.estimate.verdict for result in run.results if result.estimate)
    shares = {name: verdicts[name] / verdicts.total() for name in (*DISTURBED, "slowing") if verdicts[name]}
    worst = max(shares, key=lambda name: shares[name], default=None)
    return worst if worst and shares[worst] >= MENTIONED_SHARE else None


class KindRow(Struct, frozen=True):
    """One case on one kind of machine."""

    case: str
    kind: str
    machines: int  # that have a figure
    step_s: float | None  # the median over them
    low_s: float | None = None  # of one machine its interval, else the fastest and the slowest
    high_s: float | None = None
    rate: float | None = None  # items per second
    unit: str = ""
    verdicts: tuple[
        str, ...
    ] = ()  # the most frequent first, with counts where they differ; those without a figure last

    @property
    def spread(self) -> float | None:
        """Half the way from the lowest to the highest, as a share of the middle."""
        if not self.step_s or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / 2 / self.step_s


def tabulate(members: Iterable[tuple[str, Run]]) -> tuple[KindRow, ...]:
    """Every case with its kinds, in the order in which they come up. Members are runs, each with its kind."""
    found: dict[str, dict[str, list[Result]]] = {}
    kinds: dict[str, None] = {}
    for kind, run in members:
        kinds.setdefault(kind)
        for result in run.results:
            found.setdefault(result.case.text, {}).setdefault(kind, []).append(result)
    return tuple(
        _row(case, kind, results[kind]) for case, results in found.items() for kind in kinds if kind in results
    )


def _row(case: str, kind: str, results: list[Result]) -> KindRow:
    good = [result for result in results if result.status == "ok" and result.estimate]
    estimates = [result.estimate for result in good if result.estimate]
    said = Counter(estimate.verdict for estimate in estimates).most_common()
    failed = Counter(result.status for result in results if result not in good).most_common()
    several = len(said) + len(failed) > 1
    verdicts = tuple(f"{name} {count}" if several else name for name, count in (*said, *failed))
    if not estimates:
        return KindRow(case, kind, 0, None, verdicts=verdicts)
    times = [estimate.center_s for estimate in estimates]
    step_s, alone, work = statistics.median(times), len(times) == 1, good[0].work
    return KindRow(
        case=case,
        kind=kind,
        machines=len(times),
        step_s=step_s,
        low_s=estimates[0].low_s if alone else min(times),
        high_s=estimates[0].high_s if alone else max(times),
        rate=work.items / step_s if work and work.items and step_s > 0 else None,
        unit=work.unit if work else "",
        verdicts=verdicts,
    )
