"""What results cost at prices that the user names: for a million items, for an epoch, for a whole job."""

from __future__ import annotations

from msgspec import Struct

from torchmark.records import Result

MILLION = 1e6
HOUR_S = 3600.0
KILOWATT_HOUR_J = 3.6e6


class Prices(Struct, frozen=True):
    """Two numbers of the user's, in whatever currency: of an hour of this machine, and of a kilowatt-hour."""

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
