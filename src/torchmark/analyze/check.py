"""Is a run file consistent with itself, and do several files of the same device and software agree?

Estimates are computed again from the raw samples by the functions that measured, and compared field by field. A wrong
result is reported, never refused, and a right one may still be forged with care: no figure proves where it comes from.
That several files are independent of each other is claimed, not known.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from torchmark.analyze.jobs import extrapolate, later_step, sustained_of
from torchmark.analyze.spread import Spread, with_interval
from torchmark.analyze.statistics import Series, read_series
from torchmark.analyze.summary import Observations, combine, summarise
from torchmark.errors import UsageError
from torchmark.records import STEP, Estimate, JobEstimate, Laps, Machine, Remark, Result, RunHeader, parse_case

EXACT = 1e-6  # relative; figures are stored with all digits and differ by rounding alone
CORRELATED = 1e-3  # sums over long series differ more from one version of numpy to another
FIRST_RUN = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_OFF = timedelta(days=1)
LONGEST_S = 1e9  # thirty years
MOST_WATTS = 1e6
TIMED_TWICE = 1.02  # samples cannot take longer than the time in which they were taken, beyond rounding
IDLE_TIMES = 3.0  # the work between samples takes at most this many times as long as they do
IDLE_S = 10.0  # plus this much for looking at them
IDLE_BLOCK_S = 2e-3  # and this much for every block

# Fields of an estimate that follow from the kept samples alone, and those that follow from rules that may change.
_DESCRIBED = (
    "center_s", "mean_s", "median_s", "min_s", "p90_s", "p90_high_s", "p99_s", "p99_high_s", "mad_s", "outlier_share",
)  # fmt: skip
_BY_METHOD = ("autocorrelation_time", "effective_samples", "low_s", "high_s", "mean_low_s", "mean_high_s")
_COMBINED = ("center_s", "first_step_s", "sample_count", "duration_s")
_COMBINED_BY_METHOD = ("low_s", "high_s", "effective_samples")


def check_header(header: RunHeader, now: datetime) -> Iterator[Remark]:
    """Check the first line: when, on what, and which cases."""
    machine = header.machine
    yield from _check_created(header.created, now)
    if not 1 <= machine.physical_cores <= machine.logical_cores <= 100_000:
        cores = f"{machine.physical_cores} physical cores, {machine.logical_cores} logical ones"
        yield _wrong("$.header.machine", cores)
    if not 1 <= machine.memory_gib <= 1_000_000:
        yield _wrong("$.header.machine.memory_gib", f"{machine.memory_gib} GiB of memory")
    if machine.torch is not None and not re.match(r"\d+\.\d+", machine.torch):
        yield _wrong("$.header.machine.torch", f"'{machine.torch}' is no version of torch")
    if not 1 <= header.processes <= 1000:
        yield _wrong("$.header.processes", f"{header.processes} processes for each case")
    devices = {info.name for info in machine.devices}
    for text, count in Counter(header.cases).items():
        if count > 1:
            yield _wrong("$.header.cases", f"{text} is listed {count} times")
        try:
            device = parse_case(text).device
        except UsageError as error:
            yield _wrong("$.header.cases", error.cause)
            continue
        if devices and device not in devices:
            yield _wrong("$.header.machine.devices", f"{text} is planned on a device that the machine does not have")


def _check_created(text: str, now: datetime) -> Iterator[Remark]:
    try:
        created = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        yield _wrong("$.header.created", f"'{text}' is not a time in UTC to the second")
        return
    if not FIRST_RUN <= created <= now + CLOCK_OFF:
        when = "before torchmark existed" if created < now else "in the future"
        yield _wrong("$.header.created", f"{text} is {when}")


def check_result(result: Result, same_method: bool) -> Iterator[Remark]:
    """Compare a result with itself; `same_method`: this version of torchmark computes it in the same way."""
    estimate, numeric = result.estimate, result.numeric
    if result.status != "ok":
        if not result.reason:
            yield _wrong("$.result.reason", f"{result.status} without a reason")
        return
    if estimate is None:
        yield _wrong("$.result.estimate", "ok without a figure")
        return
    wrong = [*_check_ranges(estimate, "$.result.estimate")]
    for index, process in enumerate(result.processes):
        wrong += _check_ranges(process, f"$.result.processes[{index}]")
    yield from wrong
    if estimate.verdict != "as-published":
        yield from () if wrong else _check_combined(estimate, result.processes, same_method)
        yield from _check_phases(result, estimate)
    if numeric and not 0 <= numeric.error <= numeric.tolerance:
        off = f"off by {numeric.error:.2g} where {numeric.tolerance:.2g} is allowed"
        yield _wrong("$.result.numeric", f"ok although its numbers are wrong: {off}")
    if result.job:
        yield from _check_job(result, result.job)


def _check_ranges(estimate: Estimate, place: str) -> Iterator[Remark]:
    """No interval without its centre, and no time, count or power that is impossible."""
    if not estimate.low_s <= estimate.center_s <= estimate.high_s:
        yield _wrong(f"{place}.center_s", "it lies outside its own interval")
    if estimate.center_s + estimate.call_cost_s <= 0:
        yield _wrong(f"{place}.center_s", f"a step of {estimate.center_s:.3g} s takes no time")
    spans = (estimate.call_cost_s, estimate.duration_s, estimate.first_step_s, estimate.high_s - estimate.low_s)
    if estimate.block_size < 1 or not all(0 <= span < LONGEST_S for span in spans) or estimate.low_s < -LONGEST_S:
        yield _wrong(place, "an impossible time or count")
    watts = estimate.metered.mean_w
    if watts is not None and not 0 <= watts <= MOST_WATTS:
        yield _wrong(f"{place}.metered.mean_w", f"{watts:.3g} W")


def _check_combined(stored: Estimate, processes: Sequence[Estimate], same_method: bool) -> Iterator[Remark]:
    if not processes:
        yield _wrong("$.result.processes", "a figure without the processes that it comes from")
        return
    found = combine(processes)
    if stored.spread is not None and stored.freedom:  # the spread of the whole run, shared by its cases
        found = with_interval(found, Spread(stored.spread**2, stored.freedom), len(processes))
    names = (*_COMBINED, *(_COMBINED_BY_METHOD if same_method else ()))
    size = max(max(abs(each.center_s), each.call_cost_s) for each in processes)
    yield from _compare(stored, found, names, "$.result.estimate", "processes", EXACT, size)
    if stored.verdict != found.verdict:
        yield _wrong("$.result.estimate.verdict", f"{stored.verdict}, but its processes give {found.verdict}")


def _check_phases(result: Result, estimate: Estimate) -> Iterator[Remark]:
    for name, seconds in result.phases_s.items():
        if seconds < 0:
            yield _wrong(f"$.result.phases_s.{name}", f"it took {seconds:.3g} s")
    steps_s, sampled_s = result.phases_s.get("steps"), estimate.duration_s
    if steps_s is not None and sampled_s > TIMED_TWICE * steps_s and not _is_simulated(result):
        yield _wrong("$.result.phases_s.steps", f"sampling took {sampled_s:.3g} s within a phase of {steps_s:.3g} s")


def _check_job(result: Result, job: JobEstimate) -> Iterator[Remark]:
    if not job.low_s <= job.seconds * (1 + EXACT) or not job.seconds <= job.high_s * (1 + EXACT):
        yield _wrong("$.result.job.seconds", "it lies outside its own interval")
    total = sum(stage.steps * stage.center_s for stage in job.stages)
    replayed = result.case.protocol == "as-published"  # its parts were timed on the way, even where it was run whole
    if job.stages and (replayed or not job.whole) and not _close(job.seconds, total, EXACT):
        yield _wrong("$.result.job.seconds", f"{job.seconds:.6g}, but its stages add up to {total:.6g}")
    main = next((stage for stage in job.stages if stage.name == STEP), None)
    means = [each.mean_s for each in result.processes]
    together = math.exp(sum(map(math.log, means)) / len(means)) if means and min(means) > 0 else 0.0
    if main and means and not any(_close(main.center_s, each, EXACT) for each in (together, *means)):
        yield _wrong("$.result.job.stages", f"a step of {main.center_s:.6g} s, which is the mean of no process")


def check_samples(result: Result, samples: Mapping[int, Sequence[float]], same_method: bool) -> Iterator[Remark]:
    """Compute the last processes of a result again from their raw samples, and a replay by its publication's method."""
    if result.case.protocol == "as-published":
        if result.estimate and len(samples) == 1:
            yield from _check_replay(result, result.estimate, next(iter(samples.values())), same_method)
        return
    values = [np.asarray(samples[process], dtype=np.float64) for process in sorted(samples)]
    first = len(result.processes) - len(values)
    if first < 0:
        if result.status == "ok":
            count = len(result.processes)
            yield _wrong("$.result.processes", f"{count} processes, but samples of {len(values)}")
        return
    for index, (stored, series) in enumerate(zip(result.processes[first:], values, strict=True), first):
        place = f"$.result.processes[{index}]"
        wrong = [*_check_process(stored, series, place, same_method)]
        if not wrong and not _is_simulated(result):
            wrong = [*_check_duration(stored, series, f"{place}.duration_s")]
        yield from wrong
        if result.sustained and same_method and not wrong:
            found = sustained_of(replace(stored, samples_s=tuple(series.tolist())))
            ends = ("first_s", "last_s")
            yield from _compare(result.sustained, found, ends, "$.result.sustained", "samples", CORRELATED)


