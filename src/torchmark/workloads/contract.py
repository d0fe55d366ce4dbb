"""What a workload must be able to do: prepare one step of work, say what it is worth, and let it be checked."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.setting import ATTENTION, GRADIENTS, LAYOUT, Setting, Way

if TYPE_CHECKING:
    import torch

Tensors = Sequence["torch.Tensor"]
Pairs = Sequence[tuple["torch.Tensor", "torch.Tensor"]]

__all__ = [
    "ATTENTION",
    "GRADIENTS",
    "LAYOUT",
    "Pairs",
    "Setting",
    "Stage",
    "Step",
    "Tensors",
    "Way",
    "Workload",
]


class Stage(Struct, frozen=True):
    """A part of a job: how often the job does it, and how to do it once."""

    name: str
    steps: int  # in the whole job; 0: it happens inside the steps of another stage and is timed for its share only
    run: Callable[[], object]


class Step(Struct, frozen=True):
    """One unit of timed work. `run` never synchronises, times, prints or reads the clock.

    `outputs` computes on the device, with the very function and weights that are timed; `reference` computes the same
    another way: float64 on the CPU. Both return the same number of tensors of the same shapes, and may be called at
    any moment, as often as wanted, without changing what is timed. Make the inputs of `reference` again from the
    seed: then nothing is held in memory for it while the step is being timed.
    """

    run: Callable[[], object]
    work: Work
    outputs: Callable[[], Tensors] | None = None
    reference: Callable[[], Tensors] | None = None
    copies: Callable[[], Pairs] | None = None  # (on the device, as it was made): must be equal to the last bit
    roundings: int = 1  # how many roundings follow one another between input and output; they widen the tolerance
    magnitude: float = 0.0  # what an output is worth where nothing cancels: errors are taken relative to no less
    job_steps: int = 0  # how many of these steps make the whole job; 0: there is no job, only steps
    stages: tuple[Stage, ...] = ()  # what else the job does
    epochs: int = 0  # times that the job goes through its data; 0: there is no such number
    alone: Callable[[], object] | None = None  # the same step without the other ranks, from `Setting.alone`
    metrics: Callable[[], dict[str, float]] | None = None  # what the steps so far have come to: loss, accuracy, counts
    notes: dict[str, str] = {}  # what was chosen while preparing and is no parameter, such as the kind of attention


class Workload(ABC):
    """A kind of work. `version` rises whenever the work itself changes, so that results never mix."""

    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("infer",)
    params: ClassVar[type[Struct]]
    tiny: ClassVar[Struct]
    version: ClassVar[int] = 1
    needs_torch: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "bfloat16", "float16")
    distributed: ClassVar[bool] = False  # can be run by several workers at once
    default_workers: ClassVar[int] = 1
    ways: ClassVar[tuple[Way, ...]] = ()  # in which the same work can be done beside the usual one
    imports: ClassVar[tuple[str, ...]] = ()  # modules beside torch that take seconds to import; workers share them

    @classmethod
    def summary(cls) -> str:
        """What it is, in one line: the first of its module's docstring."""
        return (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n")[0]

    def check(self, params: Any) -> None:
        """Raise UsageError where these parameters cannot be, although each of them could; asked without torch."""
        del params

    def work(self, params: Any, setting: Setting) -> Work | None:
        """What one step of all ranks is worth, computed without torch; None where only `prepare` can tell."""
        del params, setting
        return None

    def memory_bytes(self, params: Any, setting: Setting) -> float | None:
        """About how much memory a step of one rank needs at its peak; None where it is too little to matter."""
        del params, setting
        return None

    @abstractmethod
    def prepare(self, params: Any, setting: Setting) -> Step:
        """Build the model and its data, untimed. `params` is an instance of `self.params`."""
