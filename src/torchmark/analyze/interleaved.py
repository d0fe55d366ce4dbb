"""A against B in turns on one machine: the ratio over pairs of processes, when to stop, and what differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field

from torchmark.analyze.comparison import DIFFERENT, Answer
from torchmark.analyze.pairing import Difference
from torchmark.analyze.spread import critical
from torchmark.analyze.statistics import MAD_TO_DEVIATION, Interval
from torchmark.records import Live, Machine, Result

LOOKS = (5, 7, 10, 14, 20, 28, 40)  # counts of pairs at which it may stop; after the last it does
LOOK_CONFIDENCE = 0.99  # of 200,000 simulated series, 95.4% hold the truth at all seven looks

Stopped = Literal["clear", "precise", "pairs", "budget", "failed", "interrupted"]

SAME = 0.03  # sides that take turns share the state of the machine, so smaller differences show than between runs


class LiveSide(Struct, frozen=True):
    """One of the two sides: what was changed for it, where it ran, and what its processes gave."""

    result: Result
    python: str  # the interpreter
    machine: Machine | None = None  # as its own interpreter reports it; None: it failed before that
    packages: dict[str, str] = field(default_factory=dict)  # versions of what the workload is made of
    environment: dict[str, str] = field(default_factory=dict)  # set for this side alone
    last_words: tuple[str, ...] = ()  # the last lines that a process printed before it failed


class LiveComparison(Struct, frozen=True):
    """The answer. `ratio` is the step time of b over that of a, with a 95% interval: below 1, b is faster."""

    a: LiveSide
    b: LiveSide
    verdict: Answer
    stopped: Stopped
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    ratios: tuple[float, ...] = ()  # one for each pair of processes
    duration_s: float = 0.0

    def conclusion(self, side: str) -> Live:
        """What is kept of it in the run of one side, A or B."""
        known = {name: getattr(self, name) for name in ("verdict", "stopped", "ratio", "low", "high", "ratios")}
        return Live(self.a.result.case, self.b.result.case, side, **known)

    @property
    def failed(self) -> bool:
        return any(side.result.status != "ok" for side in (self.a, self.b))


def recall_live(found: Live) -> LiveComparison:
    """What a stored comparison came to. Only one that has figures of both sides is stored."""
    a, b = (LiveSide(Result(case, "ok"), python="") for case in (found.a, found.b))
    known = {name: getattr(found, name) for name in ("verdict", "stopped", "ratio", "low", "high", "ratios")}
    return LiveComparison(a, b, **known)


def answer_of(low: float, high: float) -> Answer:
    """An answer only where the whole interval supports it."""
    if low > 1 + DIFFERENT:
        return "slower"
    if high < 1 / (1 + DIFFERENT):
        return "faster"
    return "same" if low >= 1 / (1 + SAME) and high <= 1 + SAME else "unsure"


def pair_ratio(rounds: Sequence[float]) -> float:
    """The ratio that one pair gives, from the logarithms of its rounds' ratios."""
    return math.exp(float(np.median(rounds)))


def ratio_interval(pairs: Sequence[Sequence[float]], confidence: float = LOOK_CONFIDENCE) -> Interval | None:
    """The ratio over pairs, each given by the logarithms of its rounds' ratios; None where one pair is all there is."""
    count = len(pairs)
    if count < 2:
        return None
    centers = np.array([np.median(rounds) for rounds in pairs])
    # A few pairs may agree by chance more closely than each of them is known.
    variance = max(float(centers.var(ddof=1)), float(np.mean([_median_variance(rounds) for rounds in pairs])))
    reach = critical(count - 1, 1 - confidence) * math.sqrt(variance / count)
    center = float(centers.mean())
    return Interval(math.exp(center), math.exp(center - reach), math.exp(min(center + reach, 700.0)))


def _median_variance(rounds: Sequence[float]) -> float:
    """How far the median of a pair's rounds may be off, by a spread in which one disturbed round counts little."""
    values = np.asarray(rounds)
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))
    return math.pi / 2 * deviation**2 / len(values)


def why_stop(
    pairs: Sequence[Sequence[float]], target: float | None = None, limit: float | None = None
) -> Stopped | None:
    """Why to stop after these pairs, if so: only at a look that was fixed beforehand.

    Without a target it is the answer that must be clear, and with a limit also whether B is slower by more than that.
    """
    if len(pairs) not in LOOKS:
        return None
    found = ratio_interval(pairs)
    assert found is not None
    last: Stopped | None = "pairs" if len(pairs) == LOOKS[-1] else None
    if target is not None:
        return "precise" if (found.high - found.low) / 2 <= target * found.center else last
    decided = limit is None or found.low > 1 + limit or found.high <= 1 + limit
    return "clear" if decided and answer_of(found.low, found.high) != "unsure" else last


def differences(a: LiveSide, b: LiveSide) -> tuple[Difference, ...]:
    """Everything known that is not the same on both sides, what was asked for first."""
    parts: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        (_case(a.result), _case(b.result)),
        ({"interpreter": a.python}, {"interpreter": b.python}),
        (a.environment, b.environment),
        (_software(a), _software(b)),
        (a.result.settings, b.result.settings),
    ]
    found: dict[str, Difference] = {}
    for ours, theirs in parts[:3] + [part for part in parts[3:] if all(part)]:  # a side that failed may know nothing
        for name in dict.fromkeys((*ours, *theirs)):
            if ours.get(name) != theirs.get(name) and name.lower() not in found:
                found[name.lower()] = Difference(name, _text(ours.get(name)), _text(theirs.get(name)))
    return tuple(found.values())


def _case(result: Result) -> dict[str, Any]:
    case = {name: getattr(result.case, name) for name in ("device", "dtype", "compile", "transfer")}
    return case | {"threads": result.settings.get("threads", result.case.threads)} | result.case.options


def _software(side: LiveSide) -> dict[str, Any]:
    machine = side.machine
    if machine is None:
        return {}
    return {"torch": machine.torch, "built for": machine.torch_build, "python": machine.python, **side.packages}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)
