"""The numeric check of a model that nobody here knows: how few rows are enough, and whether any can be checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchmark.errors import UnsupportedError
from torchmark.workloads.contract import Tensors
from torchmark.workloads.own.tensors import Inputs, tensors_of
from torchmark.workloads.reference import computing_in, exact_model

if TYPE_CHECKING:
    import torch

FEW = 2  # rows that are computed exactly
_ALIKE = 1e-5  # what two exact computations of the same may differ by: parts of a model may insist on float32
_SHALLOW, _ROUNDINGS = 64, 24


def roundings_of(model: torch.nn.Module) -> int:
    """How many roundings follow one another; in deep models their errors add up like the steps of a random walk."""
    layers = sum(1 for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
    return round(_ROUNDINGS * math.sqrt(max(1.0, layers / _SHALLOW)))


def few_rows(inputs: Inputs) -> Inputs:
    """A batch that is small enough to be computed exactly."""
    return inputs.take(range(FEW)) if inputs.rows > FEW else inputs


class Proof:
    """What the model gives for its inputs against float64 on the CPU. Nothing is computed before it is asked for."""

    def __init__(self, model: torch.nn.Module, inputs: Inputs, run: Callable[[], Any], notes: dict[str, str]) -> None:
        self._model, self._inputs, self._run, self._notes = model, inputs, run, notes
        self._by_row = False
        self.dtype = "float64"  # of the exact computation, once it is done

    def outputs(self) -> Tensors:
        """What the timed function computes, as far as it can be checked."""
        if not self._expected:
            return ()
        given = tensors_of(self._run())
        return [tensor[:FEW] for tensor in given] if self._by_row else given

    def reference(self) -> Tensors:
        return self._expected

    @cached_property
    def _expected(self) -> Tensors:
        """Rows that do not depend on the others stand for all of them. Nothing, where the model draws at random."""
        exact = _Exact(self._model, self._inputs)
        self.dtype = exact.dtype
        if exact.dtype != "float64":
            self._notes["reference"] = f"{exact.dtype}, which the model insists on"
        if not exact.few:
            raise UnsupportedError("the model returns no tensor of floating numbers", "Let it return what it computes")
        if exact.is_random:
            self._notes["numbers"] = "not checked: the model draws at random"
            return ()
        self._by_row = exact.is_by_row
        return exact.few if self._by_row else exact.all


class _Exact:
    """The model in float64 on the CPU, or in float32 where it insists on that."""

    def __init__(self, model: torch.nn.Module, inputs: Inputs) -> None:
        self.dtype = "float64"
        self._model, self._given = exact_model(model).eval(), inputs
        try:
            self.few = self._compute(few_rows(inputs))
        except RuntimeError as error:
            if "type" not in str(error):  # how all complaints about a dtype are worded
                raise
            self.dtype = "float32"
            self._model.float()
            self.few = self._compute(few_rows(inputs))

    @property
    def is_random(self) -> bool:
        return not _alike(self.few, self._compute(few_rows(self._given)))

    @property
    def is_by_row(self) -> bool:
        """Whether the first rows come out the same beside another one."""
        rows = self._given.rows
        if rows <= FEW + 1:
            return False
        more = self._compute(self._given.take([*range(FEW), rows - 1]))
        if not all(tensor.dim() and len(tensor) == FEW + 1 for tensor in more):
            return False
        return _alike(self.few, [tensor[:FEW] for tensor in more])

    @property
    def all(self) -> Tensors:
        return self._compute(self._given) if self._given.rows > FEW else self.few

    def _compute(self, inputs: Inputs) -> Tensors:
        import torch

        exact = inputs.map(
            lambda tensor: tensor.to(getattr(torch, self.dtype)) if tensor.is_floating_point() else tensor
        )
        with computing_in(self.dtype), torch.inference_mode():
            return tensors_of(exact.call(self._model))


def _alike(first: Tensors, second: Tensors) -> bool:
    import torch

    return len(first) == len(second) and all(
        one.shape == other.shape
        and torch.allclose(one, other, rtol=_ALIKE, atol=_ALIKE * float(one.abs().max()), equal_nan=True)
        for one, other in zip(first, second, strict=True)
    )
