"""What a workload must be able to do: prepare one step of work, say what it is worth, and let it be checked."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from torchmark.records import Work

if TYPE_CHECKING:
    import torch

Tensors = Sequence["torch.Tensor"]
Pairs = Sequence[tuple["torch.Tensor", "torch.Tensor"]]

_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Setting(Struct, frozen=True):
    """Everything beside its parameters that a workload must follow."""

    mode: str
    device: str = "cpu"
    dtype: str = "float32"
    compile: str = "off"
    transfer: str = "resident"
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def item_bytes(self) -> int:
        """Bytes of one number, known without torch."""
        return _ITEM_BYTES[self.dtype]

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Inside, everything that draws from torch's own generator, such as weight initialisation, is repeatable."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            yield

    def generator(self) -> torch.Generator:
        """Seeded random numbers, made on the host so that every device is given the same."""
        import torch

        return torch.Generator().manual_seed(self.seed)

    def place(self, host: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, in this setting's dtype where it is a floating one."""
        return host.to(self.device, self.torch_dtype) if host.is_floating_point() else host.to(self.device)

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """The same model with every weight and buffer placed on the device."""
        # What `Module.to` is made of: it knows on which devices a weight can be moved and where it must be replaced.
        model._apply(self.place)  # type: ignore[no-untyped-call]
        return model

    def feed(self, host: torch.Tensor) -> Callable[[], torch.Tensor]:
        """How a step gets its input: from the device's own memory, or copied from the host every time."""
        if self.transfer == "resident":
            resident = self.place(host)
            return lambda: resident
        kept = host.to(self.torch_dtype) if host.is_floating_point() else host
        return lambda: kept.to(self.device)

    def drain(self, output: torch.Tensor) -> torch.Tensor:
        """What a step does with its output: leave it, or copy it to the host every time."""
        return output if self.transfer == "resident" else output.to("cpu")

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself, or what `torch.compile` makes of it."""
        if self.compile == "off":
            return function
        import torch

        compiled: Callable[..., Any] = torch.compile(function, mode=None if self.compile == "on" else self.compile)
        return compiled


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

    @classmethod
    def summary(cls) -> str:
        """What it is, in one line: the first of its module's docstring."""
        return (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n")[0]

    def work(self, params: Any, setting: Setting) -> Work | None:
        """What one step is worth, computed without torch; None where only `prepare` can tell."""
        del params, setting
        return None

    @abstractmethod
    def prepare(self, params: Any, setting: Setting) -> Step:
        """Build the model and its data, untimed. `params` is an instance of `self.params`."""
