"""Quantities in base units as people read them: scaled, with three significant digits."""

import math
from functools import partial
from typing import TypeGuard

NOTHING = "-"

_DURATIONS = (  # length in seconds, name, and how many are written with the next one
    (1e-9, "ns", 999.5), (1e-6, "µs", 999.5), (1e-3, "ms", 999.5),
    (1.0, "s", 120.0), (60.0, "min", 120.0), (3600.0, "h", math.inf),
)  # fmt: skip
_ENERGIES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"))
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def duration(seconds: float | None) -> str:
    """2.53 ms"""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    scale, unit = duration_unit(seconds)
    return f"{digits(seconds / scale)} {unit}"


def duration_unit(seconds: float) -> tuple[float, str]:
    """The unit to read a time in, and its length in seconds."""
    return next(((scale, unit) for scale, unit, most in _DURATIONS if seconds / scale < most), _DURATIONS[-1][:2])


def rate(per_second: float | None, unit: str) -> str:
    """50.6k sample/s"""
    return _scaled(per_second, "", f"{unit}/s")


def memory_limit(count: float) -> str:
    """2 GiB if it is a whole number of MiB, as people write limits; else as `size`"""
    lengths = {2**40: "TiB", 2**30: "GiB", 2**20: "MiB"}
    length = next((each for each in lengths if count >= each and count % 2**20 == 0), None)
    return f"{count / length:g} {lengths[length]}" if length else size(count)


def power(watts: float | None) -> str:
    """48.2 W"""
    return f"{digits(watts)} W" if _is_positive(watts) else NOTHING


def energy(joules: float | None) -> str:
    """1.21 mJ"""
    if not _is_positive(joules):
        return NOTHING
    scale, unit = next((each for each in _ENERGIES if joules >= 0.9995 * each[0]), _ENERGIES[-1])
    return f"{digits(joules / scale)} {unit}"


def relative(share: float | None) -> str:
    """±0.4%"""
    return NOTHING if share is None or not math.isfinite(share) or share < 0 else f"±{percent(share)}"


def percent(share: float | None) -> str:
    """0.4%: two digits below ten, at most two decimals"""
    if share is None:
        return NOTHING
    value = abs(share) * 100
    if value == 0:
        return "0%"
    if not 0.01 <= value < 999.5:
        return "<0.01%" if value < 0.01 else ">999%"
    decimals = 2 if value < 0.095 else 1 if value < 9.95 else 0
    return f"{'-' if share < 0 else ''}{value:.{decimals}f}%"


def signed(share: float) -> str:
    """+2.1%"""
    return ("+" if share >= 0 else "") + percent(share)


def factor(ratio: float | None, rough: bool = False) -> str:
    """1.26×; `rough`: 1.3×, for what is known to a tenth at best"""
    if not _is_positive(ratio):
        return NOTHING
    return f"{ratio:.3f}×" if 0.9 <= ratio <= 1.1 and not rough else f"{digits(ratio, 2 if rough else 3)}×"


def between(low: float, high: float) -> str:
    """The interval of a factor: 1.26 to 1.43"""
    return f"{factor(low)} to {factor(high)}".replace("×", "")


def digits(value: float, significant: int = 3) -> str:
    """0.0123, 1.23, 12.3, 123, 12300"""
    if value == 0 or abs(value) >= 1e15:  # more digits than anyone reads
        return f"{value:.2e}" if value else "0"
    last = significant - 1
    rounded = round(value, last - math.floor(math.log10(abs(value))))
    return f"{rounded:.{min(max(0, last - math.floor(math.log10(abs(rounded or value)))), 12)}f}"


def _is_positive(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def _scaled(value: float | None, space: str, unit: str) -> str:
    """A unit has its prefix after a space (GB); a count carries it itself (50.6k)."""
    if not _is_positive(value):
        return NOTHING
    for prefix in _THOUSANDS:
        if value < 999.5 or prefix == _THOUSANDS[-1]:
            break
        value /= 1000
    whole = str(round(value)) if space and not prefix else digits(value)
    return f"{whole}{space}{prefix}{'' if space else ' '}{unit}"


size = partial(_scaled, space=" ", unit="B")  # 1.81 GB, in thousands as memory and bandwidth are sold
bandwidth = partial(_scaled, space=" ", unit="B/s")  # 12.4 GB/s
arithmetic = partial(_scaled, space=" ", unit="FLOP/s")  # 1.81 TFLOP/s
