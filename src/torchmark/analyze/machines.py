"""Many machines: leaderboards, outliers among peers, and one figure per case for each kind of machine.

On a board, a machine has one place for each choice of settings, with its latest undisturbed result, as the best one
would favour those who measure more often. Peers have the same processor, cores, memory, devices and torch.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import grade_of, is_disturbed, with_spread
from torchmark.analyze.pairing import grouped
from torchmark.analyze.spread import critical
from torchmark.records import DISTURBED, Run, Status, Verdict

# Suffixes of a case that make its step other work or its time another quantity; others are ways to use a machine.
PROCEDURES = frozenset(("+per-step", "+pinned", "+as-published"))
Contender = tuple[str, int, int, str, str]  # processor, cores, GiB of memory, device, model


class Entry(Struct, frozen=True, array_like=True):  # one result out of a folder of runs
    edition: ClassVar[int] = 2  # rises when entries are made from runs differently

    task: str
    version: int
    dtype: str
    procedure: str  # PROCEDURES of the case
    setting: str  # its other suffixes
    cpu: str
    cores: int
    memory_gib: int
    device: str  # without a number: a second GPU is no other machine
    model: str
    case: str
    status: Status
    reason: str | None
    verdict: Verdict | None
    center_s: float | None
    low_s: float | None
    high_s: float | None
    items: float | None
    unit: str
    grade: str
    disturbed: bool  # no rank may rest on it
    file: str
    run: str
    created: str
    label: str | None
    torch: str | None

    @property
    def group(self) -> tuple[str, int, str, str]:
        return self.task, self.version, self.dtype, self.procedure

    @property
    def machine(self) -> Contender:
        return self.cpu, self.cores, self.memory_gib, self.device, self.model

    @property
    def rate(self) -> float:
        """Items per second, or steps if they have no items; 0 without a figure."""
        if self.status != "ok" or self.center_s is None or self.center_s <= 0:
            return 0.0
        rate = (self.items or 1.0) / self.center_s
        return rate if 0 < rate < math.inf else 0.0

    @classmethod
    def of_run(cls, run: Run, file: str) -> "Iterator[Entry]":
        header, machine = run.header, run.header.machine
        where: dict[str, Any] = {"file": file, "run": header.id, "created": header.created, "label": header.label}
        where |= {"cpu": machine.cpu, "cores": machine.physical_cores, "memory_gib": machine.memory_gib}
        for result in (with_spread(result, run.process_spread) for result in run.results):
            case, estimate, work, grade = result.case, result.estimate, result.work, grade_of(result)
            known = {name: getattr(estimate, name, None) for name in ("verdict", "center_s", "low_s", "high_s")}
            yield cls(
                task=case.task,
                version=result.version,
                dtype=case.dtype,
                procedure="".join(suffix for suffix in case.suffixes if suffix in PROCEDURES),
                setting="".join(suffix for suffix in case.suffixes if suffix not in PROCEDURES),
                device=case.device.partition(":")[0],
                model=next((info.model for info in machine.devices if info.name == case.device), ""),
                case=case.text,
                status=result.status,
                reason=result.reason and result.reason[:200],
                items=work.items if work else None,
                unit=work.unit if work else "",
                grade=grade.text if grade else estimate.verdict if estimate else "",
                disturbed=is_disturbed(result),
                torch=machine.torch,
                **(where | known),
            )


_NO_STATEMENT = frozenset(("interrupted", "skipped", "ok"))  # about the machine, without a figure


class Place(Struct, frozen=True):
    entry: Entry
    runs: int  # in which it was measured
    rate: float = 0.0  # of the entry
    low: float = 0.0  # 95% interval
    high: float = 0.0  # infinite if the interval of the step time reaches zero
    rank: int | None = None  # None: disturbed or failed
    tied: bool = False


class Board(Struct, frozen=True):  # of the same work
    task: str
    version: int
    dtype: str
    procedure: str
    unit: str
    places: tuple[Place, ...]  # the fastest first
    disturbed: tuple[Place, ...]
    failed: tuple[Place, ...]
    ranked_count: int  # including those left out above
    disturbed_count: int
    failed_count: int


class Standing(Struct, frozen=True):  # of a machine over all cases that count
    cpu: str
    cores: int
    memory_gib: int
    device: str
    model: str
    score: float  # geometric mean speed, relative to the fastest at each case
    low: float
    high: float
    rank: int = 0
    tied: bool = False


class Overall(Struct, frozen=True):
    tasks: tuple[str, ...]  # that all of them have done undisturbed
    standings: tuple[Standing, ...]
    ranked_count: int
    missing_count: int  # machines that lack some of the cases


Ranked = TypeVar("Ranked", Place, Standing)


def rank_boards(entries: Iterable[Entry], top: int) -> tuple[tuple[Board, ...], Overall | None]:
    """Boards with their `top` places, the most contested first. Entries of a board must come one after the other."""
    counting = (entry for entry in entries if entry.rate or entry.status not in _NO_STATEMENT)
    boards, rates = list[Board](), dict[str, dict[Contender, tuple[float, float]]]()
    for _, group in groupby(counting, key=attrgetter("group")):
        places = [_place(own) for own in grouped(group, lambda entry: (entry.machine, entry.setting)).values()]
        places.sort(key=lambda place: (-place.rate, place.entry.file, place.entry.case))
        ranked = _with_ranks([place for place in places if place.rate and not place.entry.disturbed])
        disturbed = [place for place in places if place.rate and place.entry.disturbed]
        first, kinds = places[0].entry, (ranked, disturbed, [place for place in places if not place.rate])
        shown, unsure, lost = (tuple(kind[:top]) for kind in kinds)
        unit = first.unit if first.items else "step"
        boards.append(Board(*first.group, unit, shown, unsure, lost, *map(len, kinds)))
        own_rates = rates[f"{first.task} {first.dtype}{first.procedure} version {first.version}"] = {}
        for place in ranked:  # the fastest settings of a machine count
            own_rates.setdefault(place.entry.machine, (place.rate, place.low))
    boards.sort(key=lambda board: (-board.ranked_count, board.task, board.dtype, board.version))
    return tuple(boards), _overall(rates, top)


def _overall(rates: Mapping[str, Mapping[Contender, tuple[float, float]]], top: int) -> Overall | None:
    """Over the boards that half of all machines are on; None for fewer than two machines on all of them."""
    machines = dict.fromkeys(machine for own in rates.values() for machine in own)
    common = {name: own for name, own in rates.items() if len(own) >= max(2.0, 0.5 * len(machines))}
    shared, found = [machine for machine in machines if all(machine in own for own in common.values())], []
    for machine in shared if common else ():
        logs = [math.log(own[machine][0] / max(own.values())[0]) for own in common.values()]
        reach = math.hypot(*(math.log(own[machine][0] / own[machine][1]) for own in common.values())) / len(common)
        score = math.exp(sum(logs) / len(logs))
        found.append(Standing(*machine, score, score * math.exp(-reach), score * math.exp(reach)))
    if len(found) < 2:
        return None
    standings = _with_ranks(sorted(found, key=lambda each: -each.score))
    return Overall(tuple(sorted(common)), tuple(standings[:top]), len(found), len(machines) - len(found))


def _place(entries: Sequence[Entry]) -> Place:
    # Preferably with a figure, undisturbed, and the latest.
    entry = max(entries, key=lambda each: (each.rate > 0, not each.disturbed, each.created, each.file))
    runs, rate = len({each.run for each in entries}), entry.rate
    if not rate or not entry.center_s:
        return Place(entry, runs)
    below = max(0.0, 1 - (entry.low_s or 0.0) / entry.center_s)
    above = max(0.0, (entry.high_s or 0.0) / entry.center_s - 1)
    return Place(entry, runs, rate, low=rate / (1 + above), high=rate / (1 - below) if below < 1 else math.inf)


def _with_ranks(places: Sequence[Ranked]) -> list[Ranked]:
    """Ranks as in sport (1, 1, 3): a place shares the rank of the first one whose interval it overlaps."""
    ranks, leader = list[int](), 0
    for index, place in enumerate(places):
        leader = leader if place.high >= places[leader].low else index
        ranks.append(leader + 1)
    shared = Counter(ranks)
    return [replace(place, rank=rank, tied=shared[rank] > 1) for place, rank in zip(places, ranks, strict=True)]


LEAST_MACHINES = 4  # among three, the odd one cannot be identified
FALSE_ALARM = 0.01  # of an outlier in a group of equal machines
LEAST = 0.03  # smaller deviations are not worth a visit
MOST_SHARE = 0.25  # of a group that can stand out: more would be a group of its own


class Outlier(Struct, frozen=True):  # a run whose machine stands out
    label: str
    run: str  # its id
    ratio: float  # of its step time to its peers'
    peers: int
    cases: int
    disturbed: str | None = None  # the verdict that may explain it

    @property
    def text(self) -> str:
        how = f"{self.ratio - 1:.0%} slower" if self.ratio > 1 else f"{1 / self.ratio - 1:.0%} faster"
        why = f", and {self.disturbed}" if self.disturbed and self.ratio > 1 else ""
        return f"{self.label} is {how} than its {self.peers} peers{why}"


def find_outliers(runs: Sequence[Run]) -> tuple[Outlier, ...]:
    def kind(run: Run) -> tuple[object, ...]:
        machine = run.header.machine
        devices = tuple((device.name, device.model, device.memory_bytes) for device in machine.devices)
        return machine.cpu, machine.physical_cores, machine.memory_gib, machine.torch, machine.torch_build, devices

    found = [each for group in grouped(runs, kind).values() if len(group) >= LEAST_MACHINES for each in _among(group)]
    return tuple(sorted(found, key=lambda outlier: -outlier.ratio))


def _among(runs: Sequence[Run]) -> Iterator[Outlier]:
    times: list[dict[tuple[str, int], float]] = []  # the logarithm of each case's step time
    for run in runs:
        known = [(each, each.estimate) for each in run.results if each.status == "ok" and each.estimate]
        measured = [(each, found.center_s) for each, found in known if found.center_s > max(found.call_cost_s, 0.0)]
        times.append({(each.case.text, each.version): math.log(step_s) for each, step_s in measured})
    shared = Counter(work for each in times for work in each)
    common = [work for work, count in shared.items() if count >= LEAST_MACHINES]
    middle = {work: statistics.median(each[work] for each in times if work in each) for work in common}
    apart = [[each[work] - middle[work] for work in each if work in middle] for each in times]
    numbers = {index: statistics.fmean(each) for index, each in enumerate(apart) if each}
    usual = statistics.median(numbers.values()) if numbers else 0.0
    odd = {index: math.exp(numbers[index] - usual) for index in _rosner(numbers)}
    found = {index: ratio for index, ratio in odd.items() if max(ratio, 1 / ratio) > 1 + LEAST}
    for index, ratio in found.items():
        header, estimates = runs[index].header, [each.estimate for each in runs[index].results if each.estimate]
        verdicts = Counter[str](estimate.verdict for estimate in estimates)
        worst: str = max((*DISTURBED, "slowing"), key=verdicts.__getitem__)
        disturbed = worst if verdicts[worst] >= max(1, len(estimates) / 3) else None
        peers, cases = len(numbers) - len(found), len(apart[index])
        yield Outlier(header.label or header.id, header.id, ratio, peers, cases, disturbed)


def _rosner(numbers: dict[int, float]) -> list[int]:
    """Rosner's test: all extremes up to the last one beyond its limit, so that none hides another."""
    left, taken, count = dict(numbers), list[int](), 0
    for _ in range(max(1, int(len(numbers) * MOST_SHARE)) if len(numbers) >= LEAST_MACHINES else 0):
        mean, spread = statistics.fmean(left.values()), statistics.stdev(left.values())
        if not spread:
            break
        farthest = max(left, key=lambda index: abs(left[index] - mean))
        extreme, size = abs(left[farthest] - mean) / spread, len(left)
        taken.append(farthest)
        t = critical(size - 2, FALSE_ALARM / size)
        if extreme > (size - 1) * t / math.sqrt((size - 2 + t * t) * size):
            count = len(taken)
        del left[farthest]
    return taken[:count]


