"""Cautions: what a person should know before believing a result, each with its cause and its cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from torchmark.analyze.summary import process_spread
from torchmark.analyze.wording import counted
from torchmark.records import Case, Caution, Estimate, Result

FEW_SAMPLES = 8
SPREAD = 0.05
MODES_APART = 0.04  # relative, between two groups of processes
COARSE = 0.05


def cautions_of(result: Result) -> tuple[Caution, ...]:
    """Everything that a result's own figures warn about."""
    estimate = result.estimate
    if estimate is None or estimate.verdict == "as-published":
        return ()  # one figure alone warns about nothing
    if estimate.center_s <= estimate.call_cost_s:  # there is nothing to be relative to
        return (_OF_RESULTS["implausible"](result, estimate),) if "implausible" in estimate.flags else ()
    found = [_verdict_caution(result, estimate), _failed(result)]
    found += [rule(estimate) for flag, rule in _FLAGS.items() if flag in estimate.flags]
    found += [rule(result, estimate) for flag, rule in _OF_RESULTS.items() if flag in estimate.flags]
    if estimate.sample_count < FEW_SAMPLES:
        found.append(_few_samples(result, estimate))
    spread = process_spread(result.processes)
    if spread is not None and spread > SPREAD:
        found.append(_spread(spread, result.processes))
    return tuple(caution for caution in found if caution)


def contended(seen: str) -> Caution:
    """Others took time from it."""
    return Caution("contended", seen, _QUIET)


def _verdict_caution(result: Result, estimate: Estimate) -> Caution | None:
    cure = _CURES.get(estimate.verdict)
    seen = "; ".join(estimate.evidence)
    return Caution(estimate.verdict, seen, cure.format(more=_more(result))) if cure else None


def _more(result: Result) -> str:
    """Where the number of steps was fixed, no budget changes it."""
    return "Use more --steps" if result.settings.get("steps") else "Give it more time with --budget"


_QUIET = "Stop other programs and measure again: the true speed is higher"
_CURES = {
    "contended": _QUIET,
    "throttled": "Let it cool, improve the cooling or power supply, and compare sustained figures only",
    "slowing": "Check heat, power and memory. {more} and watch",
    "drifting": "{more} until it settles",
    "warming": "{more}",
    "noisy": "{more}",
}


_FLAGS: dict[str, Callable[[Estimate], Caution]] = {
    "oversubscribed": lambda estimate: Caution(
        "oversubscribed",
        f"its own threads waited for a core {estimate.contention.wait_share or 0:.0%} of the time",
        "Use no more threads and workers than cores: --threads",
    ),
    "bimodal": lambda _: Caution(
        "bimodal",
        "step times come in two distinct levels",
        "The median describes the more frequent level only: see `torchmark show --samples`",
    ),
    "paging": lambda _: Caution(
        "paging",
        "the system moved memory to and from the disk meanwhile",
        "Free some memory, or use a smaller batch",
    ),
    "paused": lambda estimate: Caution(
        "paused",
        "the machine slept, its clock was set, or the process was stopped meanwhile"
        + _taken_again(estimate.void_count),
        "Keep it awake and measure again: the first step and whole jobs may have the pause in their times",
    ),
    "on-battery": lambda _: Caution("on-battery", "the machine ran on its battery", "Plug it in and measure again"),
}


def _taken_again(count: int) -> str:
    return f"; {counted(count, 'sample')} across it {'were' if count > 1 else 'was'} taken again" if count else ""


_OF_RESULTS: dict[str, Callable[[Result, Estimate], Caution]] = {
    "launch-bound": lambda result, estimate: Caution(
        "launch-bound", _launching(result, estimate), _fewer_launches(result.case)
    ),
    "implausible": lambda result, _: Caution(
        "implausible",
        _beyond(result),
        "Do not trust it: the work may have been skipped, folded into a constant or not waited for; "
        "`torchmark devices --audit` tests the device alone",
    ),
    "cpu-fallback": lambda result, _: Caution(
        "cpu-fallback",
        f"{result.settings.get('ran_on_cpu') or 'an operator'} is missing on the device and ran on the CPU",
        "This is not the speed of the device: use a torch that has the operator, or another device",
    ),
}


def _launching(result: Result, estimate: Estimate) -> str:
    if estimate.issue_share is not None:
        return f"launching took {estimate.issue_share:.0%} of a step, and the device waited for it"
    if estimate.device_step_s is not None:
        return f"the device worked only {_busy_share(estimate):.0%} of the time and waited for work to be launched"
    share = result.peak.shares.get("launch", 0.0) if result.peak else 0.0
    operators = counted(result.metrics.get("operators", 0.0), "operator")
    return f"calling its {operators} takes at least {share:.0%} of a step"


def _fewer_launches(case: Case) -> str:
    ways = ["a larger batch"] + ["--compile on"] * (case.compile == "off") + ["the CPU"] * (case.device != "cpu")
    return f"Try {' or '.join(filter(None, (', '.join(ways[:-1]), ways[-1])))}"


def _beyond(result: Result) -> str:
    peak = result.peak
    if peak is None:
        return "twice the work does not take about twice the time"
    closer = "compute" if peak.shares.get("compute", 0.0) >= peak.shares.get("bandwidth", 0.0) else "bandwidth"
    what = "arithmetic" if closer == "compute" else "bandwidth"
    return f"it would take {peak.share:.0%} of this machine's {what}, which was measured again right after it"


def _busy_share(estimate: Estimate) -> float:
    return min((estimate.device_step_s or 0.0) / estimate.wall_step_s, 1.0) if estimate.wall_step_s else 0.0


def _failed(result: Result) -> Caution | None:
    """A process that failed after others had succeeded."""
    if result.status != "ok" or not result.reason:
        return None
    return Caution("process-failed", result.reason, "The figure is that of the other processes; run the case again")


def _few_samples(result: Result, estimate: Estimate) -> Caution:
    count = counted(estimate.sample_count, "sample")
    asked = result.settings.get("steps")
    seen = f"{count}, as asked for with --steps" if asked else f"only {count} fitted into the budget"
    return Caution("few-samples", f"{seen}: too few for a reliable ±", _more(result))


def _spread(spread: float, processes: Sequence[Estimate]) -> Caution:
    seen = _modes(processes) or f"{len(processes)} fresh processes differ by {spread:.0%}"
    return Caution("process-spread", seen, "± includes that; more processes narrow it: measure longer with --budget")


def _modes(processes: Sequence[Estimate]) -> str | None:
    """Whether the processes fall into two groups that lie far apart, such as with and without huge pages."""
    logs = sorted(math.log(process.center_s) for process in processes if process.center_s > 0)
    gaps = [after - before for before, after in pairwise(logs)]
    if len(gaps) < 2:
        return None
    split = gaps.index(max(gaps)) + 1
    fast, slow = logs[:split], logs[split:]
    apart = fmean(slow) - fmean(fast)
    if apart < MODES_APART or max(fast[-1] - fast[0], slow[-1] - slow[0]) * 3 > apart:
        return None
    if len(fast) < len(slow):
        return f"{len(fast)} of {len(logs)} processes took {1 - math.exp(-apart):.0%} less time than the others"
    return f"{len(slow)} of {len(logs)} processes took {math.expm1(apart):.0%} more time than the others"
