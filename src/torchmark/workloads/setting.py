"""Everything beside its parameters that a workload must follow: device, dtype, compile, transfer, seed, rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from torchmark.errors import UnsupportedError
from torchmark.records import Work

if TYPE_CHECKING:
    import torch

_IMAGE_DIMENSIONS = 4  # image, channel, row, column
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Way(Struct, frozen=True):
    """One thing that can be done in several ways without changing the work; the usual one comes first."""

    name: str  # one of records.WAYS
    values: tuple[str, ...]


LAYOUT = Way("layout", ("contiguous", "channels-last"))  # followed by `Setting.place` and `feed`
GRADIENTS = Way("gradients", ("inference-mode", "no-grad"))  # followed by `Setting.without_gradients`
ATTENTION = Way("attention", ("sdpa", "eager"))  # the model library's names; the workload hands it over


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
    data: str | None = None  # folder with the real data sets; without it a stand-in is made
    ways: dict[str, str] = {}  # of those that the workload offers, where it is not the usual one

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

    def of_all_ranks(self, work: Work) -> Work:
        """What a step of all ranks together is worth, where each of them does so much."""
        count = self.world_size
        return Work(work.items * count, work.unit, work.flops and work.flops * count, work.bytes and work.bytes * count)

    @property
    def checked_weight(self) -> float:
        """By which a rank multiplies its loss in a check: another one on every rank, and 1 on average. Ranks that all
        learn from the same few rows have the right gradients then only after they have exchanged them."""
        return 2 * (self.rank + 1) / (self.world_size + 1)

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
        """The tensor on the device, in this setting's dtype where it is a floating one, and in its layout."""
        placed = host.to(self.device, self.torch_dtype) if host.is_floating_point() else host.to(self.device)
        return self._laid_out(placed)

    def _laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """Images and the weights of convolutions with their channels last, where that is asked for."""
        import torch

        if self.ways.get("layout") != "channels-last" or tensor.ndim != _IMAGE_DIMENSIONS:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

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
        kept = self._laid_out(host.to(self.torch_dtype) if host.is_floating_point() else host)
        if self.transfer == "per-step":
            return lambda: kept.to(self.device)
        if self.device == "cpu":
            raise UnsupportedError("copies from pinned memory need an accelerator", "Use --transfer per-step")
        pinned = kept.pin_memory()
        return lambda: pinned.to(self.device, non_blocking=True)

    def drain(self, output: torch.Tensor) -> torch.Tensor:
        """What a step does with its output: leave it, or copy it to the host every time."""
        return output if self.transfer == "resident" else output.to("cpu")

    def without_gradients(self, usual: str = "inference-mode") -> AbstractContextManager[Any]:
        """Inside, a forward pass keeps nothing for a backward one, in the way that is asked for."""
        import torch

        if self.ways.get("gradients", usual) == "no-grad":
            return torch.no_grad()
        return torch.inference_mode()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself, or what `torch.compile` makes of it."""
        if self.compile == "off":
            return function
        import torch

        compiled: Callable[..., Any] = torch.compile(function, mode=None if self.compile == "on" else self.compile)
        return compiled

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, sharing its gradients with the other ranks where there are any. Call it before the optimiser."""
        if self.world_size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)

    def alone(self, model: torch.nn.Module, run: Callable[[], object]) -> Callable[[], object] | None:
        """The same step without sharing gradients, which tells what sharing costs; None where nothing is shared."""
        if self.world_size == 1:
            return None

        def run_alone() -> object:
            with model.no_sync():  # type: ignore[operator]  # what `parallel` returned
                return run()

        return run_alone
