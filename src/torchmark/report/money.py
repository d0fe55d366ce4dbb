"""What results cost at the user's own prices, as text and as rows."""

from __future__ import annotations

from torchmark.analyze.money import Cost, Prices, cost_of
from torchmark.analyze.wording import plural
from torchmark.records import Result, Run
from torchmark.report import units

COLUMNS = ("cost_per_million_items", "cost_per_epoch", "cost_per_job")


def heading(prices: Prices) -> str:
    """Cost at your prices: 2.50 an hour of this machine, 0.300 a kilowatt-hour"""
    named = [
        f"{units.digits(prices.hour)} an hour of this machine" if prices.hour is not None else "",
        f"{units.digits(prices.kilowatt_hour)} a kilowatt-hour" if prices.kilowatt_hour is not None else "",
    ]
    return f"Cost at your prices: {', '.join(filter(None, named))}"


def costs(run: Run, prices: Prices) -> list[tuple[Result, Cost]]:
    """Of every result that has one."""
    found = [(result, cost_of(result, prices)) for result in run.results]
    return [(result, cost) for result, cost in found if cost is not None]


def text(result: Result, cost: Cost) -> str:
    """0.0123 for a million samples, 0.45 an epoch, 4.5 the whole job"""
    unit = result.work.unit if result.work else "item"
    parts = [
        f"{units.digits(cost.million_items)} for a million {plural(unit)}" if cost.million_items is not None else "",
        f"{units.digits(cost.epoch)} an epoch" if cost.epoch is not None else "",
        f"{units.digits(cost.job)} the whole job" if cost.job is not None else "",
    ]
    return ", ".join(filter(None, parts))


def note(run: Run, prices: Prices) -> str:
    """What the costs leave out: power that no meter saw, and work of which nothing can be counted."""
    measured = [result for result in run.results if result.status == "ok" and result.estimate]
    silent = [result for result in measured if result.estimate and result.estimate.metered.mean_w is None]
    if prices.kilowatt_hour is None or not silent:
        return "" if costs(run, prices) else "No result is worth items that could be counted."
    why = silent[0].provenance.get("energy", "unavailable because nobody looked")
    which = "Power is" if len(silent) == len(measured) else f"The power of {len(silent)} cases is"
    return f"{which} {why}, so that its price is not in the cost."


def cells(result: Result, prices: Prices) -> tuple[float | None, ...]:
    """In the order of COLUMNS."""
    cost = cost_of(result, prices) or Cost()
    return cost.million_items, cost.epoch, cost.job
