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
    import torch

    return copy.deepcopy(model).to("cpu").to(torch.float64)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, the CPU computes with torch's own kernels: an error in oneDNN's would not be on both sides."""
    import torch

    with torch.backends.mkldnn.flags(enabled=False):
        yield
