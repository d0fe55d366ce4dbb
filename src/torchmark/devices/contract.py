"""The contract of a device: describe itself, time steps correctly, and report its memory.

Each device synchronises in exactly one place, `synchronize`; nothing else in torchmark may.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import repeat
from statistics import median
from typing import Any, ClassVar, NamedTuple

from torchmark.records import Block, Conditions, DeviceInfo, Memory, Remark

Clock = Callable[[], float]
BlockTimer = Callable[[int], Block]


EMPTY_STEPS = 1000


class Costs(NamedTuple):
    """What measuring itself costs: once for each block, and once for each step in it."""

    sync_s: float
    call_s: float


def do_nothing() -> None:
    """The empty step that calibration times."""


class Device(ABC):
    """One place where work runs, named as torch names it: cpu, cuda:0, mps, xpu:1."""

    kind: ClassVar[str]
    needs_torch: ClassVar[bool] = True
    listed: ClassVar[bool] = True  # False: used only where it is named, never found
    queues: ClassVar[bool] = True  # takes work and returns before it is done, so that its word must be checked

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = name  # where torch puts this device's tensors
        self.clock: Clock = time.perf_counter
        self.family: int | None = None  # the process whose whole tree does the work, where this one does only a part
        self.conditions: Callable[[], Conditions] | None = None  # read in place of the machine's, on a made-up clock

    @classmethod
    @abstractmethod
    def present(cls) -> tuple[str, ...]:
        """The names of the devices of this kind that can be used here, best first."""

    @classmethod
    def diagnose(cls) -> tuple[Remark, ...]:
        """What stands between this machine and its devices of this kind; empty where all is well or nothing is here."""
        return ()

    @abstractmethod
    def info(self) -> DeviceInfo:
        """Who this device is."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return only when everything handed to the device is done."""

    def open(self) -> None:  # noqa: B027 -- most devices need nothing
        """Get ready for work: create the context, switch silent fallbacks to other devices off."""

    def reset_peak_memory(self) -> None:  # noqa: B027 -- not every device counts
        """Forget the peak so far."""

    def memory(self) -> Memory:
        """The device's own peak since the reset; the host's is read elsewhere."""
        return Memory(provenance="unavailable because this device has no memory counter of its own")

    def observe(self, result: Any) -> Any:
        """What the device says that it computed. A real device says what torch says; only the fake one can lie."""
        return result

    def read(self, result: Any) -> float:
        """One value of the result on the host: it cannot be there before the work is done."""
        return float(result.reshape(-1)[-1].item())

    def timer(self, run: Callable[[], object]) -> BlockTimer:
        """A function that runs k steps and says how long they took, one synchronisation included."""
        clock, synchronize = self.clock, self.synchronize

        def time_block(count: int) -> Block:
            steps = repeat(None, count)
            started = clock()
            for _ in steps:
                run()
            issued = clock()
            synchronize()
            return Block(clock() - started, issue_s=issued - started)

        return time_block

    def calibrate(self) -> Costs:
        """The cost of a synchronisation with the clock around it, and of calling a step that does nothing."""
        time_block = self.timer(do_nothing)
        sync_s = median(time_block(0).total_s for _ in range(50))
        empty_s = median(time_block(EMPTY_STEPS).total_s for _ in range(21))
        return Costs(sync_s, max(empty_s - sync_s, 0.0) / EMPTY_STEPS)
