"""About how long a case would take that was not measured, judged by those that were."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from torchmark.measure.cases import full_params
from torchmark.measure.messages import START
from torchmark.measure.sampling import FEWEST_SAMPLES
from torchmark.records import Case, Result, Work
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

FLOPS_PER_S, BYTES_PER_S = 50e9, 10e9  # of some machine: only how two kinds of work compare by it means anything
STARTING_S = 0.2  # a worker that is forked, and put away again
_APART = (START, "steps", "preheat", "job")  # the first start also waits for what all later ones share
RANKS = "ranks"
USUAL_RANKS_S = 5.0  # every rank imports torch for itself


def preparing_s(result: Result) -> float:
    """What was spent before the first step that counts."""
    return sum(seconds for name, seconds in result.phases_s.items() if name not in _APART)


def process_s(result: Result) -> float:
    """What another process takes: numbers are checked and stages of a job timed in the first one only."""
    once = (START, "preheat", "check", "job")
    return sum(seconds for name, seconds in result.phases_s.items() if name not in once) + STARTING_S


def cost_s(work: Work | None) -> float:
    """How long a step takes on no machine in particular; 0 where its work is not known."""
    return max((work.flops or 0.0) / FLOPS_PER_S, (work.bytes or 0.0) / BYTES_PER_S) if work else 0.0


def least_s(case: Case, known: Iterable[Result]) -> float | None:
    """Whole seconds to prepare a case and run the fewest steps that give a figure, at least one.

    Judged by what its device did with the same workload, or else with others; None where it did nothing yet.
    """
    results = list(known)
    there = [(each, each.estimate) for each in results if each.estimate and each.case.device == case.device]
    seen = [pair for pair in there if pair[0].case.workload == case.workload] or there
    if not seen:
        return None
    setting = Setting(case.mode, case.device, case.dtype, world_size=case.workers)
    cost = cost_s(find_workload(case.workload).work(full_params(case), setting))
    paces = [estimate.center_s / cost_s(each.work) for each, estimate in seen if cost_s(each.work)]
    step_s = cost * median(paces) if cost and paces else median(estimate.center_s for _, estimate in seen)
    preparing = median((preparing_s(each) - _ranks_s(each)) / _processes(each) for each, _ in seen)
    return max(1.0, float(math.ceil(preparing + _starting_ranks_s(case, results) + (FEWEST_SAMPLES + 1) * step_s)))


def _starting_ranks_s(case: Case, known: Iterable[Result]) -> float:
    if case.workers == 1:
        return 0.0
    return median([_ranks_s(each) / _processes(each) for each in known if _ranks_s(each)] or [USUAL_RANKS_S])


def _ranks_s(result: Result) -> float:
    return result.phases_s.get(RANKS, 0.0)


def _processes(result: Result) -> int:
    """Phases are summed over the processes of a result."""
    return max(1, len(result.processes))
