"""Distributions over mixed columns, as a network's head describes them: normal numbers and one-hot categories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchmark.workloads.reinforcement.networks import Columns

if TYPE_CHECKING:
    import torch

_LOG_SPREAD_AT_ZERO = -1.0  # a head that says 0 means a spread of 0.37: the data lies within ±1
_LOG_SPREAD_BOUNDS = (-5.0, 1.0)


def _read(columns: Columns, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Mean and logarithm of the spread of every number, logarithms of the probabilities of every category."""
    import torch

    mean, spread, *weights = torch.split(head, [columns.numbers, columns.numbers, *columns.categories], dim=-1)
    log_spread = (spread + _LOG_SPREAD_AT_ZERO).clamp(*_LOG_SPREAD_BOUNDS)
    return mean.tanh(), log_spread, [weight.log_softmax(dim=-1) for weight in weights]


def sample(columns: Columns, head: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Encoded columns drawn from what the head describes."""
    import torch

    mean, log_spread, categories = _read(columns, head)
    options = {"generator": generator, "device": head.device, "dtype": head.dtype}
    drawn = [mean + log_spread.exp() * torch.randn(mean.shape, **options)]  # type: ignore[call-overload]
    for choices in categories:
        uniform = torch.rand(choices.shape, **options)  # type: ignore[call-overload]
        chosen = (choices - (-uniform.log()).log()).argmax(dim=-1)  # the Gumbel trick: no draw by the host
        drawn.append(torch.nn.functional.one_hot(chosen, choices.shape[-1]).to(head.dtype))
    return torch.cat(drawn, dim=-1)


def log_prob(columns: Columns, head: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
    """How likely the encoded columns are, all together."""
    import torch

    mean, log_spread, categories = _read(columns, head)
    numbers, *chosen = torch.split(encoded, [columns.numbers, *columns.categories], dim=-1)
    distance = (numbers - mean) / log_spread.exp()
    total = (-0.5 * distance.square() - log_spread - 0.5 * math.log(2 * math.pi)).sum(dim=-1)
    for choices, hot in zip(categories, chosen, strict=True):
        total = total + (choices * hot).sum(dim=-1)
    return total


def expected(columns: Columns, head: torch.Tensor) -> torch.Tensor:
    """Encoded columns on average: means and probabilities."""
    import torch

    mean, _, categories = _read(columns, head)
    return torch.cat([mean, *(choices.exp() for choices in categories)], dim=-1)


def divergence(columns: Columns, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of what a head described before from what it describes after."""
    mean, log_spread, categories = _read(columns, before)
    new_mean, new_log_spread, new_categories = _read(columns, after)
    ratio = (2 * (log_spread - new_log_spread)).exp()
    distance = ((mean - new_mean) / new_log_spread.exp()).square()
    total = (0.5 * (ratio + distance - 1) + new_log_spread - log_spread).sum(dim=-1)
    for old, new in zip(categories, new_categories, strict=True):
        total = total + (old.exp() * (old - new)).sum(dim=-1)
    return total
