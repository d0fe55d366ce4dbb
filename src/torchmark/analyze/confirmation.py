"""What a search has found, measured anew: fresh processes of the default, the winner, and the winner without what
brought little, in bouts whose rounds they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from torchmark.analyze.comparison import DIFFERENT
from torchmark.analyze.configurations import same_precision
from torchmark.analyze.live import ratio_interval
from torchmark.analyze.statistics import CONFIDENCE, Interval
from torchmark.analyze.tuning import Round, lead
from torchmark.records import Case

WIDEST = 2.0  # times its low end: an interval whose high end is above this says nothing that is of use
WORTH_CONFIDENCE = 0.8  # that settings which brought little are worth keeping

Bout = Sequence[Round]


class Settled(Struct, frozen=True):
    """Who has won in the end, and by how much over the default."""

    default: Case
    leader: Case
    pairs: tuple[tuple[float, ...], ...] = ()  # of each bout, how much longer the leader took than the default
    rival: Case | None = None  # what went beside them
    behind: float = 0.0  # how much longer the rival takes than the leader, as a logarithm

    @property
    def gain(self) -> Interval | None:
        """How many times as fast as the default the leader is; None where fewer than two bouts tell."""
        found = ratio_interval(self.pairs, CONFIDENCE)
        return Interval(1 / found.center, 1 / found.high, 1 / found.low) if found else None

    @property
    def is_confirmed(self) -> bool:
        """Whether it is faster than the default beyond chance, by what counts, and it is known by how much."""
        gain = self.gain
        return gain is not None and gain.low > 1 + DIFFERENT and gain.high <= WIDEST * gain.low

    def placed(self, found: Mapping[str, float]) -> dict[str, float]:
        """The scores of a search, with those that were measured anew where that puts them: in the search each of them
        had one process, and the default met nobody after the first heat."""
        placed, gain = dict(found), self.gain
        if self.rival and self.leader.text not in placed and self.rival.text in placed:
            placed[self.leader.text] = placed[self.rival.text] - self.behind
        if self.leader.text in placed and gain:
            placed[self.default.text] = placed[self.leader.text] + math.log(gain.center)
        if self.leader.text in placed and self.rival:
            placed[self.rival.text] = placed[self.leader.text] + self.behind
        return placed


def settle(default: Case, core: Case, winner: Case, bouts: Sequence[Bout]) -> Settled:
    """The winner of the search, or less of it, its core, where the rest is not worth its name and the core by itself
    is faster than the default."""
    confidence = WORTH_CONFIDENCE if same_precision(core, winner) else CONFIDENCE  # shorter numbers have a price
    doubted = core.text not in (winner.text, default.text)
    worth = ratio_interval(leads(bouts, winner, core), confidence) if doubted else None
    if worth is None:
        return Settled(default, winner, leads(bouts, winner, default))
    whole = Settled(default, winner, leads(bouts, winner, default), core, -math.log(worth.center))
    less = Settled(default, core, leads(bouts, core, default), winner, math.log(worth.center))
    is_worth_it = worth.high < 1 and worth.center < 1 / (1 + DIFFERENT)
    return whole if is_worth_it or (whole.is_confirmed and not less.is_confirmed) else less


def leads(bouts: Sequence[Bout], case: Case, other: Case) -> tuple[tuple[float, ...], ...]:
    """How much longer a case took than another in each round of each bout, as far as both were in it."""
    found = (tuple(lead(rounds, case.text, other.text)) for rounds in bouts)
    return tuple(logs for logs in found if logs)
