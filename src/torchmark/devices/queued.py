"""Devices that take work into a queue and stamp it with events: one synchronisation serves a whole block of steps."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torchmark.devices.contract import BlockTimer, Device
from torchmark.errors import DeviceError
from torchmark.records import Block


class QueuedDevice(Device):
    """What CUDA and XPU have in common."""

    @property
    def index(self) -> int:
        return int(self.name.partition(":")[2] or 0)

    @abstractmethod
    def event(self) -> Any:
        """A new event that keeps the time at which the device reaches it."""

    @abstractmethod
    def select(self) -> None:
        """Make this the device whose queue takes the work and the events."""

    def open(self) -> None:
        self.select()
        run_kernel(self)

    def timer(self, run: Callable[[], object]) -> BlockTimer:
        clock, synchronize, event = self.clock, self.synchronize, self.event
        events: list[Any] = []

        def time_block(count: int) -> Block:
            # One event between two steps ends the first and begins the second: half as many as pairs would need.
            events.extend(event() for _ in range(count + 1 - len(events)))
            stamps = iter(events)
            started = clock()
            next(stamps).record()
            for _, stamp in zip(range(count), stamps, strict=False):
                run()
                stamp.record()
            issue_s = clock() - started
            synchronize()
            total_s = clock() - started
            used = events[: count + 1]
            steps = tuple(first.elapsed_time(last) / 1000 for first, last in pairwise(used))
            return Block(total_s, steps, issue_s=issue_s)

        return time_block


def run_kernel(device: Device) -> None:
    """Prove that the device runs a kernel at all before anything is built on it."""
    import torch

    started = time.monotonic()
    try:
        torch.ones(2, device=device.place).add_(1)
        device.synchronize()
    except (RuntimeError, AssertionError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        fix = "Install a torch build for this device and its driver"
        if "out of memory" in first_line:
            fix = "Other programs fill this device's memory: close them"
        waited = time.monotonic() - started
        cause = f"device '{device.name}' does not run a kernel (after {waited:.1f} s)"
        raise DeviceError(cause, fix, first_line) from error


def refuse_fallback(variable: str, name: str) -> None:
    """Refuse a torch that was imported with the setting to run missing operators on the CPU silently."""
    if os.environ.get(variable, "0") not in ("", "0"):
        raise DeviceError(
            f"{variable} was set when torch was imported: operators that {name} lacks would run on the CPU unseen",
            f"Unset {variable}",
        )
