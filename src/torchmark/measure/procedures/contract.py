"""What a procedure is: how a publication timed its work, replayed step by step, and what would have been right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.devices.contract import Device
from torchmark.measure.cases import full_params, memory_needed
from torchmark.measure.foresight import cost_s
from torchmark.measure.pair import measure_pair
from torchmark.measure.sampling import DEFAULTS
from torchmark.measure.stopwatch import Stopwatch, due
from torchmark.records import Case, Result, Value
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

FAULT_SHARE = 0.25  # of the time that is left, for each fault at most
PAIR_S = 2.0
SLOW_STEP_S = 0.2  # from here on two of each must do

Run = Callable[[], object]


class Task(Struct, frozen=True):
    """One case of a published table, to be timed as it was there."""

    case: Case
    steps: int  # in the published loop
    scale: float = 1.0  # the share of them to take now
    seed: int = 0
    data: str | None = None

    @property
    def params(self) -> Any:
        return full_params(self.case)

    @property
    def version(self) -> int:
        return find_workload(self.case.workload).version

    @property
    def memory_bytes(self) -> float | None:
        """About how much memory it needs at its peak; None where that is too little to matter."""
        return memory_needed(self.case)

    def due(self, published: int) -> int:
        """How many of so many repetitions to do now."""
        return due(published, self.scale)

    def setting(self, place: str) -> Setting:
        """What the workload's own builders must follow."""
        case = self.case
        return Setting(
            mode=case.mode,
            device=place,
            dtype=case.dtype,
            transfer=case.transfer,
            seed=self.seed,
            world_size=case.workers,
            data=self.data,
        )


class Played(Struct, frozen=True):
    """What is left when a case was replayed: its step, and the same step with one fault mended at a time."""

    step: Run | None = None
    mended: dict[str, Run] = field(default_factory=dict)  # by the fault
    metrics: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Value | None] = field(default_factory=dict)


class Procedure(ABC):
    """How one publication timed its work. An object lives as long as the process that replays its cases."""

    endless: ClassVar[bool] = False  # the loop was watched and stopped by hand, so that only its later steps count
    whole_process: ClassVar[bool] = False  # timed from outside, start of the interpreter included

    def shares_process(self, case: Case) -> bool:
        """Whether such cases were timed one after the other in one process."""
        del case
        return False

    def readings(self, case: Case) -> dict[str, Case]:
        """What the publication can be understood to have timed, by name, where text and effect differ."""
        del case
        return {}

    def explain(self, results: Mapping[str, Result]) -> tuple[str, ...]:
        """What the readings say together, given by name."""
        del results
        return ()

    def runs_on(self, case: Case, kind: str) -> bool:
        """Whether the procedure makes sense for the case on this kind of device."""
        del case, kind
        return True

    def made(self, task: Task) -> int:
        """How many steps the published loop really made."""
        return task.steps

    def steps(self, task: Task) -> int:
        """How many steps are due now."""
        return task.due(self.made(task))

    def step_cost_s(self, task: Task) -> float:
        """About how long a step takes on no machine in particular: only comparisons of it mean anything."""
        case = task.case
        work = find_workload(case.workload).work(task.params, task.setting(case.device))
        assert work is not None, "a workload whose work takes torch to know needs a procedure that knows it"
        return cost_s(work)

    def faults(self, task: Task, played: Played, device: Device, watch: Stopwatch) -> dict[str, float]:
        """By how much each fault makes a step longer: 0.05 is 5%. Those that are too slow to try are left out."""
        del task
        found = {}
        for fault, mended in played.mended.items():
            assert played.step is not None
            ratio = _compare(played.step, mended, device, watch.time_left_s * FAULT_SHARE)
            if ratio is not None:
                found[fault] = 1 / ratio - 1
        return found

    @abstractmethod
    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """Do what the publication did, on the device at this place, with the stopwatch beside it."""


def _compare(published: Run, mended: Run, device: Device, most_s: float) -> float | None:
    """How long the mended step takes relative to the published one, timed in turn; None where that takes too long."""
    time_a, time_b = device.timer(published), device.timer(mended)
    once_s = time_b(1).total_s  # it may have something to start, such as another kernel
    if 4 * once_s > most_s:
        return None
    if once_s > SLOW_STEP_S:
        a, b = time_a(1).total_s, time_b(1).total_s
        return (b + time_b(1).total_s) / (a + time_a(1).total_s)
    settings = replace(DEFAULTS, budget_s=min(PAIR_S, most_s), min_time_s=min(PAIR_S, most_s) / 2)
    return measure_pair(
        time_a, time_b, clock=device.clock, sync_cost_s=device.calibrate().sync_s, settings=settings
    ).ratio