def _check_process(stored: Estimate, samples: Series, place: str, same_method: bool) -> Iterator[Remark]:
    """Summarise the samples again, from the recorded warm-up cut on, and compare."""
    count = len(samples)
    if stored.sample_count != count:
        yield _wrong(f"{place}.sample_count", f"{stored.sample_count}, but there are {count} samples")
        return
    if not count or not 0 <= stored.warmup_cut <= count // 2:
        yield _wrong(f"{place}.warmup_cut", f"{stored.warmup_cut} of {count} samples")
        return
    least, most = float(samples.min()), float(samples.max())
    if least + stored.call_cost_s <= 0 or most > LONGEST_S:
        yield _wrong(f"{place}.samples_s", f"steps took {least:.3g} to {most:.3g} s")
        return
    found = recompute(stored, samples)
    size = most + stored.call_cost_s
    wrong = [*_compare(stored, found, _DESCRIBED, place, "samples", EXACT, size)]
    if same_method and not wrong:
        center = abs(found.center_s) + stored.call_cost_s
        wrong = [*_compare(stored, found, _BY_METHOD, place, "samples", CORRELATED, center)]
        if stored.verdict == "stable" and (found.verdict != "stable" or found.precision > stored.target * 1.001):
            what = found.verdict if found.verdict != "stable" else "an interval wider than the target"
            wrong.append(_wrong(f"{place}.verdict", f"stable, but its samples give {what}"))
    yield from wrong


