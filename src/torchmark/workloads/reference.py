"""The other computation that a step's outputs are checked against: float64 on the CPU, without oneDNN."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def exact_model(model: torch.nn.Module) -> torch.nn.Module:
    """The same model, same weights, in float64 on the CPU; the original is left alone."""
    # Each tensor is copied straight to where it belongs: a second copy on the device might not fit.
    known = {id(each): _exact(each) for each in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, known)


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    host = tensor.detach().cpu()  # first of all: not every device knows float64
    host = host.to(torch.float64 if host.is_floating_point() else host.dtype, copy=True)
    return torch.nn.Parameter(host, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else host


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, the CPU computes with torch's own kernels: an error in oneDNN's would not be on both sides."""
    import torch

    with torch.backends.mkldnn.flags(enabled=False):
        yield


@contextmanager
def computing_in(dtype: str) -> Iterator[None]:
    """Inside, torch's own kernels compute, and what a model makes for itself is of this dtype, too."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with plain_kernels():
            yield
    finally:
        torch.set_default_dtype(before)
