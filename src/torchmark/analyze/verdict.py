"""The estimate of a step, from one process and from several; the verdict on what disturbed it; cautions."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np
from msgspec.structs import replace

from torchmark.analyze.grades import VERDICT_FIXES, worst
from torchmark.analyze.jobs import project
from torchmark.analyze.spread import CHANCE, MAD_TO_DEVIATION, critical, own_spread, relative_spread, with_interval
from torchmark.analyze.statistics import WINSOR_MADS, Reading, Series, deviation_of, mean_interval, median, tail_bound
from torchmark.analyze.wording import counted
from torchmark.records import STEP, Conditions, Contention, Estimate, Memory, Metered, Moment, Remark, Result, Verdict

TAKEN_SHARE = 0.02  # of the machine's capacity, or of the measuring time
LEAST_TAKEN_S = 0.04  # four ticks of the kernel's clock: less may be rounding
PROBE_SLOWER, IDLE_BELOW, CLOCK_DROP = 1.03, 0.9, 0.95
MODE_SHARE, MODE_DISTANCE = 0.1, 0.03
MODES_EXPLAIN = 0.85  # share of the variance; two halves of a normal distribution explain 0.64, of a uniform one 0.75
PAGING_RATE = 10.0  # major faults a second
LEAST_POWER_S, PEAK_S = 0.5, 0.9  # energy counters move about ten times a second
CLOCKS_AGREE_S, CLOCKS_AGREE_SHARE = 0.1, 0.001  # drift is less; a clock that is set, or a sleep, makes more


def summarise(
    samples: Series, reading: Reading, confirmed: bool, known: Estimate, readings: Sequence[Conditions] = ()
) -> Estimate:
    """`known` plus what follows from the samples and meters of one process, less the constant cost of a call."""
    cost, raw = known.call_cost_s, samples[reading.cut :]
    verdict, flags, evidence = judge(reading, confirmed, known.contention, readings, known.target)
    mean, ordered = mean_interval(raw, reading.time), np.sort(raw - cost)
    middle, mad = median(ordered), deviation_of(ordered)
    outlying = np.abs(ordered - middle) > WINSOR_MADS * MAD_TO_DEVIATION * mad
    # A device that is idle for long was waiting for work.
    launch_bound = known.device_step_s is not None and known.device_step_s < IDLE_BELOW * (known.wall_step_s or 0.0)
    bimodal = known.estimand == "median" and is_bimodal(raw)
    names = ("center_s", "low_s", "high_s", "mean_s", "mean_low_s", "mean_high_s")
    figures: dict[str, Any] = {n: value - cost for n, value in zip(names, (*reading.interval, *mean), strict=True)}
    for percent in (90, 99):
        figures[f"p{percent}_s"] = float(np.quantile(ordered, percent / 100))
        figures[f"p{percent}_high_s"] = tail_bound(ordered, percent / 100)
    return replace(
        known,
        verdict=verdict,
        effective_samples=reading.effective(len(samples)),
        warmup_cut=reading.cut,
        trend=reading.trend,
        samples_s=tuple((samples - cost).tolist()),
        flags=(*flags, *("launch-bound",) * launch_bound, *("bimodal",) * bimodal),
        evidence=evidence,
        sample_count=len(samples),
        autocorrelation_time=reading.time,
        median_s=middle,
        min_s=float(ordered[0]),
        mad_s=mad,
        outlier_share=float(np.mean(outlying)) if mad > 0 else 0.0,
        metered=metered_of(readings),
        **figures,
    )


def combine(processes: Sequence[Estimate]) -> Estimate:
    """One estimate over fresh processes: the geometric mean of their centres."""
    count, first = len(processes), processes[0]
    if count == 1:
        return replace(first, flags=_union([first.flags, ("single-process",)]))
    if len({estimate.estimand for estimate in processes}) > 1:  # near the shortest step that can be timed alone
        processes = [
            replace(each, estimand="mean", center_s=each.mean_s, low_s=each.mean_low_s, high_s=each.mean_high_s)
            for each in processes
        ]
    middle = sorted(processes, key=lambda estimate: estimate.center_s)[count // 2]
    verdict = worst([estimate.verdict for estimate in processes])
    alike = (each for each in processes if each.verdict == verdict)
    deciding = max(alike, key=lambda estimate: estimate.high_s - estimate.low_s)  # the least precise of the worst
    of = f"in the worst of {count} processes " if verdict == "noisy" else ""  # only that verdict is about one interval
    added, metered = ("effective_samples", "sample_count", "void_count", "duration_s"), [e.metered for e in processes]
    powers = _known(metered, "mean_w")
    return replace(
        _with_spread(middle, processes),
        verdict=verdict,
        first_step_s=first.first_step_s,
        samples_s=(),
        p90_s=max(estimate.p90_s for estimate in processes),
        p99_s=max(estimate.p99_s for estimate in processes),
        flags=_union([estimate.flags for estimate in processes]),
        evidence=tuple(of + text for text in deciding.evidence),
        contention=_mean_contention(processes),
        metered=Metered(
            mean_w=float(np.mean(powers)) if powers else None,
            peak_w=max(_known(metered, "peak_w"), default=None),
            clock_hz=min(_known(metered, "clock_hz"), key=lambda ends: ends[1] / max(ends[0], 1.0), default=None),
            temperature_c=max(_known(metered, "temperature_c"), key=itemgetter(1), default=None),
            throttle=_union([each.throttle for each in metered]),
            major_faults=max(_known(metered, "major_faults"), default=None),
        ),
        **{name: sum(getattr(estimate, name) for estimate in processes) for name in added},
    )


def _with_spread(estimate: Estimate, processes: Sequence[Estimate]) -> Estimate:
    centers, count = np.array([process.center_s for process in processes]), len(processes)
    if spread := own_spread(processes):
        return with_interval(replace(estimate, center_s=float(np.exp(np.log(centers).mean()))), spread, count)
    # Empty steps have no logarithm: Student's t of the mean, never below what each process claims.
    within = math.sqrt(float(np.mean([((e.high_s - e.low_s) / 2) ** 2 for e in processes])) / count)
    center = float(centers.mean())
    reach = max(critical(count - 1, CHANCE) * float(centers.std(ddof=1)) / math.sqrt(count), within)
    low_s = max(center - reach, min(center, 0.0))  # a time is not negative
    return replace(estimate, center_s=center, low_s=low_s, high_s=center + reach)


def _mean_contention(processes: Sequence[Estimate]) -> Contention:
    def mean(name: str) -> float | None:
        seen = [(getattr(each.contention, name), max(each.duration_s, 1e-9)) for each in processes]
        known = [each for each in seen if each[0] is not None]
        return sum(share * seconds for share, seconds in known) / sum(each for _, each in known) if known else None

    switches = _known([each.contention for each in processes], "switches")
    shares = {name: mean(name) for name in Contention.__struct_fields__ if name != "switches"}
    return Contention(**shares, switches=sum(switches) if switches else None)


def combine_results(results: Sequence[Result], strict: bool = False) -> Result:
    """One result from those of its processes; a failed one decides the status only if `strict`."""
    good = [result for result in results if result.status == "ok"]
    failed = next((result for result in results if result.status != "ok"), None)
    estimates = tuple(estimate for result in good or results for estimate in result.processes)
    first, latest = results[0], good[-1] if good else results[0]
    decided = failed or latest
    position = f"process {results.index(failed) + 1}: " if failed and len(results) > 1 else ""
    checks = [result.numeric for result in results if result.numeric]
    phases = sorted({name for result in results for name in result.phases_s})
    # The job that was run whole; else the first one with the mean step of all processes.
    jobs = [result.job for result in good if result.job]
    job = next((job for job in jobs if job.whole), jobs[0] if jobs else None)
    if job and not job.whole and len(estimates) > 1:
        means = [replace(process, center_s=process.mean_s) for process in estimates]
        mean = _with_spread(means[0], means)
        known = {"center_s": mean.center_s, "low_s": max(mean.low_s, 0.0), "high_s": mean.high_s}
        job = project([replace(stage, **known) if stage.name == STEP else stage for stage in job.stages], job)
    return replace(
        latest,
        status=failed.status if failed and strict else latest.status,
        reason=f"{position}{decided.reason}" if position else decided.reason,
        detail=decided.detail,
        estimate=combine(estimates) if estimates else None,
        processes=estimates,
        work=latest.work or first.work,
        settings=latest.settings or first.settings,
        memory=most_memory([result.memory for result in results if result.memory]),
        numeric=max(checks, key=lambda check: check.error / check.tolerance, default=None),
        job=job,
        metrics=good[0].metrics | latest.metrics if good else latest.metrics,
        budget_s=sum(result.budget_s or 0.0 for result in results) or None,
        phases_s={name: sum(result.phases_s.get(name, 0.0) for result in results) for name in phases},
    )


def most_memory(memories: Sequence[Memory]) -> Memory | None:
    return max(memories, key=lambda memory: memory.device_peak_bytes or memory.host_peak_bytes or 0, default=None)


def _union(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))


def contention_of(readings: Sequence[Conditions], wait_share: float | None, switches: int | None) -> Contention:
    if len(readings) < 2:
        return Contention(wait_share=wait_share, switches=switches)
    first, last = readings[0], readings[-1]

    def share(name: str, capacity: float = last.capacity) -> float | None:
        if (taken := _growth((first, last), name)) is None:
            return None
        return taken / (max(last.at_s - first.at_s, 1e-9) * capacity) if taken >= LEAST_TAKEN_S else 0.0

    probes = _known(readings, "probe_s")
    dilation = median(probes[1:]) / min(probes) if len(probes) > 1 else None
    shares = share("other_cpu_s"), share("steal_s"), share("throttled_s", 1.0)
    return Contention(wait_share, *shares, dilation, switches)


def judge(
    reading: Reading, confirmed: bool, contention: Contention, readings: Sequence[Conditions], target: float
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """The first verdict that the evidence supports; flags, and the evidence."""
    taken, held, change = taken_by_others(contention), held_down(readings), reading.trend.change
    slower, reached = reading.slowing or (reading.trending and change > 0), reading.interval.precision
    # Threads that wait for a core that no other program uses wait for each other.
    waited = (contention.wait_share or 0.0) > TAKEN_SHARE and contention.other_cpu_share is not None
    flags = ["oversubscribed"] * (waited and not taken) + ["paging"] * is_paging(readings)
    noisy = f"the interval reached ±{reached:.1%} where ±{100 * target:g}% was asked for"
    if reached <= target:
        noisy = f"±{reached:.2%} was reached, but too late or with too few independent samples to be confirmed"
    verdicts: tuple[tuple[bool, Verdict, list[str]], ...] = (
        (bool(taken), "contended", taken),
        (slower and bool(held), "throttled", held),
        (slower, "slowing", ["the first steps were faster than the later ones"]),
        (reading.trending, "drifting", [f"step times moved by {change:+.1%} while measuring"]),
        (reading.warming, "warming", ["step times had not settled by half of the samples"]),
        (not confirmed, "noisy", [noisy]),
        (True, "stable", []),
    )
    verdict, evidence = next((verdict, evidence) for holds, verdict, evidence in verdicts if holds)
    return verdict, tuple(flags), tuple(evidence)


def taken_by_others(contention: Contention) -> list[str]:
    others = [
        (contention.other_cpu_share, "other processes used {:.0%} of the processor"),
        (contention.steal_share, "the hypervisor took {:.0%} of the processor away"),
        (contention.throttled_share, "a quota stopped the process for {:.0%} of the time"),
    ]
    seen = [words.format(share) for share, words in others if share is not None and share > TAKEN_SHARE]
    # Where others can be seen and are not, a slow probe is a lower clock or chance.
    if seen or contention.other_cpu_share is None:
        waited, dilation = contention.wait_share or 0.0, contention.probe_dilation or 1.0
        seen += [f"steps waited for a free core {waited:.0%} of the time"] * (waited > TAKEN_SHARE)
        seen += [f"a reference calculation became {dilation - 1:.0%} slower"] * (dilation > PROBE_SLOWER)
    return seen


def is_bimodal(times: Series) -> bool:
    """Whether two well-separated levels explain nearly all of the variance (Otsu's split)."""
    if len(times) < 30:
        return False
    logs = np.sort(np.log(times))
    logs = logs[int(0.01 * len(logs)) : len(logs) - int(0.01 * len(logs))]
    count, variance = len(logs), float(logs.var())
    below, sums = np.arange(1, count), np.cumsum(logs)[:-1]
    distance = (logs.sum() - sums) / (count - below) - sums / below
    explained = below * (count - below) / count**2 * distance**2
    split = int(np.argmax(explained))
    share = (split + 1) / count
    apart = min(share, 1 - share) >= MODE_SHARE and float(distance[split]) > MODE_DISTANCE
    return variance > 0 and apart and float(explained[split]) / variance > MODES_EXPLAIN


def metered_of(readings: Sequence[Conditions]) -> Metered:
    temperatures, faults = _known(readings, "temperature_c"), _growth(readings, "major_fault_count")
    known = [reading for reading in readings if reading.energy_j is not None]
    span_s, energy_j = known[-1].at_s - known[0].at_s if known else 0.0, _growth(known, "energy_j")
    powers, first = list[float](), known[0] if known else None  # between readings that are far enough apart
    for reading in known:
        if first and reading.at_s - first.at_s >= PEAK_S:
            powers.append((_growth((first, reading), "energy_j") or 0.0) / (reading.at_s - first.at_s))
            first = reading
    return Metered(
        mean_w=None if energy_j is None or span_s < LEAST_POWER_S else energy_j / span_s,
        peak_w=max(powers, default=None),
        clock_hz=_clocks(readings),
        temperature_c=(temperatures[0], max(temperatures)) if temperatures else None,
        throttle=_union([reading.throttle for reading in readings]),
        major_faults=None if faults is None else int(faults),
    )


def held_down(readings: Sequence[Conditions]) -> list[str]:
    """Evidence that the hardware slowed itself down: heat, or a new limit."""
    if len(readings) < 2:
        return []
    count, clocks = _growth(readings, "thermal_count"), _clocks(readings)
    seen = [f"the hardware throttled itself {count:.0f} times"] if count else []
    reasons = _union([reading.throttle for reading in readings])
    new = [reason for reason in reasons if "heat" in reason or reason not in readings[0].throttle]
    seen += [f"the device held its clock down: {', '.join(new)}"] if new else []
    if clocks and clocks[1] < CLOCK_DROP * clocks[0]:
        seen.append(f"the clock fell from {clocks[0] / 1e9:.2f} to {clocks[1] / 1e9:.2f} GHz")
    return seen


def is_paging(readings: Sequence[Conditions]) -> bool:
    """Whether steps keep waiting for memory from the disk; a few faults are code that runs for the first time."""
    span_s = readings[-1].at_s - readings[0].at_s if readings else 0.0
    faults, swapped = _growth(readings, "major_fault_count") or 0.0, _growth(readings, "swap_bytes") or 0.0
    return (span_s > 0 and faults > PAGING_RATE * max(span_s, 1.0)) or swapped > 16 << 20


def _clocks(readings: Sequence[Conditions]) -> tuple[float, float] | None:
    """The highest, and the median of the last third: a single reading may catch a core at rest."""
    clocks = [reading.clock_hz for reading in readings if reading.clock_hz]
    return (max(clocks), median(clocks[-max(1, len(clocks) // 3) :])) if clocks else None


def _growth(readings: Sequence[Conditions], name: str) -> float | None:
    known: list[float] = _known(readings, name)
    return known[-1] - known[0] if len(known) > 1 else None


def _known(items: Iterable[object], name: str) -> list[Any]:
    return [value for item in items if (value := getattr(item, name)) is not None]


def was_paused(before: Moment, after: Moment) -> bool:
    steady_s = after.steady_s - before.steady_s
    allowed_s = max(CLOCKS_AGREE_S, CLOCKS_AGREE_SHARE * steady_s)
    clocks = ((before.wall_s, after.wall_s), (before.boot_s, after.boot_s))
    others_s = [end - start for start, end in clocks if start is not None and end is not None]
    return after.stops != before.stops or any(abs(other_s - steady_s) > allowed_s for other_s in others_s)


def cautions_of(result: Result) -> tuple[Remark, ...]:
    """What a reader should know before believing a result."""
    estimate = result.estimate
    if estimate is None or estimate.verdict == "as-published":
        return ()
    raised = {flag: texts for flag, texts in _FLAGS.items() if flag in estimate.flags}
    facts = _facts(result, estimate) if raised else {}
    flags = [Remark(flag, cause.format(**facts), fix.format(**facts)) for flag, (cause, fix) in raised.items()]
    if estimate.center_s <= estimate.call_cost_s:  # there is nothing to be relative to
        return tuple(each for each in flags if each.kind == "implausible")
    asked, verdict, found = result.settings.get("steps"), estimate.verdict, []
    more = "Use more --steps" if asked else "Give it more time with --budget"
    if fix := VERDICT_FIXES.get(verdict):
        found.append(Remark(verdict, "; ".join(estimate.evidence), fix.format(more=more)))
    if result.status == "ok" and result.reason:  # a process failed after others had succeeded
        fix = "The figure is that of the other processes; run the case again"
        found.append(Remark("process-failed", result.reason, fix))
    found += flags
    if estimate.sample_count < 8:
        count = counted(estimate.sample_count, "sample")
        seen = f"{count}, as asked for with --steps" if asked else f"only {count} fitted into the budget"
        found.append(Remark("few-samples", f"{seen}: too few for a reliable ±", more))
    spread = relative_spread([process.center_s for process in result.processes])
    if spread is not None and spread > 0.05:
        seen = _modes(result.processes) or f"{len(result.processes)} fresh processes differ by {spread:.0%}"
        fix = "± includes that; more processes narrow it: measure longer with --budget"
        found.append(Remark("process-spread", seen, fix))
    return tuple(found)


def _facts(result: Result, estimate: Estimate) -> dict[str, str]:
    count, case, shares = estimate.void_count, result.case, result.peak.shares if result.peak else {}
    again = f"; {counted(count, 'sample')} across it {'were' if count > 1 else 'was'} taken again" if count else ""
    if estimate.issue_share is not None:
        launch = f"launching took {estimate.issue_share:.0%} of a step, and the device waited for it"
    elif estimate.device_step_s is not None:
        busy = min(estimate.device_step_s / estimate.wall_step_s, 1.0) if estimate.wall_step_s else 0.0
        launch = f"the device worked only {busy:.0%} of the time and waited for work to be launched"
    else:
        operators = counted(result.metrics.get("operators", 0.0), "operator")
        launch = f"calling its {operators} takes at least {shares.get('launch', 0.0):.0%} of a step"
    beyond = "twice the work does not take about twice the time"
    if result.peak:
        what = "arithmetic" if shares.get("compute", 0.0) >= shares.get("bandwidth", 0.0) else "bandwidth"
        beyond = f"it would take {result.peak.share:.0%} of this machine's {what}, measured again right after it"
    ways = ["a larger batch"] + ["--compile on"] * (case.compile == "off") + ["the CPU"] * (case.device != "cpu")
    lighter = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    operator = str(result.settings.get("ran_on_cpu") or "an operator")
    facts = {"again": again, "launch": launch, "beyond": beyond, "lighter": lighter, "operator": operator}
    return facts | {"waited": f"{estimate.contention.wait_share or 0:.0%}"}


_FLAGS = {  # the cause and the fix
    "oversubscribed": (
        "its own threads waited for a core {waited} of the time",
        "Use no more threads and workers than cores: --threads",
    ),
    "bimodal": (
        "step times come in two distinct levels",
        "The median describes the more frequent level only: see `torchmark show --samples`",
    ),
    "paging": ("the system moved memory to and from the disk meanwhile", "Free some memory, or use a smaller batch"),
    "paused": (
        "the machine slept, its clock was set, or the process was stopped meanwhile{again}",
        "Keep it awake and measure again: the first step and whole jobs may have the pause in their times",
    ),
    "on-battery": ("the machine ran on its battery", "Plug it in and measure again"),
    "launch-bound": ("{launch}", "Try {lighter}"),
    "implausible": (
        "{beyond}",
        "Do not trust it: the work may have been skipped, folded into a constant or not waited for; "
        "`torchmark devices --audit` tests the device alone",
    ),
    "cpu-fallback": (
        "{operator} is missing on the device and ran on the CPU",
        "This is not the speed of the device: use a torch that has the operator, or another device",
    ),
}


def _modes(processes: Sequence[Estimate]) -> str | None:
    # Two groups of processes that lie far apart, such as with and without huge pages.
    logs = sorted(math.log(process.center_s) for process in processes if process.center_s > 0)
    gaps = [after - before for before, after in pairwise(logs)]
    if len(gaps) < 2:
        return None
    split = gaps.index(max(gaps)) + 1
    fast, slow = logs[:split], logs[split:]
    apart = fmean(slow) - fmean(fast)
    if apart < 0.04 or max(fast[-1] - fast[0], slow[-1] - slow[0]) * 3 > apart:
        return None
    how = f"{1 - math.exp(-apart):.0%} less" if len(fast) < len(slow) else f"{math.expm1(apart):.0%} more"
    return f"{min(len(fast), len(slow))} of {len(logs)} processes took {how} time than the others"
