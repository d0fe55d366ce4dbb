"""Check run files for consistency, by recomputing estimates, and compare the figures of several files."""

import hashlib
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.jobs import extrapolate, later_step, project, sustained_of
from torchmark.analyze.pairing import grouped
from torchmark.analyze.spread import Spread, with_interval
from torchmark.analyze.statistics import Series, read_series
from torchmark.analyze.verdict import combine, summarise
from torchmark.case import parse_case
from torchmark.errors import UsageError
from torchmark.records import STEP, Contention, Estimate, JobEstimate, Laps, Machine, Remark, Result, RunHeader

EXACT = 1e-6  # relative: rounding
CORRELATED = 1e-3  # sums over long series differ more from one version of numpy to another
LONGEST_S = 1e9  # thirty years
TIMED_TWICE = 1.02  # samples take no longer than the time in which they were taken, beyond rounding
IDLE_TIMES, IDLE_S, IDLE_BLOCK_S = 3.0, 10.0, 2e-3  # the most between samples: a multiple of them, once, per block

# Fields of an estimate that follow from the kept samples alone, and those that follow from a method that may change.
_DESCRIBED = (
    "center_s", "mean_s", "median_s", "min_s", "p90_s", "p90_high_s", "p99_s", "p99_high_s", "mad_s", "outlier_share",
)  # fmt: skip
_BY_METHOD = ("autocorrelation_time", "effective_samples", "low_s", "high_s", "mean_low_s", "mean_high_s")


def _violations(*rules: tuple[bool, str, str]) -> list[Remark]:
    """The rules that do not hold; each is whether it does, the place and the cause."""
    return [Remark("consistent", cause, place=f"$.{place}") for holds, place, cause in rules if not holds]


def check_header(header: RunHeader, now: datetime) -> Iterator[Remark]:
    machine, text, devices = header.machine, header.created, {info.name for info in header.machine.devices}
    try:
        created = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        when = f"{text} is {'before torchmark existed' if created < now else 'in the future'}"
    except ValueError:
        created, when = datetime.min.replace(tzinfo=UTC), f"'{text}' is not a time in UTC to the second"
    cores, torch = f"{machine.physical_cores} physical cores, {machine.logical_cores} logical ones", machine.torch
    yield from _violations(
        (created.year >= 2026 and created <= now + timedelta(days=1), "header.created", when),
        (1 <= machine.physical_cores <= machine.logical_cores <= 100_000, "header.machine", cores),
        (1 <= machine.memory_gib <= 1_000_000, "header.machine.memory_gib", f"{machine.memory_gib} GiB of memory"),
        (not torch or bool(re.match(r"\d+\.\d", torch)), "header.machine.torch", f"'{torch}' is no version of torch"),
        (1 <= header.processes <= 1000, "header.processes", f"{header.processes} processes for each case"),
    )
    for case, count in Counter(header.cases).items():
        absent = f"{case} is planned on a device that the machine does not have"
        try:
            is_there = not devices or parse_case(case).device in devices
            yield from _violations((is_there, "header.machine.devices", absent))
        except UsageError as error:
            yield from _violations((False, "header.cases", error.cause))
        yield from _violations((count == 1, "header.cases", f"{case} is listed {count} times"))


