"""How a workload scales: its rate with several counts of workers, and nodes, against as many single ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.records import Estimate, Result, Value

COMMUNICATION = "communication_share"  # the name of the metric


class ScalingRow(Struct, frozen=True):
    """One count of workers on so many nodes. An efficiency of 1: none of them loses anything to the others."""

    workers: int
    step_s: float
    rate: float  # items per second, of all workers together
    efficiency: float | None = None  # None: there is no figure for one worker
    margin: float | None = None  # half the 95% interval of the efficiency, as a share of it
    communication_share: float | None = None
    nodes: int = 1


class Scaling(Struct, frozen=True):
    """All counts of workers of one case, the fewest nodes and workers first."""

    case: str  # in its text form, without workers
    unit: str
    rows: tuple[ScalingRow, ...]
    threads: int | None  # of every rank; None where they differ or are not known


def find_scaling(results: Sequence[Result]) -> tuple[Scaling, ...]:
    """Every case that was measured with several counts of workers, or on several counts of nodes."""
    groups: dict[str, dict[tuple[int, int], Result]] = {}
    for result in results:
        if result.status == "ok" and result.estimate and result.work and result.estimate.center_s > 0:
            case = replace(result.case, workers=1)
            groups.setdefault(case.text, {})[_nodes(result), result.case.workers] = result
    return tuple(_scaling(text, found) for text, found in groups.items() if len(found) > 1)


def _scaling(text: str, found: dict[tuple[int, int], Result]) -> Scaling:
    results = [found[counts] for counts in sorted(found)]
    threads = {result.settings.get("threads") for result in results}
    work = results[0].work
    return Scaling(
        case=text,
        unit=work.unit if work else "",
        rows=tuple(_row(result, found.get((1, 1))) for result in results),
        threads=_only(threads),
    )


def _row(result: Result, single: Result | None) -> ScalingRow:
    estimate, workers = result.estimate, result.case.workers
    assert estimate is not None
    row = ScalingRow(
        workers=workers,
        step_s=estimate.center_s,
        rate=_rate(result),
        communication_share=result.metrics.get(COMMUNICATION),
        nodes=_nodes(result),
    )
    if single is None or single.estimate is None or not _rate(single):
        return row
    margin = 0.0 if result is single else math.hypot(_margin(estimate), _margin(single.estimate))
    return replace(row, efficiency=row.rate / workers / _rate(single), margin=margin)


def _nodes(result: Result) -> int:
    """A process that works alone says nothing of nodes."""
    nodes = result.settings.get("nodes")
    return nodes if isinstance(nodes, int) else 1


def _rate(result: Result) -> float:
    assert result.estimate is not None
    assert result.work is not None
    return result.work.items / result.estimate.center_s


def _margin(estimate: Estimate) -> float:
    return (estimate.high_s - estimate.low_s) / 2 / estimate.center_s


def _only(values: set[Value | None]) -> int | None:
    value = next(iter(values)) if len(values) == 1 else None
    return value if isinstance(value, int) else None
