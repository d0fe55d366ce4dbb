"""Models filled without drawing every weight, and what outputs are checked against: float64 on the CPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

    from torchmark.workloads.contract import Pairs, Setting, Tensors

_BLOCK = 1_000_003  # a prime, which no row's length divides, so that no two rows are alike
_STRIDE = 104_729  # between the beginnings of two parameters in the block
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"}
# Operators that do not round.
_MOVES = {"_to_copy", "clone", "copy_", "cat", "stack", "embedding", "index", "index_select", "gather", "relu"}
_FACTORS = 65_537  # a prime, too: drawing one for each of a million numbers takes longer than computing them
_rounding: list[tuple[float, int]] = []  # unit and seed of `rounding_at`, if it is active


def recorded(*models: nn.Module) -> Callable[[], Pairs]:
    """Pair every weight and buffer, whenever called, with its present contents. Sums of bit patterns stand for them:
    the same on any device, different if one bit has changed, and no second copy."""
    import torch

    patterns = {2: torch.int16, 4: torch.int32, 8: torch.int64}

    def sums() -> Tensors:
        every = [each.detach() for model in models for each in (*model.parameters(), *model.buffers())]
        tensors = [each for each in every if each.is_floating_point()]
        return [each.view(patterns[each.element_size()]).sum(dtype=torch.int64) for each in tensors]

    made = sums()
    return lambda: [*zip(sums(), made, strict=True)]


def exact_model(model: nn.Module, by_layer: bool = False) -> nn.Module:
    """A copy of the model in float64 on the CPU. With `by_layer`, to save memory, each layer's weights exist only while
    it runs: for models whose layers use only their own weights."""
    import torch

    if not by_layer:
        return copied(model, _exact)

    def put(weights: dict[str, Any], change: Callable[[Any], Any], module: nn.Module, *_: object) -> None:
        for name, weight in weights.items():
            setattr(module, name, change(weight))

    weights = {id(each) for each in model.parameters()}
    exact = copied(model, lambda each: each.detach().to("meta") if id(each) in weights else _exact(each))
    for module, source in zip(exact.modules(), model.modules(), strict=True):
        own, empty = dict(source.named_parameters(recurse=False)), dict(module.named_parameters(recurse=False))
        if own:
            module.register_forward_pre_hook(partial(put, own, lambda each: torch.nn.Parameter(_exact(each), False)))
            module.register_forward_hook(partial(put, empty, lambda each: each))
    return exact


def copied(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """The model with other tensors, without a second copy of its own, which might not fit."""
    import torch

    tensors = {id(each): change(each) for each in model.buffers()}
    weights = {id(each): torch.nn.Parameter(change(each), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, tensors | weights)


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    host = tensor.detach().cpu()  # as not every device has float64
    return host.to(torch.float64 if host.is_floating_point() else host.dtype, copy=True)


@contextmanager
def exactly(dtype: torch.dtype | None = None) -> Iterator[None]:  # default: float64
    """Without oneDNN and fused attention, whose errors would be on both sides, and with new tensors in this dtype."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = dtype or torch.float64
    rounding = _rounding_mode(*_rounding[-1], dtype) if _rounding else nullcontext()
    with _default_dtype(dtype), torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), rounding:
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def rounding_at(unit: float, seed: int) -> Iterator[None]:
    """Within `exactly`, change every operator's results by up to this share, as rounding may."""
    _rounding.append((unit, seed))
    try:
        yield
    finally:
        _rounding.pop()


def _rounding_mode(unit: float, seed: int, dtype: torch.dtype) -> TorchDispatchMode:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    generator = torch.Generator().manual_seed(seed)
    block = torch.empty(_FACTORS, dtype=dtype).uniform_(1 - unit, 1 + unit, generator=generator)
    twice, begin = torch.cat((block, block)), 0

    def off(result: Any, name: str) -> Any:
        nonlocal begin
        if not isinstance(result, torch.Tensor) or result.dtype != dtype:
            return result
        count, start = result.numel(), begin
        begin = (begin + count) % _FACTORS
        factors = twice[start : start + _FACTORS].expand(-(-count // _FACTORS), -1).reshape(-1)[:count].view_as(result)
        moved = result.mul_(factors) if name.endswith("_") else result * factors
        return moved.clamp_(max=1.0) if name.startswith("sigmoid") else moved

    class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch declares no types here
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules  # importing it takes a second

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result, name = func(*args, **(kwargs or {})), func._schema.name.partition("::")[2]
            computes = any(isinstance(each, torch.Tensor) for each in args) and not func.is_view
            if not computes or name in _MOVES or name.endswith("_like"):
                return result
            return tree_map(lambda each: off(each, name), result)

    return Rounding()  # type: ignore[no-untyped-call]


@contextmanager
def without_drawing(dtype: torch.dtype) -> Iterator[None]:
    """Build models in this dtype with uninitialised weights. What they compute, such as positions, stays exact."""
    from torch.nn import init
    from torch.overrides import TorchFunctionMode

    class WithoutDrawing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in _DRAWS:
                return args[0] if args else kwargs["tensor"]
            return func(*args, **(kwargs or {}))

    truncated = init._no_grad_trunc_normal_
    # It draws until every number is within its bounds: without drawing, for ever.
    init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
    try:
        with _default_dtype(dtype), WithoutDrawing():
            yield
    finally:
        init._no_grad_trunc_normal_ = truncated


def fill(model: nn.Module, setting: Setting) -> nn.Module:
    """Give a model on the host random weights for inference. Matrices and kernels are scaled by what they sum over, so
    that numbers of size 1 stay so, as are rows that are looked up; norms are 1, biases 0."""
    import numpy
    import torch

    block = torch.randn(_BLOCK, generator=setting.generator())
    twice = torch.cat((block, block)).numpy()
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for index, (name, weight) in enumerate(model.eval().requires_grad_(False).named_parameters()):
        if weight.dim() <= 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        start, length = index * _STRIDE % _BLOCK, min(weight.numel(), _BLOCK)
        scale = 1.0 if id(weight) in looked_up else (weight.shape[0] / weight.numel()) ** 0.5
        piece = torch.from_numpy(twice[start : start + length] * numpy.float32(scale)).to(weight.dtype)
        # By numpy, in one thread: thousands of short parallel copies on a busy machine take ten times as long.
        source, target = (tensor.view(torch.uint8).numpy() for tensor in (piece, weight.view(-1).detach()))
        for begin in range(0, len(target), len(source)):
            part = target[begin : begin + len(source)]
            part[:] = source[: len(part)]
    return model
