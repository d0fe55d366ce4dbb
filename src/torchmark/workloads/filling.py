"""Builds large models without drawing their weights one by one, and fills them from one block of normal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from torchmark.workloads.setting import Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

# A prime: no row of a matrix is as long as the block or a part of it, so no two rows of a large one are alike.
_BLOCK = 1_000_003
_STRIDE = 104_729  # how much further into the block each next parameter begins
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"}


class _Parameter(Struct, frozen=True):
    """What to put into one parameter: normal numbers of a size, or one and the same number everywhere."""

    shape: tuple[int, ...]
    start: int
    scale: float
    constant: float | None


class Filling:
    """The weights of a model, the same for the same seed, each of which can be made by itself at any time.

    Matrices and kernels are scaled by what they sum over, so that numbers of size 1 stay so; rows that are looked up
    have size 1; norms begin as 1 and biases as 0. Values are rounded to the dtype.
    """

    def __init__(self, model: nn.Module, seed: int, dtype: torch.dtype) -> None:
        import torch

        block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(seed))
        self._block = torch.cat((block, block)).numpy()
        self._dtype = dtype
        self._plan = dict(_plan(model))

    def __getitem__(self, name: str) -> torch.Tensor:
        """The values of the parameter of that name, on the host."""
        import torch

        shape = self._plan[name].shape
        values = torch.empty(math.prod(shape), dtype=self._dtype)
        self.write(name, values)
        return values.view(shape)

    def piece(self, name: str) -> torch.Tensor:
        """The values of a parameter up to where they begin to repeat themselves."""
        import numpy
        import torch

        plan = self._plan[name]
        length = min(math.prod(plan.shape), _BLOCK)
        if plan.constant is not None:
            return torch.full((length,), plan.constant, dtype=self._dtype)
        scaled = self._block[plan.start : plan.start + length] * numpy.float32(plan.scale)
        return torch.from_numpy(scaled).to(self._dtype)

    def write(self, name: str, flat: torch.Tensor) -> None:
        """Put the values of a parameter into memory on the host that is there already."""
        import torch

        # By numpy, in one thread: memory is the limit, and thousands of short parallel copies on a busy machine take
        # ten times as long.
        piece = self.piece(name).to(flat.dtype)
        source, target = (tensor.view(torch.uint8).numpy() for tensor in (piece, flat.detach()))
        for begin in range(0, len(target), len(source)):
            part = target[begin : begin + len(source)]
            part[:] = source[: len(part)]

    def fill(self, model: nn.Module) -> None:
        """Put all values into a model on the host."""
        import torch

        with torch.no_grad():
            for name, weight in model.named_parameters():
                self.write(name, weight.view(-1))

    @contextmanager
    def exact(self, model: nn.Module) -> Iterator[None]:
        """Inside, a model on the meta device computes in float64 on the host, with each layer's weights there only
        while it runs: twice the memory of a large model is more than many machines have."""
        import torch

        largest = max(math.prod(plan.shape) for plan in self._plan.values())
        scratch = torch.empty(largest, dtype=torch.float64)
        handles = [
            handle
            for prefix, module in model.named_modules()
            for handle in self._lend(module, prefix + "." if prefix else "", scratch)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _lend(self, module: nn.Module, prefix: str, scratch: torch.Tensor) -> list[Any]:
        """Hooks that give a layer its weights before it runs and take them away afterwards."""
        import torch

        own = dict(module.named_parameters(recurse=False))
        if not own:
            return []

        def give(*_: object) -> None:
            begin = 0
            for name, weight in own.items():
                values = scratch[begin : begin + weight.numel()]
                if values.numel() < weight.numel():  # only the bias of the largest layer of all
                    values = torch.empty(weight.numel(), dtype=torch.float64)
                self.write(prefix + name, values)
                setattr(module, name, torch.nn.Parameter(values.view(weight.shape), requires_grad=False))
                begin += weight.numel()

        def take(*_: object) -> None:
            for name, weight in own.items():
                setattr(module, name, weight)

        return [module.register_forward_pre_hook(give), module.register_forward_hook(take)]


class FilledPairs(Sequence["tuple[torch.Tensor, torch.Tensor]"]):
    """The parameters of filled models, each in one or two parts, beside what was put there. That is made again only
    when it is looked at, and what repeats itself only once: a second copy of a large model might not fit."""

    def __init__(self, *filled: tuple[nn.Module, Filling]) -> None:
        self._parts = [
            (weight, name, filling, part)
            for model, filling in filled
            for name, weight in model.named_parameters()
            for part in _parts(weight.numel())
        ]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        weight, name, filling, part = self._parts[index]
        there, made = weight.detach().view(-1)[part], filling.piece(name)
        if there.numel() <= len(made):
            return there, made[: there.numel()]
        there = there.view(-1, len(made))
        return there, made.expand_as(there)


def _parts(count: int) -> list[slice]:
    """As many whole blocks as there are, and the rest."""
    whole = count // _BLOCK * _BLOCK
    return [part for part in (slice(0, whole), slice(whole, count)) if part.start < part.stop]


def build_filled(make: Callable[[], nn.Module], setting: Setting) -> tuple[nn.Module, Filling]:
    """The model on the device, and its weights as they were made."""
    model = build(make, setting.torch_dtype)
    filling = Filling(model, setting.seed, setting.torch_dtype)
    filling.fill(model)
    # Not `place_model`: tables of a model's own keep their precision, or bfloat16 would turn far tokens wrongly.
    return model.to(setting.device), filling


def build(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A model on the host in this dtype whose weights hold nothing yet; what it computes for itself, such as tables
    of positions, is right and keeps the precision that it chose."""
    import torch
    from torch.overrides import TorchFunctionMode

    class WithoutDrawing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in _DRAWS:
                return args[0] if args else kwargs["tensor"]
            return func(*args, **(kwargs or {}))

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with WithoutDrawing():
            return make().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def build_on_meta(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """The same model without any memory, to count with."""
    import torch

    with torch.device("meta"):
        return build(make, dtype)


def _plan(model: nn.Module) -> Iterator[tuple[str, _Parameter]]:
    from torch import nn

    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for index, (name, weight) in enumerate(model.named_parameters()):
        scale = 1.0 if id(weight) in looked_up else (weight.shape[0] / weight.numel()) ** 0.5
        constant = None if weight.dim() > 1 else 0.0 if name.endswith("bias") else 1.0
        yield name, _Parameter(tuple(weight.shape), index * _STRIDE % _BLOCK, scale, constant)
