"""The options that name prices, for every command that turns results into cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from torchmark.analyze.money import Prices

Function = TypeVar("Function", bound=Callable[..., Any])
_PRICE = click.FloatRange(min=0.0, max=1e9)


def price_options(function: Function) -> Function:
    """Handed over as `price_per_hour` and `watt_price`. Neither is ever kept with a run."""
    hour = click.option("--price-per-hour", type=_PRICE, metavar="PRICE", help="Your price of an hour: adds costs.")
    power = click.option("--watt-price", type=_PRICE, metavar="PRICE", help="Your price of a kilowatt-hour, likewise.")
    return hour(power(function))


def prices_of(price_per_hour: float | None, watt_price: float | None) -> Prices | None:
    """None where no price was named."""
    if price_per_hour is None and watt_price is None:
        return None
    from torchmark.analyze.money import Prices

    return Prices(price_per_hour, watt_price)
