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
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.entries import Entry

# Without a figure these tell nothing about the machine: the run was stopped, had no time, or a step took none.
UNTOLD = frozenset(("interrupted", "skipped", "ok"))
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
    telling = (entry for entry in entries if _rate(entry) or entry.status not in UNTOLD)
    for _, group in groupby(telling, key=attrgetter("group")):
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
    places = sorted((_place(entry, len(runs[who])) for who, entry in counted.items()), key=_order)
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
    """Which result of a contender counts: a figure before none, an undisturbed one before others, then the latest."""
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


def _order(place: Place) -> tuple[float, str, str]:
    return -place.rate, place.entry.file, place.entry.case


def _with_ranks(places: Sequence[Ranked]) -> list[Ranked]:
    """Ranks as in sport: 1, 1, 3. A place shares the rank of the first one that it cannot be told from."""
    ranks: list[int] = []
    leader = 0
    for index, place in enumerate(places):
        leader = leader if place.high >= places[leader].low else index
        ranks.append(leader + 1)
    shared = Counter(ranks)
    return [replace(place, rank=rank, tied=shared[rank] > 1) for place, rank in zip(places, ranks, strict=True)]
