"""Published figures: how far one may be off, what is known to be wrong with it, and what a ratio to it says.

A publication prints one number without an interval. It is read as if it had one: ±15%, which stands for a single run,
an unknown room temperature and the versions of the day, and more where the notes on the figure name a flaw.
"""

from __future__ import annotations

import math
from typing import Literal

from torchmark.analyze.grades import margin_of
from torchmark.records import Caution, Result

ASSUMED = 0.15
FEW_STEPS = 100  # start-up cost is spread over so few steps that it matters

# What each kind of note adds, as the half-width of an interval; 0: a flaw that does not change the number itself.
# None: no flaw of the figure, but a remark on the text around it or on which work is equal to it.
_ADDED: dict[str, float | None] = {
    "autograd-graph": 0.05,  # building the graph takes a few percent of a forward pass
    "progress-bar": 0.02,  # 51 calls counted as 50
    "rounded": 0.125,  # half of the last digit of the shortest such figure, 4 s
    "live-display": 0.10,  # a moving average of the last moments
    "rented": 0.10,  # neighbours and clock unknown
    "slows-down": 0.30,  # the mean of a run whose steps doubled
    "start-up-heavy": 0.50,  # mostly something other than steps
    "swapping": 0.50,
    "overheated": 0.50,
    "device-not-shown": 0.0,
    "eager-attention": 0.0,
    "learns-nothing": 0.0,
    "no-dropout": 0.0,
    "not-comparable": 0.0,
    "other-code": 0.0,
    "single-run": 0.0,
    "slow-convolutions": 0.0,
    "smaller-is-faster": 0.0,
    "thread-oversubscription": 0.0,
    "two-names": 0.0,
    "unknown-device": 0.0,
    "unknown-hardware": 0.0,
    "whole-process": 0.0,
    "cpu-only": None,
    "folded": None,
    "other-shape": None,
    "overflow": None,
    "two-copies": None,
    "wrong-claim": None,
}
# What is paid once, and so only adds where it was spread over few steps.
_ADDED_ONCE = {
    "model-move-counted": 0.30,  # includes the start of the driver, up to a second of a loop of three
    "no-sync": 0.10,  # the last steps were still in the queue
    "warm-up-counted": 0.10,  # the first step
}


def is_published(result: Result) -> bool:
    """Whether it was timed the way a publication did: one figure, with nothing about how sure it is."""
    return result.case.protocol == "as-published"


def flaws_of(result: Result) -> tuple[Caution, ...]:
    """What is known to be wrong with a published figure; none for a measured one, which has a grade instead."""
    if not is_published(result):
        return ()
    return tuple(caution for caution in result.cautions if _ADDED.get(caution.kind, 0.0) is not None)


def uncertainty_of(result: Result) -> float:
    """The half-width of ± as a share: measured where it was, else the one that is assumed for a single figure."""
    if not is_published(result):
        known = margin_of(result.estimate) if result.estimate else None
        return ASSUMED if known is None else known
    few = result.estimate is not None and result.estimate.block_size <= FEW_STEPS
    added = [_ADDED.get(caution.kind) or 0.0 for caution in result.cautions]
    added += [_ADDED_ONCE.get(caution.kind, 0.0) for caution in result.cautions] if few else []
    return math.hypot(ASSUMED, *added)


def band_of(a: Result, b: Result) -> float:
    """How far the ratio of two figures may be off, as a share."""
    return math.hypot(uncertainty_of(a), uncertainty_of(b))


def answer_within(ratio: float, band: float) -> Literal["faster", "slower", "similar"]:
    """What a ratio of times says that is known no better than `band`."""
    if abs(math.log(ratio)) <= math.log1p(band):
        return "similar"
    return "faster" if ratio < 1 else "slower"
