"""What goes into a model and comes out of it: tensors by position or by name, and those of any answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UsageError

if TYPE_CHECKING:
    import torch

_CURE = "Return a tensor, a tuple of tensors, or a dictionary from argument names to tensors"


class Inputs(Struct, frozen=True):
    """The tensors that a model is called with; those with a name are given by it."""

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str | None, ...]

    @property
    def rows(self) -> int:
        """The size that all of them begin with; 0 where they do not begin alike."""
        first = {tuple(tensor.shape[:1]) for tensor in self.tensors}
        return next(iter(first))[0] if len(first) == 1 and first != {()} else 0

    def take(self, rows: Sequence[int]) -> Inputs:
        """These rows of every tensor."""
        return self.map(lambda tensor: tensor[list(rows)])

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """Every tensor changed in the same way."""
        return replace(self, tensors=tuple(map(change, self.tensors)))

    def call(self, forward: Callable[..., Any], tensors: Sequence[torch.Tensor] | None = None) -> Any:
        """What the model makes of these tensors, or of others in their place."""
        given = self.tensors if tensors is None else tensors
        if not any(self.names):
            return forward(*given)
        pairs = tuple(zip(self.names, given, strict=True))
        named = {name: tensor for name, tensor in pairs if name is not None}
        return forward(*(tensor for name, tensor in pairs if name is None), **named)


def inputs_of(example: object) -> Inputs:
    """What a user's function gives as an example."""
    import torch

    if isinstance(example, torch.Tensor):
        return Inputs((example,), (None,))
    if isinstance(example, tuple | list):
        values, names = tuple(example), cast("tuple[str | None, ...]", (None,) * len(example))
    elif isinstance(example, Mapping):
        values, names = tuple(example.values()), tuple(map(str, example))
    else:
        raise UsageError(f"the example input is a {type(example).__name__}", _CURE)
    wrong = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
    if wrong or not values:
        raise UsageError(f"the example input holds {f'a {wrong[0]}' if wrong else 'nothing'}", _CURE)
    return Inputs(values, names)


def tensors_of(answer: object) -> list[torch.Tensor]:
    """Every tensor of floating numbers in what a model returns, however it is wrapped."""
    return [tensor for tensor in leaves_of(answer) if tensor.is_floating_point() and tensor.numel()]


def leaves_of(answer: object) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returns."""
    import torch

    if isinstance(answer, torch.Tensor):
        yield answer
        return
    parts: Sequence[object] = ()
    if isinstance(answer, Mapping):
        parts = [*answer.values()]
    elif isinstance(answer, tuple | list):
        parts = answer
    elif dataclasses.is_dataclass(answer):
        parts = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
    for part in parts:
        yield from leaves_of(part)
