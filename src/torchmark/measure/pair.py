"""The live comparison: two ways of doing a thing, timed in turn so that whatever disturbs one disturbs the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from msgspec import Struct

from torchmark.analyze.comparison import Answer
from torchmark.analyze.live import answer_of
from torchmark.measure.sampling import (
    DEFAULTS,
    Clock,
    Progress,
    Samples,
    Settings,
    StopRule,
    TimeBlock,
    as_block,
    choose_block_size,
)


class PairEstimate(Struct, frozen=True):
    """How long B takes relative to A, with the 95% interval. 0.8: B takes 20% less time."""

    ratio: float
    low: float
    high: float
    verdict: Answer  # of B against A
    pairs: int
    warmup_cut: int
    confirmed: bool  # the precision that was asked for was reached
    ratios: tuple[float, ...] = ()
    first_a_s: float = 0.0
    first_b_s: float = 0.0


def measure_pair(
    time_a: TimeBlock,
    time_b: TimeBlock,
    *,
    clock: Clock = time.perf_counter,
    sync_cost_s: float = 0.0,
    settings: Settings = DEFAULTS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> PairEstimate:
    """Time A and B in adjacent pairs of random order, and estimate the median of the log-ratios."""
    order = random.Random(seed)
    first_a_s, first_b_s = (as_block(timed(1)).total_s for timed in (time_a, time_b))
    size_a, size_b = (choose_block_size(timed, sync_cost_s) for timed in (time_a, time_b))

    def step(timed: TimeBlock, size: int) -> float:
        return max((as_block(timed(size)).total_s - sync_cost_s) / size - settings.call_cost_s, 1e-12)

    ratios = Samples(settings.steps or settings.max_samples)
    rule = StopRule(settings, "median", 1, clock)
    while not rule.finished:
        if order.random() < 0.5:
            a, b = step(time_a, size_a), step(time_b, size_b)
        else:
            b, a = step(time_b, size_b), step(time_a, size_a)
        ratios.add(b / a)
        if rule.due(ratios.count):
            interval = rule.look(ratios.values).interval
            if progress:
                progress(Progress(ratios.count, rule.elapsed_s, settings.budget_s, *interval))
    assert rule.reading is not None  # a rule only finishes at a look
    center, low, high = rule.reading.interval
    return PairEstimate(
        ratio=center,
        low=low,
        high=high,
        verdict=answer_of(low, high),
        pairs=ratios.count,
        warmup_cut=rule.reading.cut,
        confirmed=rule.confirmed,
        ratios=tuple(ratios.values.tolist()),
        first_a_s=first_a_s,
        first_b_s=first_b_s,
    )
