"""Machines ranked by how fast they do the same work: one board for each task, version, precision and procedure.

A machine with one of its devices and one choice of settings takes one place, with the latest of its results that
nothing disturbed: were it the best one, whoever measures more often would win. Where the intervals of two places
overlap nobody knows who is faster, so they share a rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.entries import Entry

DISTURBED = frozenset(("contended", "throttled"))
# Without a figure these tell nothing about the machine: the run was stopped, had no time, or a step took none.
UNTOLD = frozenset(("interrupted", "skipped", "ok"))
REACH = 1.96  # standard errors on each side of a 95% interval


class Place(Struct, frozen=True):
    """One contender, with a 95% interval of its rate. One without a figure has a rate of 0 and no rank."""

    entry: Entry
    runs: int  # different runs that its result was taken from
    rate: float = 0.0  # per second: items, or steps where a step is worth nothing
    low: float = 0.0
    high: float = 0.0  # infinite where the interval of the step time reaches down to nothing
    rank: int | None = None
    tied: bool = False


class Board(Struct, frozen=True):
    """All who did the same work: the fastest first, and apart from them those that failed."""

    task: str
    version: int
    dtype: str
    procedure: str
    unit: str
    places: tuple[Place, ...]
    failed: tuple[Place, ...]
    ranked_count: int  # with those that `places` leaves out
    failed_count: int


def rank_boards(entries: Iterable[Entry], top: int) -> Iterator[Board]:
    """One board after the other with its `top` places. Entries of one board must come one after the other."""
    telling = (entry for entry in entries if _rate(entry) or entry.status not in UNTOLD)
    for _, group in groupby(telling, key=attrgetter("group")):
        yield _rank_board(group, top)


def order_boards(boards: Iterable[Board]) -> tuple[Board, ...]:
    """The most contested first."""
    return tuple(sorted(boards, key=lambda board: (-board.ranked_count, board.task, board.dtype, board.version)))


def _rank_board(entries: Iterable[Entry], top: int) -> Board:
    counted: dict[tuple[object, ...], Entry] = {}
    runs: dict[tuple[object, ...], set[str]] = {}
    for entry in entries:
        who = (entry.cpu, entry.cores, entry.memory_gib, entry.device, entry.model, entry.setting)
        runs.setdefault(who, set()).add(entry.run)
        if who not in counted or _preference(entry) > _preference(counted[who]):
            counted[who] = entry
    places = sorted((_place(entry, len(runs[who])) for who, entry in counted.items()), key=_order)
    ranked = _with_ranks([place for place in places if place.rate])
    failed = places[len(ranked) :]
    first = places[0].entry
    return Board(
        task=first.task,
        version=first.version,
        dtype=first.dtype,
        procedure=first.procedure,
        unit=first.unit if first.items else "step",
        places=tuple(ranked[:top]),
        failed=tuple(failed[:top]),
        ranked_count=len(ranked),
        failed_count=len(failed),
    )


def _preference(entry: Entry) -> tuple[bool, bool, str, str]:
    """Which result of a contender counts: a figure before none, an undisturbed one before others, then the latest."""
    return _rate(entry) > 0, entry.verdict not in DISTURBED, entry.created, entry.file


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
    if entry.processes == 1 and entry.process_spread and entry.verdict != "as-published":
        # The interval inside one process does not know how far off the next process would be.
        below, above = (math.hypot(reach, REACH * entry.process_spread) for reach in (below, above))
    return Place(entry, runs, rate, low=rate / (1 + above), high=rate / (1 - below) if below < 1 else math.inf)


def _order(place: Place) -> tuple[float, str, str]:
    return -place.rate, place.entry.file, place.entry.case


def _with_ranks(places: Sequence[Place]) -> list[Place]:
    """Ranks as in sport: 1, 1, 3. A place shares the rank of the first one that it cannot be told from."""
    ranks: list[int] = []
    leader = 0
    for index, place in enumerate(places):
        leader = leader if place.high >= places[leader].low else index
        ranks.append(leader + 1)
    shared = Counter(ranks)
    return [replace(place, rank=rank, tied=shared[rank] > 1) for place, rank in zip(places, ranks, strict=True)]
