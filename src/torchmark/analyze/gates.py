"""Gates: is anything slower by more than a limit, and could that have been seen?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from torchmark.analyze.comparison import DIFFERENT, Comparison, Family, Pair, find_lost, find_slower
from torchmark.analyze.pairing import Unpaired

if TYPE_CHECKING:
    from torchmark.analyze.live import LiveComparison  # imports numpy, which a comparison of stored runs does not need

Word = Literal["PASS", "FAIL", "INCONCLUSIVE"]


class Gate(Struct, frozen=True):
    """The answer to one limit. PASS needs data in which a difference of that size would have been visible."""

    word: Word
    limit: float
    visible: float | None = None  # the largest of the smallest visible differences; None: nothing could be seen
    decidable: float | None = None  # the smallest limit that this data decides; None: it decides none
    slower: tuple[Pair | Family, ...] = ()
    lost: tuple[Unpaired, ...] = ()
    blind: tuple[Pair, ...] = ()  # cases in which a difference of the limit would not be visible


def gate_runs(comparisons: Sequence[Comparison], limit: float, inside: bool = False) -> Gate:
    """The gate on stored runs. Inside one run nothing can have gone missing."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    slower = find_slower(comparisons, limit)
    lost = tuple(each for each in find_lost(comparisons) if each.kind == "failed" or not inside)
    blind = tuple(pair for pair in pairs if pair.visible is None or pair.visible > limit)
    visible = max((math.inf if pair.visible is None else pair.visible for pair in pairs), default=math.inf)
    word: Word = "FAIL" if slower or lost else "INCONCLUSIVE" if blind else "PASS"
    return Gate(word, limit, visible if visible < math.inf else None, _decidable(visible), slower, lost, blind)


def gate_live(found: LiveComparison, limit: float) -> Gate:
    """The gate on two sides that took turns: B must be shown to be slower by more, or not to be."""
    failed = found.b.result.status not in ("ok", "interrupted")
    if found.ratio is None or found.low is None or found.high is None:
        return Gate("FAIL" if failed else "INCONCLUSIVE", limit)
    visible = found.high / found.ratio * (1 + DIFFERENT) - 1
    slower, undecided = found.low > 1 + limit, found.high > 1 + limit
    word: Word = "FAIL" if slower or failed else "INCONCLUSIVE" if undecided else "PASS"
    return Gate(word, limit, visible, _decidable(found.high - 1))


def _decidable(share: float) -> float | None:
    """As a whole percentage that can be asked for, and that is not rounded below what can be seen."""
    percent = math.ceil(share * 100 - 1e-9) / 100 if share < 1 else 1.0
    return max(percent, 0.01) if percent < 1 else None
