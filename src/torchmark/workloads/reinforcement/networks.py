"""Columns and networks of the reinforcement-learning job, with their sizes by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

Network = Callable[["torch.Tensor"], "torch.Tensor"]

HIDDEN_LAYERS = 4  # in a residual network these are blocks of two layers each


class Columns(NamedTuple):
    """Numbers, each described by mean and spread, and categories, each described by one weight for every choice."""

    numbers: int
    categories: tuple[int, ...]

    @property
    def encoded(self) -> int:
        """How many inputs they make: a number is one, a category as many as it has choices."""
        return self.numbers + sum(self.categories)

    @property
    def described(self) -> int:
        """How many outputs describe their distribution."""
        return 2 * self.numbers + sum(self.categories)


OBSERVATION = Columns(4, (3, 3))
ACTION = Columns(2, (3, 4))


class Shape(NamedTuple):
    """What goes into a network and comes out of it; the rest follows from its width."""

    inputs: int
    outputs: int
    residual: bool = False

    def layers(self, width: int) -> list[tuple[int, int]]:
        """Inputs and outputs of every layer. The ones that read the network's own input come first."""
        if self.residual:
            around = [(self.inputs, width)]  # the first block changes the width, so its skip is a layer too
            inside = [(width, width)] * (2 * HIDDEN_LAYERS - 1)
        else:
            around, inside = [], [(width, width)] * (HIDDEN_LAYERS - 1)
        return [(self.inputs, width), *around, *inside, (width, self.outputs)]

    def parameter_count(self, width: int) -> int:
        return sum((wide + 1) * narrow for wide, narrow in self.layers(width))

    def forward_products(self, width: int) -> int:
        """Multiplications for one row."""
        return sum(wide * narrow for wide, narrow in self.layers(width))

    def training_products(self, width: int) -> int:
        """Multiplications for one row forward and back; nothing is passed back to the network's own input."""
        at_input = self.inputs * width * (2 if self.residual else 1)
        return 3 * self.forward_products(width) - at_input


SHAPES = {
    "policy": Shape(OBSERVATION.encoded, ACTION.described, residual=True),
    "transition": Shape(OBSERVATION.encoded + ACTION.encoded, OBSERVATION.described, residual=True),
    "matcher": Shape(2 * OBSERVATION.encoded + ACTION.encoded, 1),
    "value": Shape(OBSERVATION.encoded, 1),
}


def make_network(kind: str, width: int) -> torch.nn.Module:
    """A network of that kind, initialised as torch does it."""
    from torch import nn

    shape = SHAPES[kind]
    if shape.residual:
        return _make_residual(shape, width)
    activation: type[nn.Module] = nn.LeakyReLU if kind == "value" else nn.ReLU
    edges = shape.layers(width)
    layers = [module for wide, narrow in edges[:-1] for module in (nn.Linear(wide, narrow), activation())]
    ending = [nn.Sigmoid()] if kind == "matcher" else []
    return nn.Sequential(*layers, nn.Linear(*edges[-1]), *ending)


def _make_residual(shape: Shape, width: int) -> torch.nn.Module:
    from torch import nn

    class Block(nn.Module):
        """Linear, ReLU, Linear, ReLU, and what came in added to it."""

        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.skip = nn.Identity() if inputs == width else nn.Linear(inputs, width)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.body(rows) + self.skip(rows)
            return result

    blocks = [Block(shape.inputs), *(Block(width) for _ in range(HIDDEN_LAYERS - 1))]
    return nn.Sequential(*blocks, nn.Linear(width, shape.outputs))
