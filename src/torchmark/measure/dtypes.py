"""Finds out which number formats a device computes in, and which of them it is slow at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.measure.trial import Death, try_each
from torchmark.records import DTYPES

if TYPE_CHECKING:
    import torch

SLOW = 20.0  # times slower than float32: computed, but without hardware or code made for it
_SIZES = (128, 256, 512, 1024, 2048, 4096)
_ENOUGH_S = 1e-3  # a float32 product this long is beyond the cost of handing it over
_TOO_LONG_S = 0.1


class DtypeSupport(Struct, frozen=True):
    """How a device fares with one number format."""

    device: str
    dtype: str
    runs: bool
    slowdown: float | None = None  # time of a matrix product against float32's
    reason: str | None = None
    crashed: bool = False  # it killed the process that tried it

    @property
    def fast(self) -> bool:
        return self.runs and (self.slowdown is None or self.slowdown < SLOW)


def try_dtypes(device: str, dtypes: Sequence[str] = DTYPES) -> tuple[DtypeSupport, ...]:
    """Each number format on this device, within a few seconds, in a process that may crash."""
    tried = try_each("dtypes:time_dtypes", device, dtypes, DtypeSupport)
    return tuple(
        DtypeSupport(device, one.dtype, runs=False, reason=one.cause, crashed=True) if isinstance(one, Death) else one
        for one in tried
    )


def time_dtypes(name: str, dtypes: Sequence[str]) -> Iterator[DtypeSupport]:
    """Each of these number formats on this device, in this very process."""
    device = open_device(name)
    reference: dict[int, float] = {}
    for size in _SIZES:
        reference[size] = _time_product(device, "float32", size)
        if reference[size] >= _ENOUGH_S:
            break
    for dtype in dtypes:
        yield _try_dtype(device, dtype, reference)


def _try_dtype(device: Device, dtype: str, reference: dict[int, float]) -> DtypeSupport:
    if dtype == "float32":
        return DtypeSupport(device.name, dtype, runs=True, slowdown=1.0)
    slowdown = 1.0
    try:
        for size, expected_s in reference.items():
            taken_s = _time_product(device, dtype, size)
            slowdown = taken_s / max(expected_s, 1e-9)
            if taken_s > _TOO_LONG_S and slowdown > SLOW:
                break
    except (RuntimeError, TypeError) as error:
        return _refusal(device, dtype, error)
    return DtypeSupport(device.name, dtype, runs=True, slowdown=slowdown)


def _refusal(device: Device, dtype: str, error: Exception) -> DtypeSupport:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return DtypeSupport(device.name, dtype, runs=False, reason=reason[:120])


def _time_product(device: Device, dtype: str, size: int) -> float:
    """Seconds of a square matrix product: the best of three, unless one alone takes too long."""
    import torch

    number = getattr(torch, dtype)
    left, right = (_random(size, seed).to(number).to(device.place) for seed in (1, 2))
    time_block = device.timer(lambda: device.observe(left @ right))
    best_s = time_block(1).total_s
    for _ in range(3):
        if best_s > _TOO_LONG_S:
            break
        best_s = min(best_s, time_block(1).total_s)
    return best_s


def _random(size: int, seed: int) -> torch.Tensor:
    import torch

    return torch.rand(size, size, generator=torch.Generator().manual_seed(seed))
