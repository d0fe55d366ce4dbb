"""Does a run tell one story? Its figures worked out again from its raw samples, and everything held against the rest.

Each oddity is the place of a field and what is odd about it. An odd result is flagged, never refused; and one that is
not odd may still be invented with care: no figure can prove where it comes from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.extrapolation import extrapolate, later_step
from torchmark.analyze.laps import Laps
from torchmark.analyze.repeat import Spread, with_interval
from torchmark.analyze.statistics import (
    Series,
    autocorrelation_time,
    below_median,
    mean_interval,
    median_interval,
    winsorised_logs,
)
from torchmark.analyze.summary import combine, describe
from torchmark.analyze.sustain import sustained_of
from torchmark.errors import UsageError
from torchmark.records import (
    Estimate,
    JobEstimate,
    Machine,
    Result,
    RunHeader,
    StageEstimate,
    Sustained,
    parse_case,
)

Oddity = tuple[str, str]

EXACT = 1e-6  # relative; what was written with all its digits differs by rounding alone
CORRELATED = 1e-3  # sums over long series differ more from one version of numpy to another
FIRST_RUN = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_OFF = timedelta(days=1)
LONGEST_S = 1e9  # thirty years
MOST_WATTS = 1e6
TIMED_TWICE = 1.02  # samples cannot take longer than the time in which they were taken, beyond rounding
IDLE_TIMES = 3.0  # what else happens between samples takes this many times as long as they do, at most
IDLE_S = 10.0  # plus this much for looking at them
IDLE_BLOCK_S = 2e-3  # and this much for every block

_SUMMED_UP = ("center_s", "first_step_s", "sample_count", "duration_s")
_BY_METHOD = ("low_s", "high_s", "effective_samples")  # these follow from rules that may change


def check_header(header: RunHeader, now: datetime) -> Iterator[Oddity]:
    """The first line: when, on what, and which cases."""
    yield from _check_created(header.created, now)
    yield from _check_machine(header.machine)
    for text, count in Counter(header.cases).items():
        if count > 1:
            yield "$.header.cases", f"{text} stands there {count} times"
        try:
            device = parse_case(text).device
        except UsageError as error:
            yield "$.header.cases", error.cause
            continue
        if header.machine.devices and device not in {info.name for info in header.machine.devices}:
            yield "$.header.machine.devices", f"{text} is planned on a device that is not there"
    if not 1 <= header.processes <= 1000:
        yield "$.header.processes", f"{header.processes} processes for each case"


def _check_created(text: str, now: datetime) -> Iterator[Oddity]:
    try:
        created = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        yield "$.header.created", f"'{text}' is not a time in UTC to the second"
        return
    if not FIRST_RUN <= created <= now + CLOCK_OFF:
        yield "$.header.created", f"{text} is {'before torchmark was there' if created < now else 'still to come'}"


def _check_machine(machine: Machine) -> Iterator[Oddity]:
    if not 1 <= machine.physical_cores <= machine.logical_cores <= 100_000:
        yield "$.header.machine", f"{machine.physical_cores} cores that show as {machine.logical_cores}"
    if not 1 <= machine.memory_gib <= 1_000_000:
        yield "$.header.machine.memory_gib", f"{machine.memory_gib} GiB of memory"
    if machine.torch is not None and not re.match(r"\d+\.\d+", machine.torch):
        yield "$.header.machine.torch", f"'{machine.torch}' is no version of torch"


def check_result(result: Result, same_method: bool) -> Iterator[Oddity]:
    """What a result says, held against itself; `same_method` says that this torchmark works it out in the same way."""
    if result.status != "ok":
        if not result.reason:
            yield "$.result.reason", f"{result.status} without a reason"
        return
    estimate = result.estimate
    if estimate is None:
        yield "$.result.estimate", "ok without a figure"
        return
    oddities = [*_check_estimate(estimate, "$.result.estimate")]
    for index, process in enumerate(result.processes):
        oddities += _check_estimate(process, f"$.result.processes[{index}]")
    yield from oddities
    if estimate.verdict != "as-published":
        yield from () if oddities else _check_combined(estimate, result.processes, same_method)
        yield from _check_phases(result, estimate)
    if result.numeric and not 0 <= result.numeric.error <= result.numeric.tolerance:
        told = f"off by {result.numeric.error:.2g} where {result.numeric.tolerance:.2g} is allowed"
        yield "$.result.numeric", f"ok although its numbers are wrong: {told}"
    yield from _check_job(result)


def _check_estimate(estimate: Estimate, place: str) -> Iterator[Oddity]:
    if not estimate.low_s <= estimate.center_s <= estimate.high_s:
        yield f"{place}.center_s", "it lies outside its own interval"
    if estimate.center_s + estimate.call_cost_s <= 0:
        yield f"{place}.center_s", f"a step of {estimate.center_s:.3g} s takes no time"
    spans = (estimate.call_cost_s, estimate.duration_s, estimate.first_step_s, estimate.high_s - estimate.low_s)
    if estimate.block_size < 1 or not all(0 <= span < LONGEST_S for span in spans) or estimate.low_s < -LONGEST_S:
        yield place, "a time or a count that cannot be"
    watts = estimate.metered.mean_w
    if watts is not None and not 0 <= watts <= MOST_WATTS:
        yield f"{place}.metered.mean_w", f"{watts:.3g} W"


def _check_combined(estimate: Estimate, processes: Sequence[Estimate], same_method: bool) -> Iterator[Oddity]:
    """The figure of a case follows from those of its processes."""
    if not processes:
        yield "$.result.processes", "a figure without the processes that it comes from"
        return
    expected, size = combine(processes), _size(processes)
    if estimate.spread is not None and estimate.freedom:  # which all cases of the run have a part in
        spread = Spread(estimate.spread**2, estimate.freedom)
        expected = with_interval(expected, spread, len(processes))
    for name in (*_SUMMED_UP, *(_BY_METHOD if same_method else ())):
        told, found = getattr(estimate, name), getattr(expected, name)
        if not _close(told, found, EXACT, size if name in ("center_s", "low_s", "high_s") else 0.0):
            yield f"$.result.estimate.{name}", f"{told:.6g}, but its processes give {found:.6g}"
    if estimate.verdict != expected.verdict:
        yield "$.result.estimate.verdict", f"{estimate.verdict}, but of its processes one is {expected.verdict}"


def _check_phases(result: Result, estimate: Estimate) -> Iterator[Oddity]:
    """Steps are a phase among others."""
    for name, seconds in result.phases_s.items():
        if seconds < 0:
            yield f"$.result.phases_s.{name}", f"it took {seconds:.3g} s"
    steps_s, sampled_s = result.phases_s.get("steps"), estimate.duration_s
    if steps_s is not None and sampled_s > TIMED_TWICE * steps_s and not _is_played(result):
        yield "$.result.phases_s.steps", f"sampling took {sampled_s:.3g} s within a phase of {steps_s:.3g} s"


def _check_job(result: Result) -> Iterator[Oddity]:
    job = result.job
    if job is None:
        return
    if not job.low_s <= job.seconds * (1 + EXACT) or not job.seconds <= job.high_s * (1 + EXACT):
        yield "$.result.job.seconds", "it lies outside its own interval"
    total = sum(stage.steps * stage.center_s for stage in job.stages)
    replayed = result.case.protocol == "as-published"  # whose parts were timed on the way, even where it was run whole
    if job.stages and (replayed or not job.whole) and not _close(job.seconds, total, EXACT):
        yield "$.result.job.seconds", f"{job.seconds:.6g}, but its stages add up to {total:.6g}"
    main = next((stage for stage in job.stages if stage.name == "step"), None)
    means = [each.mean_s for each in result.processes]
    together = math.exp(sum(map(math.log, means)) / len(means)) if means and min(means) > 0 else 0.0
    if main and means and not any(_close(main.center_s, each, EXACT) for each in (together, *means)):
        yield "$.result.job.stages", f"a step of {main.center_s:.6g} s, which is the mean of no process"


def check_samples(result: Result, samples: Mapping[int, Sequence[float]], same_method: bool) -> Iterator[Oddity]:
    """The last processes of a result against their raw samples. An interval can be worked out again only by the very
    method that made it, and a replay follows that of its publication."""
    if result.case.protocol == "as-published":
        if result.estimate and len(samples) == 1:
            yield from _replay_again(result, result.estimate, next(iter(samples.values())), same_method)
        return
    values = [np.asarray(samples[process], dtype=np.float64) for process in sorted(samples)]
    first = len(result.processes) - len(values)
    if first < 0:
        if result.status == "ok":
            yield "$.result.processes", f"{len(result.processes)} processes, but samples of {len(values)}"
        return
    for index, (estimate, series) in enumerate(zip(result.processes[first:], values, strict=True), first):
        place = f"$.result.processes[{index}]"
        oddities = [*_recount(estimate, series)]
        if not oddities and same_method:
            oddities = [*_measure_again(estimate, series)]
        if not oddities and not _is_played(result):
            oddities = [*_check_duration(estimate, series)]
        yield from ((f"{place}.{name}", text) for name, text in oddities)
        if not oddities and same_method and result.sustained:
            yield from _check_sustained(result.sustained, estimate, series)


def _replay_again(result: Result, told: Estimate, laps: Sequence[float], same_method: bool) -> Iterator[Oddity]:
    """What a publication would have printed, from the laps of its loop. Of what it did beside the loop no more is kept
    than how long that took."""
    steps = np.asarray(laps, dtype=np.float64)
    if told.sample_count != len(steps) or not len(steps):
        yield "$.result.estimate.sample_count", f"{told.sample_count}, but there are {len(steps)} samples"
        return
    if steps.min() <= 0 or steps.max() > LONGEST_S:
        yield "$.result.estimate.samples_s", f"steps took {steps.min():.3g} to {steps.max():.3g} s"
        return
    found = {"first_step_s": steps[0], "median_s": np.sort(steps)[len(steps) // 2], "min_s": steps.min()}
    for name, value in found.items():
        if not _close(getattr(told, name), float(value), EXACT):
            yield f"$.result.estimate.{name}", f"{getattr(told, name):.6g}, but its samples give {value:.6g}"
    if steps.sum() > told.duration_s * (1 + EXACT):
        yield "$.result.estimate.duration_s", f"{told.duration_s:.4g} s, but its samples took {steps.sum():.4g} s"
    if same_method:
        yield from _check_pace(told, steps) if result.job is None else _check_loop(result.job, steps)
    times = result.job.seconds / told.center_s if result.job and told.center_s > 0 else 1.0
    if not math.isfinite(times) or not _close(times, max(round(times), 1), EXACT):
        yield "$.result.estimate.center_s", f"{told.center_s:.6g} is no whole part of {times * told.center_s:.6g}"


def _check_pace(told: Estimate, steps: Series) -> Iterator[Oddity]:
    """Of a loop that was watched and stopped, its later steps are the figure."""
    whole, part = (later_step(Laps("", steps.tolist(), len(steps) + more)).center_s for more in (0, 1))
    if not _close(told.center_s, whole, EXACT) and not _close(told.center_s, part, EXACT):
        yield "$.result.estimate.center_s", f"{told.center_s:.6g}, but its samples give {part:.6g}"


def _check_loop(job: JobEstimate, steps: Series) -> Iterator[Oddity]:
    """One of the parts of the job is the loop that the samples are of; each of them is told as a first and later."""
    parts: dict[str, list[StageEstimate]] = {}
    for stage in job.stages:
        parts.setdefault(re.sub(r"^(first|interrupted|later) ", "", stage.name), []).append(stage)
    known: dict[tuple[bool, bool], tuple[StageEstimate, ...]] = {}  # worked out once, however many parts there are
    for told in parts.values():
        count = sum(stage.steps for stage in told)
        kind = count == 1, count <= len(steps)
        if kind not in known:
            known[kind] = extrapolate([Laps("", steps.tolist(), count)]).stages
        found = known[kind]
        alike = [_close(a.center_s, b.center_s, EXACT) for a, b in zip(told, found, strict=False)]
        if len(told) == len(found) and all(alike) and (len(found) == 1 or told[0].steps == found[0].steps):
            return
    yield "$.result.job.stages", "none of them follows from its samples"


def _check_sustained(told: Sustained, estimate: Estimate, samples: Series) -> Iterator[Oddity]:
    """Both ends of a case that was kept going follow from its samples."""
    found = sustained_of(replace(estimate, samples_s=tuple(samples.tolist())))
    for name in ("first_s", "last_s"):
        seconds = getattr(told, name)
        if found is None or not _close(seconds, getattr(found, name), CORRELATED):
            yield f"$.result.sustained.{name}", f"{seconds:.6g}, but its samples give {_end(found, name)}"


def _end(found: Sustained | None, name: str) -> str:
    return "none" if found is None else f"{getattr(found, name):.6g}"


def _recount(estimate: Estimate, samples: Series) -> Iterator[Oddity]:
    """Counts, centre and spread, by the told cut."""
    if estimate.sample_count != len(samples):
        yield "sample_count", f"{estimate.sample_count}, but there are {len(samples)} samples"
        return
    if not len(samples) or not 0 <= estimate.warmup_cut <= len(samples) // 2:
        yield "warmup_cut", f"{estimate.warmup_cut} of {len(samples)} samples"
        return
    least, most = float(samples.min()), float(samples.max())
    if least + estimate.call_cost_s <= 0 or most > LONGEST_S:
        yield "samples_s", f"steps took {least:.3g} to {most:.3g} s"
        return
    kept = samples[estimate.warmup_cut :]
    found = describe(kept) | {"mean_s": float(kept.mean())}
    found["center_s"] = found["median_s"] if estimate.estimand == "median" else found["mean_s"]
    size = float(np.abs(kept).max()) + estimate.call_cost_s
    for name, value in found.items():
        told = getattr(estimate, name)
        if (told is None) != (value is None) or (value is not None and not _close(told, value, EXACT, size)):
            yield name, f"{_shown(told)}, but its samples give {_shown(value)}"


def _measure_again(estimate: Estimate, samples: Series) -> Iterator[Oddity]:
    """The correlation of the samples and the interval that follows from it."""
    raw = np.maximum(samples + estimate.call_cost_s, 1e-12)
    kept, logs = raw[estimate.warmup_cut :], winsorised_logs(raw)[estimate.warmup_cut :]
    time = autocorrelation_time(below_median(kept), logs)
    if not _close(estimate.autocorrelation_time, time, CORRELATED):
        yield "autocorrelation_time", f"{estimate.autocorrelation_time:.4g}, but its samples give {time:.4g}"
        return
    interval = (mean_interval if estimate.estimand == "mean" else median_interval)(kept, estimate.autocorrelation_time)
    size = float(kept.max())
    for name, value in (("low_s", interval.low), ("high_s", interval.high)):
        told = getattr(estimate, name) + estimate.call_cost_s
        if not _close(told, value, CORRELATED, size * EXACT / CORRELATED):
            yield name, f"{_shown(told)}, but its samples give {_shown(value)}"
    if estimate.verdict == "stable" and (interval.high - interval.low) / 2 > estimate.target * interval.center * 1.001:
        yield "verdict", "stable, but its interval is wider than the target"


def _check_duration(estimate: Estimate, samples: Series) -> Iterator[Oddity]:
    """Samples take their time: no more than there was, and not much less."""
    by_events = estimate.estimand == "median" and estimate.block_size > 1
    blocks = len(samples) / estimate.block_size if by_events else len(samples)
    total = float((samples + estimate.call_cost_s).sum()) * (1 if by_events else estimate.block_size)
    first = float(samples[0]) * estimate.block_size  # it may have been taken before the clock was read
    if total - first > TIMED_TWICE * estimate.duration_s:
        yield "duration_s", f"{estimate.duration_s:.4g} s, but its samples took {total:.4g} s"
    most = IDLE_TIMES * total + IDLE_BLOCK_S * blocks + IDLE_S
    if estimate.duration_s > most:
        yield "duration_s", f"{estimate.duration_s:.4g} s for samples that took {total:.4g} s"


def _is_played(result: Result) -> bool:
    """A fake device plays its steps on a clock of its own."""
    return result.case.device.partition(":")[0] == "fake"


def _size(processes: Sequence[Estimate]) -> float:
    return max(max(abs(each.center_s), each.call_cost_s) for each in processes)


def _close(told: float, found: float, tolerance: float, size: float = 0.0) -> bool:
    """Equal but for rounding, which is relative to what the figures were worked out from."""
    return abs(told - found) <= tolerance * max(abs(told), abs(found), size) or not math.isfinite(found)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
