"""Builds large models without drawing their weights one by one, and fills them from one block of normal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchmark.workloads.contract import Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

# A prime: no row of a matrix is as long as the block or a part of it, so no two rows of a large one are alike.
_BLOCK = 1_000_003
_STRIDE = 104_729  # how much further into the block each next parameter begins
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"}


@contextmanager
def without_drawing(dtype: torch.dtype) -> Iterator[None]:
    """Build models in this dtype whose weights hold nothing yet. What a model computes for itself, such as tables of
    positions, is right and keeps the precision that it chose."""
    import torch
    from torch.nn import init
    from torch.overrides import TorchFunctionMode

    class WithoutDrawing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in _DRAWS:
                return args[0] if args else kwargs["tensor"]
            return func(*args, **(kwargs or {}))

    before, truncated = torch.get_default_dtype(), init._no_grad_trunc_normal_
    torch.set_default_dtype(dtype)
    # It draws until every number is within its bounds, which never happens where nothing is drawn.
    init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
    try:
        with WithoutDrawing():
            yield
    finally:
        init._no_grad_trunc_normal_ = truncated
        torch.set_default_dtype(before)


def fill(model: nn.Module, setting: Setting) -> nn.Module:
    """Put weights into a model on the host, the same for the same seed, ready for inference.

    Matrices and kernels are scaled by what they sum over, so that numbers of size 1 stay so; rows that are looked up
    have size 1; norms begin as 1 and biases as 0.
    """
    import numpy
    import torch
    from torch import nn

    block = torch.randn(_BLOCK, generator=setting.generator())
    twice = torch.cat((block, block)).numpy()
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for index, (name, weight) in enumerate(model.eval().requires_grad_(False).named_parameters()):
        if weight.dim() <= 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        start, length = index * _STRIDE % _BLOCK, min(weight.numel(), _BLOCK)
        scale = 1.0 if id(weight) in looked_up else (weight.shape[0] / weight.numel()) ** 0.5
        piece = torch.from_numpy(twice[start : start + length] * numpy.float32(scale)).to(weight.dtype)
        # By numpy, in one thread: memory is the limit, and thousands of short parallel copies on a busy machine take
        # ten times as long.
        source, target = (tensor.view(torch.uint8).numpy() for tensor in (piece, weight.view(-1).detach()))
        for begin in range(0, len(target), len(source)):
            part = target[begin : begin + len(source)]
            part[:] = source[: len(part)]
    return model
