"""What the reinforcement-learning job's networks and losses make of known rows, where nothing is left to chance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchmark.workloads.reinforcement.heads import divergence, log_prob
from torchmark.workloads.reinforcement.networks import ACTION, OBSERVATION
from torchmark.workloads.reinforcement.training import (
    Networks,
    Rollout,
    imitation_reward,
    judge,
    matcher_loss,
    policy_loss,
    venv_loss,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

# How much less likely an action was when it was taken than it is now. Some are clipped and some are not, and none is so
# near to the edge that rounding could decide.
_LESS_LIKELY = (-0.5, -0.1, 0.1, 0.5)


def weights_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """All weights, in a fixed order."""
    return [weight for module in modules for weight in module.parameters()]


def load_weights(modules: Iterable[nn.Module], values: Iterable[torch.Tensor]) -> None:
    """Put these values into the modules' own weights."""
    import torch

    with torch.no_grad():
        for weight, value in zip(weights_of(modules), values, strict=True):
            weight.copy_(value)


def known_results(networks: Networks, weights: list[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
    """Heads, rewards, advantages, losses, and the gradients of the losses. `rows` are recorded windows, steps first.

    They stand for a rollout; the same windows in the opposite order stand for the records that it is compared with.
    """
    import torch

    rollout, heads = _as_rollout(networks, rows)
    real = rows.flip(1)
    with torch.no_grad():
        rewards = imitation_reward(networks.matcher, real, rows)
        judged = judge(networks.value, rollout, rewards)
    told_apart = matcher_loss(networks.matcher, real, rows)
    imitated = venv_loss(networks, rollout, judged)
    learned = policy_loss(networks.policy, networks.value, rollout, judged)
    # Only of their sum: every weight is part of it, and what is wrong in one of the losses is wrong in the sum.
    gradients = torch.autograd.grad(told_apart + imitated + learned, weights)
    moved_away = divergence(ACTION, rollout.action_heads, heads[0]).detach()
    losses = [loss.detach() for loss in (told_apart, imitated, learned)]
    return [*heads, rewards, *judged, moved_away, *losses, *gradients]


def _as_rollout(networks: Networks, rows: torch.Tensor) -> tuple[Rollout, tuple[torch.Tensor, torch.Tensor]]:
    import torch

    sizes = [OBSERVATION.encoded, ACTION.encoded, OBSERVATION.encoded]
    observations, actions, following = torch.split(rows, sizes, dim=-1)
    with torch.no_grad():
        head = networks.policy(observations)
        moved = networks.transition(torch.cat([observations, actions], dim=-1))
        acted, followed = log_prob(ACTION, head, actions), log_prob(OBSERVATION, moved, following)
    pattern = torch.tensor(_LESS_LIKELY, device=rows.device, dtype=rows.dtype)
    offsets = pattern.repeat(acted.numel() // len(_LESS_LIKELY) + 1)[: acted.numel()].view_as(acted)
    # The head that acted is half of today's, so that there is a divergence to speak of.
    rollout = Rollout(observations, head / 2, actions, acted + offsets, following, followed - offsets)
    return rollout, (head, moved)
