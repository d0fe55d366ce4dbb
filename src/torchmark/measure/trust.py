"""Asks a device beside every case whether it waits for its work, and whether its answers follow from its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmark.devices.contract import Device
from torchmark.errors import WrongResultError
from torchmark.measure.audit import prove_outputs

_LEFT_OVER = 0.1  # of a block's work that may still seem to be under way after its synchronisation
_READS = 20  # a block is long enough to judge when it takes as long as this many reads of a value
_MOST_STEPS = 1024
_TRIES = 10  # something else may delay a read; a device that does not wait fails every time
_CURE = "Its times mean nothing before that is mended; `torchmark devices --audit` tries it by itself"


def check_device(device: Device, run: Callable[[], object], dtype: str | None) -> None:
    """Raise where this device cannot be believed about this step. Without a dtype only its times are asked about."""
    if not device.queues:
        return
    shares = [_share_left(device, run)]
    while shares[-1] > _LEFT_OVER and len(shares) < _TRIES:
        shares.append(_share_left(device, run))
    if shares[-1] > _LEFT_OVER:
        raise WrongResultError(
            f"{device.name} came back from its synchronisation with {min(shares):.0%} of the work still to do", _CURE
        )
    if dtype is not None:
        proof = prove_outputs(device, dtype)
        if proof.passed is False:
            raise WrongResultError(f"{device.name} computes wrong numbers: {proof.figure}", _CURE)


def _share_left(device: Device, run: Callable[[], object]) -> float:
    """How much of the work a block of steps left for the time after it: a value read then has to wait for that."""
    time_block, value, count = device.timer(run), _value(device), 1
    while True:
        block_s = time_block(count).total_s
        left_s, idle_s = _read_s(device, value), _read_s(device, value)
        if block_s + left_s >= _READS * idle_s or count >= _MOST_STEPS:
            return max(0.0, left_s - idle_s) / max(block_s + left_s, 1e-12)
        count *= 2


def _value(device: Device) -> Any:
    if not device.needs_torch:
        import numpy

        return numpy.zeros(1)
    import torch

    return torch.zeros(1, device=device.place)


def _read_s(device: Device, value: Any) -> float:
    started = device.clock()
    device.read(value)
    return device.clock() - started
