"""Machines ranked by how fast they do the same work: one board for each task, version, precision and procedure.

A machine with one of its devices and one choice of settings takes one place, with the latest of its undisturbed
results: taking the best one would favour those who measure more often. A place that has only disturbed results is
listed without a rank. Where the intervals of two places overlap they share a rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import grade_of, is_disturbed, with_spread
from torchmark.records import Result, Run, Status, Verdict

# These make a step another piece of work, or its time another quantity; every other option is a way to use a machine.
PROCEDURES = frozenset(("+per-step", "+pinned", "+as-published"))
LONGEST_REASON = 200


class Entry(Struct, frozen=True, array_like=True):
    """One result out of a folder of runs: what it takes to rank it, and where it comes from."""

    edition: ClassVar[int] = 2  # rises when entries are made from runs in another way

    task: str  # of the case
    version: int
    dtype: str
    procedure: str  # options of the case that make its time another quantity
    setting: str  # its other options: how the machine was used
    cpu: str
    cores: int
    memory_gib: int
    device: str  # without a number: the second GPU is no other machine
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
    grade: str  # as people see it; empty where there is none
    disturbed: bool  # no rank may rest on it
    file: str
    run: str
    created: str
    label: str | None
    torch: str | None

    @property
    def group(self) -> tuple[str, int, str, str]:
        """Entries that agree in this did the same work in the same way, and may be ranked."""
        return self.task, self.version, self.dtype, self.procedure

    @classmethod
    def of_run(cls, run: Run, file: str) -> tuple[Entry, ...]:
        """All results of a run that was read from `file`."""
        models = {info.name: info.model for info in run.header.machine.devices}
        return tuple(_entry(run, result, file, models.get(result.case.device, "")) for result in run.results)


def _entry(run: Run, result: Result, file: str, model: str) -> Entry:
    result = with_spread(result, run.process_spread)
    header, case, estimate, work = run.header, result.case, result.estimate, result.work
    grade = grade_of(result)
    procedure = [suffix for suffix in case.suffixes if suffix in PROCEDURES]
    setting = [suffix for suffix in case.suffixes if suffix not in PROCEDURES]
    return Entry(
        task=case.task,
        version=result.version,
        dtype=case.dtype,
        procedure="".join(procedure),
        setting="".join(setting),
        cpu=header.machine.cpu,
        cores=header.machine.physical_cores,
        memory_gib=header.machine.memory_gib,
        device=case.device.partition(":")[0],
        model=model,
        case=case.text,
        status=result.status,
        reason=result.reason and result.reason[:LONGEST_REASON],
        verdict=estimate.verdict if estimate else None,
        center_s=estimate.center_s if estimate else None,
        low_s=estimate.low_s if estimate else None,
        high_s=estimate.high_s if estimate else None,
        items=work.items if work else None,
        unit=work.unit if work else "",
        grade=grade.text if grade else estimate.verdict if estimate else "",
        disturbed=is_disturbed(result),
        file=file,
        run=header.id,
        created=header.created,
        label=header.label,
        torch=header.machine.torch,
    )


# Without a figure these say nothing about the machine: the run was stopped, had no time, or a step took none.
_NO_STATEMENT = frozenset(("interrupted", "skipped", "ok"))
COMMON_SHARE = 0.5  # of all machines: work that fewer of them have done does not count for the overall ranking

Contender = tuple[str, int, int, str, str]  # processor, cores, GiB of memory, device, model
Rates = dict[int, tuple[float, float]]  # by the number of the machine: its rate, and the low end of its interval


class Place(Struct, frozen=True):
    """One contender, with a 95% interval of its rate. One without a figure has a rate of 0. Only undisturbed figures
    have a rank."""

    entry: Entry
    runs: int  # different runs that its result was taken from
    rate: float = 0.0  # per second: items, or steps where a step is worth nothing
    low: float = 0.0
    high: float = 0.0  # infinite where the interval of the step time reaches down to nothing
    rank: int | None = None
    tied: bool = False


class Board(Struct, frozen=True):
    """All who did the same work: the fastest first, apart from them those that were disturbed and those that failed."""

    task: str
    version: int
    dtype: str
    procedure: str
    unit: str
    places: tuple[Place, ...]
    disturbed: tuple[Place, ...]
    failed: tuple[Place, ...]
    ranked_count: int  # with those that `places` leaves out
    disturbed_count: int
    failed_count: int


class Standing(Struct, frozen=True):
    """A machine over all the work that counts: its geometric mean speed, relative to the fastest at each case."""

    cpu: str
    cores: int
    memory_gib: int
    device: str
    model: str
    score: float  # 1: the fastest at everything
    low: float
    high: float
    rank: int = 0
    tied: bool = False


class Overall(Struct, frozen=True):
    """Machines ranked over the same cases, all of which every one of them has done undisturbed."""

    tasks: tuple[str, ...]
    standings: tuple[Standing, ...]
    ranked_count: int
    missing_count: int  # machines that lack some of the cases


Ranked = TypeVar("Ranked", Place, Standing)


class Tally:
    """The undisturbed rates of every machine on every board, for the overall ranking."""

    def __init__(self) -> None:
        self._boards: dict[str, Rates] = {}
        self._numbers: dict[Contender, int] = {}

    def add(self, name: str, places: Iterable[Place]) -> None:
        """The ranked places of one board, the fastest first: of the settings of a machine the fastest counts."""
        rates = self._boards.setdefault(name, {})
        for place in places:
            entry = place.entry
            machine = entry.cpu, entry.cores, entry.memory_gib, entry.device, entry.model
            rates.setdefault(self._numbers.setdefault(machine, len(self._numbers)), (place.rate, place.low))

    def overall(self, top: int) -> Overall | None:
        """Over the boards that at least half of all machines are on; None where fewer than two are on all of these."""
        least = max(2.0, COMMON_SHARE * len(self._numbers))
        common = {name: rates for name, rates in self._boards.items() if len(rates) >= least}
        everywhere = set.intersection(*map(set, common.values())) if common else set()
        if len(everywhere) < 2:
            return None
        best = [max(rate for rate, _ in rates.values()) for rates in common.values()]
        found = [
            _standing(machine, [rates[number] for rates in common.values()], best)
            for machine, number in self._numbers.items()
            if number in everywhere
        ]
        standings = _with_ranks(sorted(found, key=lambda each: -each.score))
        missing = len(self._numbers) - len(standings)
        return Overall(tuple(sorted(common)), tuple(standings[:top]), len(standings), missing)


def _standing(machine: Contender, rates: Sequence[tuple[float, float]], best: Sequence[float]) -> Standing:
    """The errors of different cases are independent, so that of their mean is smaller than any of them."""
    logs = [math.log(rate / most) for (rate, _), most in zip(rates, best, strict=True)]
    reach = math.hypot(*(math.log(rate / low) for rate, low in rates)) / len(rates)
    score = math.exp(sum(logs) / len(logs))
    return Standing(*machine, score, score * math.exp(-reach), score * math.exp(reach))


def rank_boards(entries: Iterable[Entry], top: int, tally: Tally | None = None) -> Iterator[Board]:
    """One board after the other with its `top` places. Entries of one board must come one after the other."""
    counting = (entry for entry in entries if _rate(entry) or entry.status not in _NO_STATEMENT)
    for _, group in groupby(counting, key=attrgetter("group")):
        yield _rank_board(group, top, tally)


def order_boards(boards: Iterable[Board]) -> tuple[Board, ...]:
    """The most contested first."""
    return tuple(sorted(boards, key=lambda board: (-board.ranked_count, board.task, board.dtype, board.version)))


def _rank_board(entries: Iterable[Entry], top: int, tally: Tally | None) -> Board:
    counted: dict[tuple[object, ...], Entry] = {}
    runs: dict[tuple[object, ...], set[str]] = {}
    for entry in entries:
        who = (entry.cpu, entry.cores, entry.memory_gib, entry.device, entry.model, entry.setting)
        runs.setdefault(who, set()).add(entry.run)
        if who not in counted or _preference(entry) > _preference(counted[who]):
            counted[who] = entry
    places = [_place(entry, len(runs[who])) for who, entry in counted.items()]
    places.sort(key=lambda place: (-place.rate, place.entry.file, place.entry.case))
    ranked = _with_ranks([place for place in places if place.rate and not place.entry.disturbed])
    disturbed = [place for place in places if place.rate and place.entry.disturbed]
    failed = [place for place in places if not place.rate]
    first = places[0].entry
    if tally:
        tally.add(f"{first.task} {first.dtype}{first.procedure} version {first.version}", ranked)
    return Board(
        task=first.task,
        version=first.version,
        dtype=first.dtype,
        procedure=first.procedure,
        unit=first.unit if first.items else "step",
        places=tuple(ranked[:top]),
        disturbed=tuple(disturbed[:top]),
        failed=tuple(failed[:top]),
        ranked_count=len(ranked),
        disturbed_count=len(disturbed),
        failed_count=len(failed),
    )


def _preference(entry: Entry) -> tuple[bool, bool, str, str]:
    """The order of a contender's results: a figure before none, undisturbed before others, then the latest."""
    return _rate(entry) > 0, not entry.disturbed, entry.created, entry.file


def _rate(entry: Entry) -> float:
    if entry.status != "ok" or entry.center_s is None or entry.center_s <= 0:
        return 0.0
    rate = (entry.items or 1.0) / entry.center_s
    return rate if 0 < rate < math.inf else 0.0


def _place(entry: Entry, runs: int) -> Place:
    rate = _rate(entry)
    if not rate or not entry.center_s:
        return Place(entry, runs)
    below = max(0.0, 1 - (entry.low_s or 0.0) / entry.center_s)
    above = max(0.0, (entry.high_s or 0.0) / entry.center_s - 1)
    return Place(entry, runs, rate, low=rate / (1 + above), high=rate / (1 - below) if below < 1 else math.inf)


def _with_ranks(places: Sequence[Ranked]) -> list[Ranked]:
    """Ranks as in sport: 1, 1, 3. A place shares the rank of the first one whose interval it overlaps."""
    ranks: list[int] = []
    leader = 0
    for index, place in enumerate(places):
        leader = leader if place.high >= places[leader].low else index
        ranks.append(leader + 1)
    shared = Counter(ranks)
    return [replace(place, rank=rank, tied=shared[rank] > 1) for place, rank in zip(places, ranks, strict=True)]
