"""Tells whether a model's weights are on the device as they were made, without keeping a second copy of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torchmark.workloads.contract import Tensors


def fingerprints(model: torch.nn.Module) -> Tensors:
    """For each weight and buffer the sum of its numbers' bit patterns, left on its device.

    Whole numbers add up to the same in any order, on any device, and one changed bit changes the sum.
    """
    import torch

    patterns = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [each.detach() for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
    return [each.view(patterns[each.element_size()]).sum(dtype=torch.int64) for each in tensors]