def recompute(stored: Estimate, samples: Series) -> Estimate:
    """The estimate that raw samples give with the recorded cut, costs and settings; what meters saw is left out."""
    raw = np.maximum(samples + stored.call_cost_s, 1e-12)
    by_events = stored.estimand == "median"  # or steps alone: either way each sample is one step
    reading = read_series(raw, stored.target, stored.estimand, 1 if by_events else stored.block_size, stored.warmup_cut)
    seen = Observations(
        estimand=stored.estimand,
        block_size=stored.block_size,
        confirmed=stored.verdict == "stable",
        first_step_s=stored.first_step_s,
        sync_cost_s=stored.sync_cost_s,
        call_cost_s=stored.call_cost_s,
        target=stored.target,
        duration_s=stored.duration_s,
        wall_step_s=stored.wall_step_s or 0.0,
    )
    return summarise(raw, reading, seen)


def _check_duration(stored: Estimate, samples: Series, place: str) -> Iterator[Remark]:
    """Samples take their time: no more than there was, and not much less."""
    by_events = stored.estimand == "median" and stored.block_size > 1
    blocks = len(samples) / stored.block_size if by_events else len(samples)
    total = float((samples + stored.call_cost_s).sum()) * (1 if by_events else stored.block_size)
    first = float(samples[0]) * stored.block_size  # it may have been taken before the clock was read
    if total - first > TIMED_TWICE * stored.duration_s:
        yield _wrong(place, f"{stored.duration_s:.4g} s, but its samples took {total:.4g} s")
    if stored.duration_s > IDLE_TIMES * total + IDLE_BLOCK_S * blocks + IDLE_S:
        yield _wrong(place, f"{stored.duration_s:.4g} s for samples that took {total:.4g} s")


