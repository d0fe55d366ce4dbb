"""The recorded trajectories that the reinforcement-learning job learns from: a made-up system and policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchmark.workloads.reinforcement.networks import ACTION, OBSERVATION, Columns

if TYPE_CHECKING:
    import torch

TRAJECTORIES = 100
TRANSITIONS = 30  # in each trajectory
WINDOW = 10  # steps that are rolled out, and compared, at once
_NOISE = 0.05


def make_windows(generator: torch.Generator) -> torch.Tensor:
    """Every run of ten transitions within a trajectory: half, window, step, (observation, action, next observation).

    Halves are split by trajectory, so that no window of one is part of the other.
    """
    import torch

    transitions = _record(generator)
    starts = TRANSITIONS - WINDOW + 1
    windows = torch.stack([transitions[:, start : start + WINDOW] for start in range(starts)], dim=1)
    return windows.reshape(2, TRAJECTORIES // 2 * starts, WINDOW, -1).contiguous()


def _record(generator: torch.Generator) -> torch.Tensor:
    import torch

    respond = _make_response(OBSERVATION.encoded, ACTION, generator)
    move = _make_response(OBSERVATION.encoded + ACTION.encoded, OBSERVATION, generator)
    observation = _encode(OBSERVATION, torch.randn(TRAJECTORIES, OBSERVATION.encoded, generator=generator))
    steps = []
    for _ in range(TRANSITIONS):
        action = _react(ACTION, observation, respond, generator)
        following = _react(OBSERVATION, torch.cat([observation, action], dim=-1), move, generator)
        steps.append(torch.cat([observation, action, following], dim=-1))
        observation = following
    return torch.stack(steps, dim=1)


def _make_response(inputs: int, columns: Columns, generator: torch.Generator) -> torch.Tensor:
    """A random linear response; its last row is what comes without any input."""
    import torch

    return torch.randn(inputs + 1, columns.encoded, generator=generator) / math.sqrt(inputs)


def _react(columns: Columns, rows: torch.Tensor, response: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    noise = _NOISE * torch.randn(len(rows), columns.encoded, generator=generator)
    return _encode(columns, rows @ response[:-1] + 2 * response[-1] + noise)


def _encode(columns: Columns, values: torch.Tensor) -> torch.Tensor:
    """Numbers within ±1, and for each category the choice with the highest value."""
    import torch

    numbers, *categories = torch.split(values, [columns.numbers, *columns.categories], dim=-1)
    hot = [torch.nn.functional.one_hot(each.argmax(dim=-1), each.shape[-1]).to(values.dtype) for each in categories]
    return torch.cat([numbers.tanh(), *hot], dim=-1)