def check_result(result: Result, same_method: bool) -> Iterator[Remark]:
    """Compare a result with itself; `same_method`: this version of torchmark has computed it."""
    estimate, numeric, processes, failed = result.estimate, result.numeric, result.processes, result.status != "ok"
    if failed or estimate is None:
        has_reason = not failed or bool(result.reason)
        without = (has_reason, "result.reason", f"{result.status} without a reason")
        yield from _violations(without, (failed, "result.estimate", "ok without a figure"))
        return
    figures = {"estimate": estimate} | {f"processes[{index}]": process for index, process in enumerate(processes)}
    impossible = [wrong for place, figure in figures.items() for wrong in _impossible(figure, f"result.{place}")]
    yield from impossible
    if estimate.verdict != "as-published":
        missing = not processes and not impossible
        yield from _violations((not missing, "result.processes", "a figure without the processes that it comes from"))
        if processes and not impossible:
            found = combine(processes)
            if estimate.spread is not None and estimate.freedom:  # the spread of the whole run, shared by its cases
                found = with_interval(found, Spread(estimate.spread**2, estimate.freedom), len(processes))
            names = ["center_s", "first_step_s", "sample_count", "duration_s", "verdict"]
            names += ["low_s", "high_s", "effective_samples"] if same_method else []
            size = max(max(abs(each.center_s), each.call_cost_s) for each in processes)
            yield from _compare(estimate, found, names, "result.estimate", "processes", EXACT, size)
        steps_s, place = result.phases_s.get("steps", math.inf), "result.phases_s"
        fits = estimate.duration_s <= TIMED_TWICE * steps_s or result.case.device.partition(":")[0] == "fake"
        took = f"sampling took {estimate.duration_s:.3g} s within a phase of {steps_s:.3g} s"
        phases = ((s >= 0, f"{place}.{name}", f"it took {s:.3g} s") for name, s in result.phases_s.items())
        yield from _violations(*phases, (fits, f"{place}.steps", took))
    if numeric:
        off = f"ok although its numbers are wrong: off by {numeric.error:.2g} where {numeric.tolerance:.2g} is allowed"
        yield from _violations((0 <= numeric.error <= numeric.tolerance, "result.numeric", off))
    if job := result.job:
        inside = job.low_s <= job.seconds * (1 + EXACT) and job.seconds <= job.high_s * (1 + EXACT)
        replayed = result.case.protocol == "as-published"  # its parts were timed even if it was run whole
        total = project(job.stages, job) if job.stages and (replayed or not job.whole) else job
        main = next((stage.center_s for stage in job.stages if stage.name == STEP), 0.0)
        means = [each.mean_s for each in processes]
        together = [math.exp(sum(map(math.log, means)) / len(means))] if means and min(means) > 0 else [0.0]
        known = not main or not means or any(_close(main, each, EXACT) for each in together + means)
        yield from _violations((inside, "result.job.seconds", "it lies outside its own interval"))
        foreign = f"a step of {main:.6g} s, which is the mean of no process"
        yield from _violations((known, "result.job.stages", foreign))
        yield from _compare(job, total, ("seconds",), "result.job", "stages", EXACT)


def _impossible(figure: Estimate, place: str) -> list[Remark]:
    low_s, center_s, high_s, watts = figure.low_s, figure.center_s, figure.high_s, figure.metered.mean_w or 0.0
    spans = (figure.call_cost_s, figure.duration_s, figure.first_step_s, high_s - low_s)
    possible = figure.block_size >= 1 and low_s >= -LONGEST_S and all(0 <= span < LONGEST_S for span in spans)
    return _violations(
        (low_s <= center_s <= high_s, f"{place}.center_s", "it lies outside its own interval"),
        (center_s + figure.call_cost_s > 0, f"{place}.center_s", f"a step of {center_s:.3g} s takes no time"),
        (possible, place, "an impossible time or count"),
        (0 <= watts <= 1e6, f"{place}.metered.mean_w", f"{watts:.3g} W"),
    )


