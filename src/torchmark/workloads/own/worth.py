"""What a step of a model is worth that nobody here knows: counted on tensors without memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchmark.records import Work
from torchmark.workloads.flops import count_flops
from torchmark.workloads.own.tensors import Inputs, tensors_of
from torchmark.workloads.setting import Setting

if TYPE_CHECKING:
    import torch

# Numbers that a step reads or writes for each weight: in training also its gradient and the two that Adam keeps.
_READ, _TRAINED = 1, 7


def find_work(model: torch.nn.Module, inputs: Inputs, learn: Callable[..., Any] | None, setting: Setting) -> Work:
    """Rows, floating-point operations and bytes of one step of all workers; `learn` gives the loss in training."""
    outputs: list[torch.Tensor] = []
    flops = _count(model, inputs, learn, outputs)
    weights = _weights_read(model, inputs) * (_TRAINED if learn else _READ)
    numbers = weights + sum(tensor.numel() for tensor in (*inputs.tensors, *outputs))
    unit = "sample" if inputs.rows else "step"
    return setting.of_all_ranks(Work(inputs.rows or 1, unit, flops, numbers * setting.item_bytes))


def _count(
    model: torch.nn.Module, inputs: Inputs, learn: Callable[..., Any] | None, outputs: list[torch.Tensor]
) -> float | None:
    """What does not run without numbers, because it looks at them, cannot be counted."""
    import torch

    def step() -> None:
        bare, given = _on_meta(model), inputs.map(lambda tensor: tensor.to("meta"))
        if learn is None:
            with torch.no_grad():
                outputs.extend(tensors_of(given.call(bare.eval())))
        else:
            learn(bare.train(), *given.tensors).backward()

    try:
        return count_flops(step) or None
    except Exception:
        return None


def _on_meta(model: torch.nn.Module) -> torch.nn.Module:
    import torch

    def bare(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.detach().to("meta")
        return torch.nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else there

    return copy.deepcopy(model, {id(each): bare(each) for each in (*model.parameters(), *model.buffers())})


def _weights_read(model: torch.nn.Module, inputs: Inputs) -> int:
    """Of a table only the rows that are looked up, one for each whole number that goes in."""
    from torch import nn

    tables = {id(each.weight): each.weight for each in model.modules() if isinstance(each, nn.Embedding)}
    dense = {id(each.weight) for each in model.modules() if isinstance(each, nn.Linear)}
    looked_up = sum(tensor.numel() for tensor in inputs.tensors if not tensor.is_floating_point())
    count = 0
    for weight in model.parameters():
        rows = min(looked_up, weight.shape[0]) if id(weight) in tables and id(weight) not in dense else None
        count += weight.numel() if rows is None else rows * weight.shape[1]
    return count
