"""Made-up step times with a known truth, for the fake device and for the engine's test-bed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmark.errors import UnknownName

Series = NDArray[np.float64]
Random = np.random.Generator
TRUTH_SAMPLES = 4_000_000
LONGEST_WARM_UP = 1_000


class Truth(NamedTuple):
    """What a perfect measurement of a stationary stream would say, relative to the step's nominal time."""

    median: float
    mean: float


def _spread(random: Random, count: int, relative: float) -> Series:
    """Log-normal noise around 1 with this coefficient of variation."""
    return np.exp(math.sqrt(math.log1p(relative * relative)) * random.standard_normal(count))


def _sticky_states(random: Random, count: int, slow_share: float, fast_dwell: float) -> NDArray[np.bool_]:
    """A machine that stays in its fast or slow state for a while before it changes over."""
    dwell = (fast_dwell, fast_dwell * slow_share / (1 - slow_share))
    states = np.empty(count, dtype=np.bool_)
    slow, start = bool(random.random() < slow_share), 0
    while start < count:
        length = int(random.geometric(1 / dwell[slow]))
        states[start : start + length] = slow
        start, slow = start + length, not slow
    return states


def _correlated(random: Random, count: int, correlation: float, deviation: float) -> Series:
    """A stationary first-order autoregressive series."""
    shocks = random.standard_normal(count) * deviation * math.sqrt(1 - correlation**2)
    shocks[0] += correlation * deviation * random.standard_normal()
    return np.fromiter(accumulate(shocks.tolist(), lambda before, shock: correlation * before + shock), float, count)


def _with_cold_start(times: Series) -> Series:
    times[0] *= 50
    return times


def _warm_exponential(random: Random, count: int) -> Series:
    return _with_cold_start(_spread(random, count, 0.02) * (1 + 0.6 * np.exp(-np.arange(count) / 25)))


def _warm_step(random: Random, count: int) -> Series:
    return _with_cold_start(_spread(random, count, 0.02) * np.where(np.arange(count) < 60, 1.3, 1.0))


def _bimodal(random: Random, count: int) -> Series:
    return _spread(random, count, 0.01) * np.where(random.random(count) < 0.3, 1.15, 1.0)


def _sticky(random: Random, count: int) -> Series:
    return _spread(random, count, 0.01) * np.where(_sticky_states(random, count, 0.3, 35), 1.15, 1.0)


def _heavy_tail(random: Random, count: int) -> Series:
    return _spread(random, count, 0.02) + np.where(random.random(count) < 0.08, 0.3 * random.pareto(1.5, count), 0.0)


def _preempted(random: Random, count: int) -> Series:
    return _spread(random, count, 0.02) + np.where(random.random(count) < 0.3, random.exponential(0.6, count), 0.0)


def _drift(random: Random, count: int) -> Series:
    return _spread(random, count, 0.02) * (1 + 3e-4 * np.arange(count))


def _throttle(random: Random, count: int) -> Series:
    return _spread(random, count, 0.02) * np.where(np.arange(count) < random.integers(20, 60), 1.0, 1.2)


STATIONARY: dict[str, Callable[[Random, int], Series]] = {
    "iid2": lambda random, count: _spread(random, count, 0.02),
    "iid10": lambda random, count: _spread(random, count, 0.10),
    "warm-exp": _warm_exponential,
    "warm-step": _warm_step,
    "bimodal": _bimodal,
    "sticky": _sticky,
    "heavy-tail": _heavy_tail,
    "ar1": lambda random, count: np.exp(_correlated(random, count, 0.9, 0.03)),
    "preempt": _preempted,
}
CHANGING: dict[str, Callable[[Random, int], Series]] = {"drift": _drift, "throttle": _throttle}
KINDS = (*STATIONARY, *CHANGING)


def stream(kind: str, random: Random, count: int) -> Series:
    """`count` step times of this kind, relative to the step's nominal time."""
    make = STATIONARY.get(kind) or CHANGING.get(kind)
    if make is None:
        raise UnknownName("stream", kind, KINDS)
    return make(random, count)


@cache
def truth(kind: str) -> Truth:
    """The steady median and mean of a stationary stream, from a very long play of it."""
    times = stream(kind, np.random.default_rng(99), TRUTH_SAMPLES)[LONGEST_WARM_UP:]
    return Truth(float(np.median(times)), float(times.mean()))