def check_samples(result: Result, samples: Mapping[int, Sequence[float]], same_method: bool) -> Iterator[Remark]:
    """Recompute the last processes of a result, or a replay, from raw samples."""
    values = [np.asarray(samples[process], dtype=np.float64) for process in sorted(samples)]
    first = len(result.processes) - len(values)
    if result.case.protocol == "as-published":
        if result.estimate and len(values) == 1:
            yield from _check_replay(result, result.estimate, values[0], same_method)
        return
    if first < 0:
        counts = f"{len(result.processes)} processes, but samples of {len(values)}"
        yield from _violations((result.status != "ok", "result.processes", counts))
        return
    for index, (stored, series) in enumerate(zip(result.processes[first:], values, strict=True), first):
        place = f"result.processes[{index}]"
        wrong = _check_process(stored, series, place, same_method)
        if not wrong and result.case.device.partition(":")[0] != "fake":  # samples take about the time that there was
            steps = 1 if stored.estimand == "median" else stored.block_size  # by events
            total_s, lasted = float((series + stored.call_cost_s).sum()) * steps, stored.duration_s
            first_s = float(series[0]) * stored.block_size  # it may have begun before the clock
            longest = IDLE_TIMES * total_s + IDLE_BLOCK_S * len(series) * steps / stored.block_size + IDLE_S
            took, where = f"took {total_s:.4g} s", f"{place}.duration_s"
            wrong = _violations(
                (total_s - first_s <= TIMED_TWICE * lasted, where, f"{lasted:.4g} s, but its samples {took}"),
                (lasted <= longest, where, f"{lasted:.4g} s for samples that {took}"),
            )
        yield from wrong
        if result.sustained and same_method and not wrong:
            ends, found = ("first_s", "last_s"), sustained_of(replace(stored, samples_s=tuple(series.tolist())))
            yield from _compare(result.sustained, found, ends, "result.sustained", "samples", CORRELATED)


def _check_process(stored: Estimate, samples: Series, place: str, same_method: bool) -> list[Remark]:
    """Recompute an estimate with its own cut, costs and settings; what meters saw is not in the samples."""
    if wrong := _impossible_samples(stored, samples, place):
        return wrong
    raw = np.maximum(samples + stored.call_cost_s, 1e-12)
    size = 1 if stored.estimand == "median" else stored.block_size  # a median is of single steps
    reading = read_series(raw, stored.target, stored.estimand, size, stored.warmup_cut)
    found = summarise(raw, reading, stored.verdict == "stable", replace(stored, contention=Contention()))
    longest_s = float(samples.max()) + stored.call_cost_s
    wrong = _compare(stored, found, _DESCRIBED, place, "samples", EXACT, longest_s)
    if same_method and not wrong:
        center = abs(found.center_s) + stored.call_cost_s
        wrong = _compare(stored, found, _BY_METHOD, place, "samples", CORRELATED, center)
        what = found.verdict if found.verdict != "stable" else "an interval wider than the target"
        steady = found.verdict == "stable" and found.precision <= stored.target * 1.001
        cause = f"stable, but its samples give {what}"
        wrong += _violations((stored.verdict != "stable" or steady, f"{place}.verdict", cause))
    return wrong


def _impossible_samples(stored: Estimate, samples: Series, place: str) -> list[Remark]:
    count, cut = len(samples), stored.warmup_cut
    if stored.sample_count != count:
        return _violations((False, f"{place}.sample_count", f"{stored.sample_count}, but there are {count} samples"))
    if not count or not 0 <= cut <= count // 2:
        return _violations((False, f"{place}.warmup_cut", f"{cut} of {count} samples"))
    least, most = float(samples.min()), float(samples.max())
    possible = least + stored.call_cost_s > 0 and most <= LONGEST_S
    return _violations((possible, f"{place}.samples_s", f"steps took {least:.3g} to {most:.3g} s"))


