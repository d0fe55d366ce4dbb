"""Round numbers along a scale of factors: as many as can be read."""

from __future__ import annotations

import math

MOST = 6
_LEADS = ((1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


def factor_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic scale from low to high, the finest choice of round numbers that is not too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for leads in _LEADS:
        ticks = [float(f"{lead}e{power}") for power in powers for lead in leads]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= MOST:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST)]