def _check_replay(result: Result, stored: Estimate, laps: Sequence[float], same_method: bool) -> Iterator[Remark]:
    """Compute again what a publication would have printed, from the laps of its loop. Of everything else that it did
    only the duration is kept."""
    place, steps = "$.result.estimate", np.asarray(laps, dtype=np.float64)
    if stored.sample_count != len(steps) or not len(steps):
        yield _wrong(f"{place}.sample_count", f"{stored.sample_count}, but there are {len(steps)} samples")
        return
    if steps.min() <= 0 or steps.max() > LONGEST_S:
        yield _wrong(f"{place}.samples_s", f"steps took {steps.min():.3g} to {steps.max():.3g} s")
        return
    middle = float(np.sort(steps)[len(steps) // 2])
    found = replace(stored, first_step_s=float(steps[0]), median_s=middle, min_s=float(steps.min()))
    yield from _compare(stored, found, ("first_step_s", "median_s", "min_s"), place, "samples", EXACT)
    if steps.sum() > stored.duration_s * (1 + EXACT):
        yield _wrong(f"{place}.duration_s", f"{stored.duration_s:.4g} s, but its samples took {steps.sum():.4g} s")
    if same_method and result.job is None:  # of a loop that was watched and stopped, its later steps are the figure
        later = [later_step(Laps("", steps.tolist(), len(steps) + more)).center_s for more in (0, 1)]
        if not any(_close(stored.center_s, each, EXACT) for each in later):
            yield _wrong(f"{place}.center_s", f"{stored.center_s:.6g}, but its samples give {later[1]:.6g}")
    elif same_method and result.job and not _is_from_laps(result.job, steps):
        yield _wrong("$.result.job.stages", "none of them follows from its samples")
    times = result.job.seconds / stored.center_s if result.job and stored.center_s > 0 else 1.0
    if not math.isfinite(times) or not _close(times, max(round(times), 1), EXACT):
        yield _wrong(f"{place}.center_s", f"{stored.center_s:.6g} does not divide {times * stored.center_s:.6g}")


def _is_from_laps(job: JobEstimate, steps: Series) -> bool:
    """Whether one part of the job is the loop that the samples are of; a part has first and later stages."""
    parts: dict[str, list[tuple[int, float]]] = {}
    for stage in job.stages:
        name = re.sub(r"^(first|interrupted|later) ", "", stage.name)
        parts.setdefault(name, []).append((stage.steps, stage.center_s))
    known: dict[tuple[bool, bool], list[tuple[int, float]]] = {}  # computed once, however many parts there are
    for stored in parts.values():
        count = sum(steps for steps, _ in stored)
        kind = count == 1, count <= len(steps)
        if kind not in known:
            stages = extrapolate([Laps("", steps.tolist(), count)]).stages
            known[kind] = [(stage.steps, stage.center_s) for stage in stages]
        found = known[kind]
        alike = [_close(a, b, EXACT) for (_, a), (_, b) in zip(stored, found, strict=False)]
        if len(stored) == len(found) and all(alike) and (len(found) == 1 or stored[0][0] == found[0][0]):
            return True
    return False


def _compare(
    stored: object, found: object, names: Iterable[str], place: str, source: str, tolerance: float, size: float = 0.0
) -> Iterator[Remark]:
    """Compare two records field by field. Rounding is relative to what the figures were computed from: `size`."""
    for name in names:
        ours, theirs = getattr(stored, name), getattr(found, name, None)
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None or not _close(ours, theirs, tolerance, size):
            yield _wrong(f"{place}.{name}", f"{_shown(ours)}, but its {source} give {_shown(theirs)}")


def _close(stored: float, found: float, tolerance: float, size: float = 0.0) -> bool:
    return abs(stored - found) <= tolerance * max(abs(stored), abs(found), size) or not math.isfinite(found)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _wrong(place: str, cause: str) -> Remark:
    return Remark("consistent", cause, place=place)


def _is_simulated(result: Result) -> bool:
    """The fake device runs on a clock of its own."""
    return result.case.device.partition(":")[0] == "fake"


ENOUGH_FILES = 3  # files
APART = 0.10  # what fresh processes, other memory and a warmer room explain
SPREADS = 3.0  # plus this many of the files' own margins
WIDEST_MARGIN = 0.2  # a margin that explains everything would say nothing
_STEADY = ("stable", "noisy")  # a figure that was disturbed supports no other

DIGITS, DISTINCT = 6, 3  # of the digest: decimals of samples relative to their median, and different values at least
WINDOW, LEAST_SAMPLES = 256, 10  # samples of a process that are compared one by one: at most, and at least
NEAR, COPIED = 1e-5, 0.9  # relative difference of copied samples, and their share; honest repeats differ by far more
NOISE = 10 * NEAR  # typical deviation from the median below which samples of independent processes may be that near

FloatArray = NDArray[np.float64]


class SampleKey(Struct, frozen=True, eq=False):
    """What is kept of a process's samples to recognise copies of them."""

    digest: str
    logs: FloatArray  # relative to their median, so that a factor does not matter; empty if there is too little to see


class Witness(Struct, frozen=True):
    """One file's figure for one case."""

    file: str
    run: str
    line: int
    case: str
    place: tuple[str, ...]  # the work, the device and the software: only files that agree in these are compared
    center_s: float
    margin: float  # relative
    series: tuple[SampleKey, ...]  # one per process; near copies are one measurement, however often they are sent in
    counts: bool = True  # False: it is compared with others, but supports none of them


class Corroboration(Struct, frozen=True):
    """What the files say of each other: figures that others support, copies, and figures that stand apart."""

    supported: frozenset[tuple[str, str]]  # file and case
    copies: tuple[tuple[Witness, Witness], ...]  # the second has nearly the samples of the first
    apart: tuple[tuple[Witness, float, int], ...]  # how many times slower than so many others


def witness(
    file: str, run: str, line: int, machine: Machine, result: Result, series: Sequence[SampleKey]
) -> Witness | None:
    """A file's figure as it is compared with those of others; `series` has the samples of each process."""
    estimate, device = result.estimate, result.case.device
    if result.status != "ok" or estimate is None or estimate.verdict not in _STEADY:
        return None
    if estimate.center_s <= max(estimate.call_cost_s, 0.0):
        return None
    info = next(((each.model, each.driver, each.cores) for each in machine.devices if each.name == device), None)
    parts = (machine.cpu, machine.physical_cores, machine.torch, machine.torch_build, info)
    figures = (estimate.center_s, estimate.low_s, estimate.high_s, estimate.sample_count)
    return Witness(
        file=file,
        run=run,
        line=line,
        case=result.case.text,
        place=(result.case.text, str(result.version), *map(str, parts)),
        center_s=estimate.center_s,
        margin=estimate.precision,
        series=tuple(series) or (SampleKey(_hash(figures), np.empty(0)),),
    )


def corroborate(witnesses: Iterable[Witness]) -> Corroboration:
    """Compare what can be compared: each figure with the median of all others of the same work, device and software."""
    groups: dict[tuple[str, ...], list[Witness]] = {}
    for each in witnesses:
        groups.setdefault(each.place, []).append(each)
    supported: set[tuple[str, str]] = set()
    copies: list[tuple[Witness, Witness]] = []
    apart: list[tuple[Witness, float, int]] = []
    for group in groups.values():
        originals = _originals(group)
        copies += [(first, each) for each, first in zip(group, originals, strict=True) if first is not each]
        counting = [each for each, first in zip(group, originals, strict=True) if first is each and each.counts]
        for each, first in zip(group, originals, strict=True):
            others = [other for other in counting if other is not first]
            if len(others) < ENOUGH_FILES - 1:
                continue
            ratio = each.center_s / statistics.median(other.center_s for other in others)
            margin = min(max(each.margin, statistics.median(other.margin for other in others)), WIDEST_MARGIN)
            if max(ratio, 1 / ratio) > 1 + APART + SPREADS * margin:
                apart.append((each, ratio, len(others)))
            else:
                supported.add((each.file, each.case))
    return Corroboration(frozenset(supported), tuple(copies), tuple(apart))


def _originals(group: Sequence[Witness]) -> list[Witness]:
    """For each witness the first with the same samples, often itself; those that count come first."""
    known, found = _Known(), {}
    for index in sorted(range(len(group)), key=lambda index: not group[index].counts):
        found[index] = known.find(group[index].series)
        if found[index] is None:
            known.add(group[index])
    return [found[index] or each for index, each in enumerate(group)]


class _Known:
    """The samples of original witnesses; those of one length are compared in one operation."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Witness] = {}
        self._by_length: dict[int, tuple[list[FloatArray], list[Witness]]] = {}

    def add(self, owner: Witness) -> None:
        for each in owner.series:
            self._by_digest.setdefault(each.digest, owner)
            logs, owners = self._by_length.setdefault(len(each.logs), ([], []))
            logs.append(each.logs)
            owners.append(owner)

    def find(self, series: Iterable[SampleKey]) -> Witness | None:
        """The witness with nearly the same samples in one of its processes."""
        for each in series:
            if found := self._by_digest.get(each.digest):
                return found
            logs, owners = self._by_length.get(len(each.logs), ([], []))
            if logs and len(each.logs):
                distances = np.asarray(logs) - each.logs
                distances -= np.median(distances, axis=1, keepdims=True)
                copied = np.mean(np.abs(distances) < NEAR, axis=1) >= COPIED
                if copied.any():
                    return owners[int(np.argmax(copied))]
        return None


def keep(values: Sequence[float]) -> SampleKey:
    """Reduce a process's samples to what recognises copies of them."""
    samples = np.asarray(values, dtype=np.float64)[:WINDOW]
    logs = np.empty(0)
    if len(samples) >= LEAST_SAMPLES and np.isfinite(samples).all() and (samples > 0).all():
        relative = np.log(samples / np.median(samples))
        logs = relative if np.median(np.abs(relative)) >= NOISE else logs
    return SampleKey(digest(values), logs)


def digest(values: Sequence[float]) -> str:
    """By which equal samples are known again, even if all were multiplied by a factor. SampleKey with hardly any spread
    are alike once they are normalised, so their digest is that of the values themselves."""
    plain = np.asarray(values, dtype=np.float64)
    median = float(np.median(plain)) if len(plain) else 0.0
    scaled = np.round(plain / median, DIGITS) if np.isfinite(median) and median > 0 else plain
    return _hash(scaled if len(np.unique(scaled)) >= DISTINCT else plain)


def _hash(values: Sequence[float] | FloatArray) -> str:
    return hashlib.sha256(np.asarray(values, dtype=np.float64).tobytes()).hexdigest()
