"""How far a figure can be relied on: the grade of a measured one, the assumed uncertainty of a published one."""

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.spread import relative_spread
from torchmark.records import VERDICTS, Contention, Estimate, Remark, Result, Verdict

Word = Literal["good", "fair", "poor"]
Ranked = TypeVar("Ranked", Word, Verdict)

# The half-width of ± and the share of the processor that others took, up to which a grade is given.
_LIMITS: tuple[tuple[Word, float, float], ...] = (("good", 0.05, 0.02), ("fair", 0.15, 0.10))

_GRADE_FIXES = {  # else: measure longer
    "contended": "stop other programs and run again",
    "throttled": "improve cooling or power, or take this as the sustained speed",
}
VERDICT_FIXES = {  # `{more}` asks for more time or steps
    "contended": "Stop other programs and measure again: the true speed is higher",
    "throttled": "Let it cool, improve the cooling or power supply, and compare sustained figures only",
    "slowing": "Check heat, power and memory. {more} and watch",
    "drifting": "{more} until it settles",
    "warming": "{more}",
    "noisy": "{more}",
}
_RANKS = (*VERDICTS, "poor", "fair", "good")


def worst(words: Sequence[Ranked]) -> Ranked:
    return min(words, key=_RANKS.index)


class Grade(Struct, frozen=True):
    word: Word
    cause: str = ""  # what keeps it from being `good`
    fix: str = ""

    @property
    def text(self) -> str:
        return f"{self.word}: {self.cause}" if self.cause else self.word


def grade_of(result: Result) -> Grade | None:
    """None without a figure, or for a published one."""
    estimate = result.estimate
    if result.status != "ok" or estimate is None or estimate.verdict == "as-published":
        return None
    margin, taken = margin_of(estimate), taken_share(estimate.contention)
    reach = math.inf if margin is None else margin
    word: Word = next((word for word, widest, most in _LIMITS if reach <= widest and taken <= most), "poor")
    if word == "good":
        return Grade(word)
    cause: str = "few processes" if estimate.spread is None or "single-process" in estimate.flags else "noisy"
    if taken > _LIMITS[0][2]:
        cause = "contended"
    elif estimate.verdict in ("throttled", "slowing", "drifting", "warming"):
        cause = estimate.verdict
    return Grade(word, cause, _GRADE_FIXES.get(cause, "measure longer with --budget"))


def margin_of(estimate: Estimate) -> float | None:
    """Half the interval in which a repeat would land, relative to the step."""
    return estimate.precision if estimate.spread is not None and estimate.center_s > 0 else None


def taken_share(contention: Contention) -> float:
    shares = (contention.other_cpu_share, contention.steal_share, contention.throttled_share)
    return max((share for share in shares if share is not None), default=0.0)


def is_disturbed(result: Result) -> bool:
    """Whether no conclusion may rest on it: it has no figure or a poor grade."""
    grade = grade_of(result)  # a published figure has none
    return grade.word == "poor" if grade else result.status != "ok" or result.estimate is None


def is_contended(estimate: Estimate) -> bool:
    """Whether others took so much of the processor that the grade is poor; one process is enough to judge."""
    return taken_share(estimate.contention) > _LIMITS[-1][2]


def with_spread(result: Result, borrowed: float | None = None) -> Result:
    """The result with the spread between its processes, which older files lack; a single process borrows it."""
    estimate = result.estimate
    if estimate is None or estimate.spread is not None or estimate.verdict == "as-published":
        return result
    own = relative_spread([process.center_s for process in result.processes])
    if own is not None or borrowed is None:
        return replace(result, estimate=replace(estimate, spread=own))
    center, reach = estimate.center_s, 1.96 * borrowed * estimate.center_s
    low = center - math.hypot(center - estimate.low_s, reach)
    high = center + math.hypot(estimate.high_s - center, reach)
    return replace(result, estimate=replace(estimate, low_s=max(low, 0.0), high_s=high, spread=borrowed))


ASSUMED = 0.15  # of a published figure: a single run, an unknown room temperature, the versions of the day

# The half-width that each kind of note adds; 0: a flaw that does not change the number; None: no flaw of the figure,
# but a remark on the text around it or on which work is equal to it.
_ADDED: dict[str, float | None] = {
    "autograd-graph": 0.05,  # building the graph takes a few percent of a forward pass
    "progress-bar": 0.02,  # 51 calls counted as 50
    "rounded": 0.125,  # half of the last digit of the shortest such figure, 4 s
    "live-display": 0.10,  # a moving average
    "rented": 0.10,  # neighbours and clock unknown
    "slows-down": 0.30,  # the mean of a run whose steps doubled
    "start-up-heavy": 0.50,  # mostly not steps
    "swapping": 0.50,
    "overheated": 0.50,
}
_ADDED |= dict.fromkeys((
    "device-not-shown", "eager-attention", "learns-nothing", "no-dropout", "not-comparable", "other-code", "single-run",
    "slow-convolutions", "smaller-is-faster", "thread-oversubscription", "two-names", "unknown-device",
    "unknown-hardware", "whole-process",
), 0.0)  # fmt: skip
_ADDED |= dict.fromkeys(("cpu-only", "folded", "other-shape", "overflow", "two-copies", "wrong-claim"))
_ADDED_ONCE = {  # if there were few steps, as it is paid once
    "model-move-counted": 0.30,  # includes the start of the driver, up to a second of a loop of three
    "no-sync": 0.10,  # the last steps were still in the queue
    "warm-up-counted": 0.10,  # the first step
}


def is_published(result: Result) -> bool:
    """Whether it was timed as in a publication: one figure without an interval."""
    return result.case.protocol == "as-published"


def flaws_of(result: Result) -> tuple[Remark, ...]:
    if not is_published(result):
        return ()
    return tuple(caution for caution in result.cautions if _ADDED.get(caution.kind, 0.0) is not None)


def uncertainty_of(result: Result) -> float:
    """The half-width of ± as a share: measured, else assumed for a single figure."""
    if not is_published(result):
        known = margin_of(result.estimate) if result.estimate else None
        return ASSUMED if known is None else known
    few = result.estimate is not None and result.estimate.block_size <= 100
    widths = _ADDED | (_ADDED_ONCE if few else {})
    return math.hypot(ASSUMED, *(widths.get(caution.kind) or 0.0 for caution in result.cautions))


def band_of(a: Result, b: Result) -> float:
    """How far the ratio of two figures may be off, as a share."""
    return math.hypot(uncertainty_of(a), uncertainty_of(b))


def answer_within(ratio: float, band: float) -> Literal["faster", "slower", "similar"]:
    return "similar" if abs(math.log(ratio)) <= math.log1p(band) else "faster" if ratio < 1 else "slower"
