"""What a result costs in energy and money, and how a workload scales with workers and nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.records import Estimate, Result


def step_energy(estimate: Estimate) -> float | None:
    """Joules of one step: the power while they ran, over the time of one by the host's clock."""
    power, wall_s = estimate.metered.mean_w, estimate.wall_step_s or estimate.center_s
    return None if power is None or wall_s <= 0 else power * wall_s


def item_energy(result: Result) -> float | None:
    """Joules of one item."""
    joules = step_energy(result.estimate) if result.estimate else None
    items = result.work.items if result.work else 0.0
    return joules / items if joules is not None and items > 0 else None


MILLION = 1e6
HOUR_S = 3600.0
KILOWATT_HOUR_J = 3.6e6


class Prices(Struct, frozen=True):
    """Prices in any currency: of an hour of this machine, and of a kilowatt-hour."""

    hour: float | None = None
    kilowatt_hour: float | None = None


class Cost(Struct, frozen=True):
    """In the currency of the prices; None where the result does not say enough."""

    million_items: float | None = None
    epoch: float | None = None
    job: float | None = None
    without_power: bool = False  # a price of power was named, but the power is unknown


def cost_of(result: Result, prices: Prices) -> Cost | None:
    """The cost of one result; None where it has no figure, is worth nothing, or nothing that has a price is known."""
    second = price_of_second(result, prices)
    estimate = result.estimate
    if second is None or estimate is None or estimate.center_s <= 0:
        return None
    items, job = result.work.items if result.work else 0.0, result.job
    whole = job.seconds * second if job and any(stage.steps for stage in job.stages) else None
    if items <= 0 and whole is None:
        return None
    return Cost(
        million_items=estimate.center_s / items * MILLION * second if items > 0 else None,
        epoch=whole / job.epochs if job and job.epochs and whole is not None else None,
        job=whole,
        without_power=prices.kilowatt_hour is not None and estimate.metered.mean_w is None,
    )


def price_of_second(result: Result, prices: Prices) -> float | None:
    """What a second of this work costs: the machine, and the power that the meters saw."""
    estimate = result.estimate
    if result.status != "ok" or estimate is None:
        return None
    machine = None if prices.hour is None else prices.hour / HOUR_S
    watts = estimate.metered.mean_w
    power = None if prices.kilowatt_hour is None or watts is None else watts * prices.kilowatt_hour / KILOWATT_HOUR_J
    known = [part for part in (machine, power) if part is not None]
    return sum(known) if known else None


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
    threads = [result.settings.get("threads") for result in results]
    work = results[0].work
    return Scaling(
        case=text,
        unit=work.unit if work else "",
        rows=tuple(_row(result, found.get((1, 1))) for result in results),
        threads=threads[0] if isinstance(threads[0], int) and len({*threads}) == 1 else None,
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
    """A single process does not record nodes."""
    nodes = result.settings.get("nodes")
    return nodes if isinstance(nodes, int) else 1


def _rate(result: Result) -> float:
    assert result.estimate is not None
    assert result.work is not None
    return result.work.items / result.estimate.center_s


def _margin(estimate: Estimate) -> float:
    return (estimate.high_s - estimate.low_s) / 2 / estimate.center_s
