"""Everything beside its parameters that a workload must follow: device, dtype, compile, transfer, seed, rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import torch

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
    data: str | None = None  # folder with the real data sets; without it a stand-in is made

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