class KindRow(Struct, frozen=True):  # one case on one kind of machine
    case: str
    kind: str
    machines: int  # that have a figure
    step_s: float | None  # their median
    low_s: float | None = None  # of one machine its interval, else the fastest and the slowest
    high_s: float | None = None
    rate: float | None = None  # items per second
    unit: str = ""
    verdicts: tuple[str, ...] = ()  # the most frequent first, with counts if they differ; failures last

    @property
    def spread(self) -> float | None:
        if not self.step_s or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / 2 / self.step_s


def tabulate(members: Iterable[tuple[str, Run]]) -> tuple[KindRow, ...]:
    """Every case with its kinds, in their order. Members are runs, each with its kind."""
    found = [(kind, result) for kind, run in members for result in run.results]
    rows, kinds, cases = [], dict.fromkeys(kind for kind, _ in found), grouped(found, lambda each: each[1].case.text)
    for (case, own), kind in product(cases.items(), kinds):
        results = [result for name, result in own if name == kind]
        good = [(result.work, result.estimate) for result in results if result.status == "ok" and result.estimate]
        failed = Counter(each.status for each in results if each.status != "ok" or not each.estimate).most_common()
        named = (*Counter(estimate.verdict for _, estimate in good).most_common(), *failed)
        verdicts = tuple(f"{name} {count}" if len(named) > 1 else name for name, count in named)
        row = KindRow(case, kind, len(good), None, verdicts=verdicts)
        if good:
            (work, first), times = good[0], [estimate.center_s for _, estimate in good]
            step_s = statistics.median(times)
            low_s, high_s = (min(times), max(times)) if len(times) > 1 else (first.low_s, first.high_s)
            rate, unit = work.items / step_s if work and work.items and step_s > 0 else None, work.unit if work else ""
            row = replace(row, step_s=step_s, low_s=low_s, high_s=high_s, rate=rate, unit=unit)
        rows.append(row)
    return tuple(row for row in rows if row.verdicts)
