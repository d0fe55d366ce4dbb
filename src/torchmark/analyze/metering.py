"""What the readings of all meters come to: power, clock and heat, and whether the hardware held itself down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from torchmark.records import Conditions, Metered

CLOCK_DROP = 0.95
PAGING_RATE = 10.0  # major faults a second
SWAPPED_BYTES = 16 << 20
LEAST_POWER_S = 0.5  # counters of energy move about ten times a second
PEAK_S = 0.9
HEAT = "heat"


def metered_of(readings: Sequence[Conditions]) -> Metered:
    """All readings of a series in a few figures."""
    powers = list(_powers(readings))
    temperatures = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    faults = _growth([reading.major_fault_count for reading in readings])
    return Metered(
        mean_w=_mean_power(readings),
        peak_w=max(powers, default=None),
        clock_hz=_clocks(readings),
        temperature_c=(temperatures[0], max(temperatures)) if temperatures else None,
        throttle=tuple(dict.fromkeys(reason for reading in readings for reason in reading.throttle)),
        major_faults=None if faults is None else int(faults),
    )


def held_down(readings: Sequence[Conditions]) -> list[str]:
    """Evidence that the hardware slowed itself down, in words."""
    if len(readings) < 2:
        return []
    seen = []
    count = _growth([reading.thermal_count for reading in readings])
    if count:
        seen.append(f"the hardware throttled itself {count:.0f} times")
    reasons = _telling_reasons(readings)
    if reasons:
        seen.append(f"the device held its clock down: {', '.join(reasons)}")
    clocks = _clocks(readings)
    if clocks and clocks[1] < CLOCK_DROP * clocks[0]:
        seen.append(f"the clock fell from {clocks[0] / 1e9:.2f} to {clocks[1] / 1e9:.2f} GHz")
    return seen


def is_paging(readings: Sequence[Conditions]) -> bool:
    """Steps that keep waiting for the disk to bring memory back; a few faults are code that runs for the first time."""
    span_s = readings[-1].at_s - readings[0].at_s if readings else 0.0
    faults = _growth([reading.major_fault_count for reading in readings])
    swapped = _growth([reading.swap_bytes for reading in readings])
    waits = faults is not None and span_s > 0 and faults > PAGING_RATE * max(span_s, 1.0)
    return waits or (swapped is not None and swapped > SWAPPED_BYTES)


def _telling_reasons(readings: Sequence[Conditions]) -> list[str]:
    """Heat, whenever it was; else what came up meanwhile: a limit that always held makes nothing slower."""
    always = set(readings[0].throttle)
    told = dict.fromkeys(reason for reading in readings for reason in reading.throttle)
    return [reason for reason in told if HEAT in reason or reason not in always]


def _mean_power(readings: Sequence[Conditions]) -> float | None:
    known = [reading for reading in readings if reading.energy_j is not None]
    span_s = known[-1].at_s - known[0].at_s if known else 0.0
    energy_j = _growth([reading.energy_j for reading in known])
    return None if energy_j is None or span_s < LEAST_POWER_S else energy_j / span_s


def _powers(readings: Sequence[Conditions]) -> Iterator[float]:
    """The power between readings that are far enough apart."""
    known = [reading for reading in readings if reading.energy_j is not None]
    first = known[0] if known else None
    for reading in known[1:]:
        assert first is not None
        span_s = reading.at_s - first.at_s
        if span_s >= PEAK_S:
            yield ((reading.energy_j or 0.0) - (first.energy_j or 0.0)) / span_s
            first = reading


def _clocks(readings: Sequence[Conditions]) -> tuple[float, float] | None:
    """The highest, and that of the last third: one look may catch a core at rest, several together tell."""
    clocks = [reading.clock_hz for reading in readings if reading.clock_hz]
    last = max(1, len(clocks) // 3)
    return (max(clocks), float(np.median(clocks[-last:]))) if clocks else None


def _growth(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return known[-1] - known[0] if len(known) > 1 else None
