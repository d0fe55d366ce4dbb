"""What may be said about a figure: one verdict, by fixed precedence, with the evidence it rests on, and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchmark.analyze.metering import held_down, is_paging
from torchmark.analyze.series import Reading
from torchmark.analyze.statistics import Series
from torchmark.records import VERDICTS, Conditions, Contention, Verdict

TAKEN_SHARE = 0.02  # of the machine's capacity, or of the measuring time
LEAST_TAKEN_S = 0.04  # four ticks of the kernel's clock: less cannot be told from its rounding
PROBE_SLOWER = 1.03
LAUNCH_SHARE = 0.9
MODE_SHARE = 0.1
MODE_DISTANCE = 0.03
MODES_EXPLAIN = 0.85  # share of the variance; two halves of a normal distribution explain 0.64, of a uniform one 0.75


class Judgement(NamedTuple):
    """A verdict with everything that was seen for it."""

    verdict: Verdict
    flags: tuple[str, ...]
    evidence: tuple[str, ...]


def contention_of(readings: Sequence[Conditions], wait_share: float | None, switches: int | None) -> Contention:
    """Shares of the measuring time between the first and the last reading."""
    if len(readings) < 2:
        return Contention(wait_share=wait_share, switches=switches)
    first, last = readings[0], readings[-1]
    span = max(last.at_s - first.at_s, 1e-9)

    def share(before: float | None, after: float | None, capacity: float) -> float | None:
        if before is None or after is None:
            return None
        taken = after - before
        return taken / (span * capacity) if taken >= LEAST_TAKEN_S else 0.0

    probes = [reading.probe_s for reading in readings if reading.probe_s is not None]
    return Contention(
        wait_share=wait_share,
        other_cpu_share=share(first.other_cpu_s, last.other_cpu_s, last.capacity),
        steal_share=share(first.steal_s, last.steal_s, last.capacity),
        throttled_share=share(first.throttled_s, last.throttled_s, 1.0),
        probe_dilation=float(np.median(probes[1:])) / min(probes) if len(probes) > 1 else None,
        switches=switches,
    )


def judge(
    reading: Reading, confirmed: bool, contention: Contention, readings: Sequence[Conditions], target: float
) -> Judgement:
    """The first verdict, in order of precedence, that the evidence supports."""
    taken = taken_by_others(contention)
    evidence = held_down(readings)
    slower = reading.slowing or (reading.trending and reading.trend.change > 0)
    seen = {"oversubscribed": _oversubscribed(contention, taken), "paging": is_paging(readings)}
    flags = tuple(flag for flag, found in seen.items() if found)
    if taken:
        return Judgement("contended", flags, tuple(taken))
    if slower and evidence:
        return Judgement("throttled", flags, tuple(evidence))
    if slower:
        return Judgement("slowing", flags, ("the first steps were faster than the later ones",))
    if reading.trending:
        return Judgement("drifting", flags, (f"step times moved by {reading.trend.change:+.1%} while measuring",))
    if reading.warming:
        return Judgement("warming", flags, ("step times had not settled by half of the samples",))
    if not confirmed:
        return Judgement("noisy", flags, (_imprecision(reading.precision, target),))
    return Judgement("stable", flags, ())


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several processes' verdicts the one that weighs most."""
    return min(verdicts, key=VERDICTS.index)


def taken_by_others(contention: Contention) -> list[str]:
    """Who took time from this measurement, in words with figures."""
    others = [
        (contention.other_cpu_share, "other processes used {:.0%} of the processor"),
        (contention.steal_share, "the hypervisor took {:.0%} of the processor away"),
        (contention.throttled_share, "a quota stopped the process for {:.0%} of the time"),
    ]
    seen = [words.format(share) for share, words in others if share is not None and share > TAKEN_SHARE]
    waited = contention.wait_share is not None and contention.wait_share > TAKEN_SHARE
    if waited and (seen or contention.other_cpu_share is None):
        seen.append(f"steps waited for a free core {contention.wait_share:.0%} of the time")
    slow_probe = contention.probe_dilation is not None and contention.probe_dilation > PROBE_SLOWER
    # Where others can be seen, a slow probe without them is a lower clock or chance, not contention.
    if slow_probe and (seen or contention.other_cpu_share is None):
        seen.append(f"a reference calculation became {(contention.probe_dilation or 1) - 1:.0%} slower")
    return seen


def _oversubscribed(contention: Contention, taken: Sequence[str]) -> bool:
    """Threads that wait for a core although nobody else uses one wait for each other."""
    waited = contention.wait_share is not None and contention.wait_share > TAKEN_SHARE
    return waited and not taken and contention.other_cpu_share is not None


def _imprecision(precision: float, target: float) -> str:
    if precision <= target:
        return f"±{precision:.2%} was reached, but too late or with too few independent samples to be confirmed"
    return f"the interval reached ±{precision:.1%} where ±{100 * target:g}% was asked for"


def is_launch_bound(device_step_s: float | None, wall_step_s: float) -> bool:
    """The device was idle for a good part of the time, waiting to be given work."""
    return device_step_s is not None and device_step_s < LAUNCH_SHARE * wall_step_s


def is_bimodal(times: Series) -> bool:
    """Whether two well-separated levels explain nearly all of the variance (Otsu's split)."""
    if len(times) < 30:
        return False
    logs = np.sort(np.log(times))
    logs = logs[int(0.01 * len(logs)) : len(logs) - int(0.01 * len(logs))]
    count, total = len(logs), logs.sum()
    below = np.arange(1, count)
    sums = np.cumsum(logs)[:-1]
    distance = (total - sums) / (count - below) - sums / below
    explained = below * (count - below) / count**2 * distance**2
    split = int(np.argmax(explained))
    share = (split + 1) / count
    variance = float(logs.var())
    return (
        variance > 0
        and min(share, 1 - share) >= MODE_SHARE
        and float(distance[split]) > MODE_DISTANCE
        and float(explained[split]) / variance > MODES_EXPLAIN
    )