def _check_replay(result: Result, stored: Estimate, steps: Series, same_method: bool) -> Iterator[Remark]:
    """Recompute the figure from the laps of its loop; of other stages only the duration is kept."""
    place, job = "result.estimate", result.job
    if wrong := _impossible_samples(replace(stored, warmup_cut=0, call_cost_s=0.0), steps, place):
        yield from wrong
        return
    middle = float(np.sort(steps)[len(steps) // 2])
    found = replace(stored, first_step_s=float(steps[0]), median_s=middle, min_s=float(steps.min()))
    if same_method and job is None:  # a loop that was watched and stopped
        later = [later_step(Laps("", steps.tolist(), len(steps) + more)).center_s for more in (0, 1)]
        found = replace(found, center_s=min(later, key=lambda each: abs(each - stored.center_s)))
    yield from _compare(stored, found, ("first_step_s", "median_s", "min_s", "center_s"), place, "samples", EXACT)
    took = f"{stored.duration_s:.4g} s, but its samples took {steps.sum():.4g} s"
    yield from _violations((steps.sum() <= stored.duration_s * (1 + EXACT), f"{place}.duration_s", took))
    times = job.seconds / stored.center_s if job and stored.center_s > 0 else 1.0
    divides = math.isfinite(times) and _close(times, max(round(times), 1), EXACT)
    cause = f"{stored.center_s:.6g} does not divide {times * stored.center_s:.6g}"
    follows = not same_method or not job or _is_from_laps(job, steps)
    yield from _violations((follows, "result.job.stages", "none of them follows from its samples"))
    yield from _violations((divides, f"{place}.center_s", cause))


def _is_from_laps(job: JobEstimate, steps: Series) -> bool:
    """Whether a part of the job, with its first and later stages, follows from the samples."""
    known: dict[tuple[bool, bool], JobEstimate] = {}  # a stranger's file may have any number of parts
    for stored in grouped(job.stages, lambda stage: re.sub(r"^(first|interrupted|later) ", "", stage.name)).values():
        count = sum(stage.steps for stage in stored)
        kind = count == 1, count <= len(steps)
        known[kind] = known.get(kind) or extrapolate([Laps("", steps.tolist(), count)])
        found = known[kind].stages
        alike = [_close(a.center_s, b.center_s, EXACT) for a, b in zip(stored, found, strict=False)]
        if len(stored) == len(found) and all(alike) and (len(found) == 1 or stored[0].steps == found[0].steps):
            return True
    return False


def _compare(
    stored: object, found: object, names: Iterable[str], place: str, source: str, tolerance: float, size: float = 0.0
) -> list[Remark]:
    """`size`: of what the figures were computed from, as rounding is relative to it."""
    rules = []
    for name in names:
        pair = getattr(stored, name), getattr(found, name, None)
        ours, theirs = (f"{value:.6g}" if isinstance(value, int | float) else value or "none" for value in pair)
        both = not any(value is None or isinstance(value, str) for value in pair)
        agree = _close(*pair, tolerance, size) if both else pair[0] == pair[1]
        rules.append((agree, f"{place}.{name}", f"{ours}, but its {source} give {theirs}"))
    return _violations(*rules)


def _close(stored: Any, found: Any, tolerance: float, size: float = 0.0) -> bool:
    return abs(stored - found) <= tolerance * max(abs(stored), abs(found), size) or not math.isfinite(found)


# How far files may differ (other memory, temperature), plus a multiple of the margin, which has a limit.
APART, MARGINS, WIDEST_MARGIN = 0.10, 3.0, 0.2
ENOUGH_FILES = 3
DIGITS, DISTINCT = 6, 3  # of the digest: decimals of samples relative to their median, and least different values
WINDOW, LEAST_SAMPLES = 256, 10  # samples of a process that are compared one by one: most and least
NEAR, COPIED = 1e-5, 0.9  # relative difference of copied samples, and their share; honest repeats differ by far more
NOISE = 10 * NEAR  # deviation from the median below which independent samples may be that near


class SampleKey(Struct, frozen=True, eq=False):  # recognises copies of a process's samples
    digest: str
    logs: Series  # relative to their median, so that a factor does not matter; empty for too few or too equal ones


class Witness(Struct, frozen=True):  # one file's figure for one case
    file: str
    run: str
    line: int
    case: str
    place: tuple[str, ...]  # work, device and software, in which files that are compared agree
    center_s: float
    margin: float
    series: tuple[SampleKey, ...]  # one per process
    counts: bool = True  # False: it supports no other


class Corroboration(Struct, frozen=True):
    supported: frozenset[tuple[str, str]]  # file and case
    copies: tuple[tuple[Witness, Witness], ...]  # the second has nearly the samples of the first
    apart: tuple[tuple[Witness, float, int], ...]  # how many times slower than so many others


def witness(
    file: str, run: str, line: int, machine: Machine, result: Result, series: Sequence[SampleKey]
) -> Witness | None:
    """None for a failed or disturbed result."""
    found, case = result.estimate, result.case
    if result.status != "ok" or found is None or found.verdict not in ("stable", "noisy"):
        return None
    if found.center_s <= max(found.call_cost_s, 0.0):
        return None
    info = next(((each.model, each.driver, each.cores) for each in machine.devices if each.name == case.device), None)
    parts = (result.version, machine.cpu, machine.physical_cores, machine.torch, machine.torch_build, info)
    bare = SampleKey(_hash((found.center_s, found.low_s, found.high_s, found.sample_count)), np.empty(0))
    place = (case.text, *map(str, parts))
    return Witness(file, run, line, case.text, place, found.center_s, found.precision, tuple(series) or (bare,))


def corroborate(witnesses: Iterable[Witness]) -> Corroboration:
    """Compare each figure with the median of the others of the same work, device and software."""
    supported, copies = set[tuple[str, str]](), list[tuple[Witness, Witness]]()
    apart: list[tuple[Witness, float, int]] = []
    for group in grouped(witnesses, lambda each: each.place).values():
        pairs = list(zip(group, _originals(group), strict=True))
        copies += [(first, each) for each, first in pairs if first is not each]
        counting = [each for each, first in pairs if first is each and each.counts]
        for each, first in pairs:
            others = [other for other in counting if other is not first]
            if len(others) < ENOUGH_FILES - 1:
                continue
            ratio = each.center_s / statistics.median(other.center_s for other in others)
            margin = min(max(each.margin, statistics.median(other.margin for other in others)), WIDEST_MARGIN)
            if max(ratio, 1 / ratio) > 1 + APART + MARGINS * margin:
                apart.append((each, ratio, len(others)))
            else:
                supported.add((each.file, each.case))
    return Corroboration(frozenset(supported), tuple(copies), tuple(apart))


def _originals(group: Sequence[Witness]) -> list[Witness]:
    """For each witness the first one with the same samples, preferably one that counts."""
    found, by_digest = dict[int, Witness](), dict[str, Witness]()
    by_length: dict[int, list[tuple[Series, Witness]]] = defaultdict(list)  # compared in one operation

    def original(key: SampleKey) -> Witness | None:
        known = by_length[len(key.logs)] if len(key.logs) else []
        if key.digest in by_digest or not known:
            return by_digest.get(key.digest)
        distances = np.asarray([logs for logs, _ in known]) - key.logs
        distances -= np.median(distances, axis=1, keepdims=True)
        copied = np.mean(np.abs(distances) < NEAR, axis=1) >= COPIED
        return known[int(np.argmax(copied))][1] if copied.any() else None

    for index, each in sorted(enumerate(group), key=lambda numbered: not numbered[1].counts):
        found[index] = next(filter(None, map(original, each.series)), each)
        if found[index] is each:
            for key in each.series:
                by_digest.setdefault(key.digest, each)
                by_length[len(key.logs)].append((key.logs, each))
    return [found[index] for index in range(len(group))]


def keep(values: Sequence[float]) -> SampleKey:
    """The same for samples times a factor, unless they have hardly any spread: those would all be alike."""
    samples = np.asarray(values, dtype=np.float64)
    median, first, logs = float(np.median(samples)) if len(samples) else 0.0, samples[:WINDOW], np.empty(0)
    scaled = np.round(samples / median, DIGITS) if np.isfinite(median) and median > 0 else samples
    if len(first) >= LEAST_SAMPLES and np.isfinite(first).all() and (first > 0).all():
        relative = np.log(first / np.median(first))
        logs = relative if np.median(np.abs(relative)) >= NOISE else logs
    return SampleKey(_hash(scaled if len(np.unique(scaled)) >= DISTINCT else samples), logs)


def _hash(values: Sequence[float] | Series) -> str:
    return hashlib.sha256(np.asarray(values, dtype=np.float64).tobytes()).hexdigest()
