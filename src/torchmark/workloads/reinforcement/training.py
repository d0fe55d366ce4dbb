"""How the reinforcement-learning job learns: rollouts, rewards, advantages, and the losses that are minimised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torchmark.errors import WrongResultError
from torchmark.workloads.reinforcement.heads import divergence, expected, log_prob, sample
from torchmark.workloads.reinforcement.networks import ACTION, OBSERVATION, Network

if TYPE_CHECKING:
    import torch

PASSES = 2
CLIP = 0.2
_DISCOUNT = 0.99
_TRACE = 0.95  # lambda of the generalised advantage estimate
_MATCHER_SHARE = 0.75
_VENV_VALUE_WEIGHT = 0.5
_POLICY_VALUE_WEIGHT = 0.001
_DIVERGENCE_WEIGHT = 1.0


class Networks(NamedTuple):
    """The four networks of one graph, as they are called."""

    policy: Network
    transition: Network
    matcher: Network
    value: Network


class Rollout(NamedTuple):
    """What was done and seen: step, row, columns."""

    observations: torch.Tensor
    action_heads: torch.Tensor
    actions: torch.Tensor
    action_log_probs: torch.Tensor
    following: torch.Tensor
    following_log_probs: torch.Tensor

    def joined(self) -> torch.Tensor:
        import torch

        return torch.cat([self.observations, self.actions, self.following], dim=-1)


class Judged(NamedTuple):
    """What a rollout was worth: how much better than expected each step was, and the value that it should have had."""

    advantages: torch.Tensor
    returns: torch.Tensor


class FiniteCheck:
    """Asks on the host whether tensors are finite and counts the questions; switched off, it asks nothing."""

    def __init__(self, on: bool) -> None:
        self.on, self.reads = on, 0

    def __call__(self, *tensors: torch.Tensor) -> None:
        if not self.on:
            return
        for tensor in tensors:
            self.reads += 1
            if not bool(tensor.isfinite().all()):
                raise WrongResultError(
                    "a rollout led to numbers that are not finite", "Try dtype float64, or another device"
                )


def roll_out(
    policy: Network,
    transition: Network,
    start: torch.Tensor,
    steps: int,
    generator: torch.Generator,
    check: FiniteCheck,
) -> Rollout:
    """Act and follow the model's own predictions, step after step; nothing is learned from it directly."""
    import torch

    seen: list[tuple[torch.Tensor, ...]] = []
    observation = start
    with torch.no_grad():
        for _ in range(steps):
            head = policy(observation)
            action = sample(ACTION, head, generator)
            action_log_prob = log_prob(ACTION, head, action)
            check(head, action, action_log_prob)
            moved = transition(torch.cat([observation, action], dim=-1))
            following = sample(OBSERVATION, moved, generator)
            following_log_prob = log_prob(OBSERVATION, moved, following)
            check(moved, following, following_log_prob)
            seen.append((observation, head, action, action_log_prob, following, following_log_prob))
            observation = following
        return Rollout(*(torch.stack(each) for each in zip(*seen, strict=True)))


def matcher_loss(matcher: Network, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """How badly the recorded and the rolled out transitions are told apart."""
    import torch

    loss = torch.nn.functional.binary_cross_entropy
    looks_real, looks_made = matcher(real), matcher(made)
    return loss(looks_real, torch.ones_like(looks_real)) + loss(looks_made, torch.zeros_like(looks_made))


def imitation_reward(matcher: Network, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """For passing as recorded, and for staying near what was recorded."""
    distance = (made - real).abs().mean(dim=-1)
    return _MATCHER_SHARE * matcher(made).squeeze(-1) - (1 - _MATCHER_SHARE) * distance


def task_reward(rollout: Rollout) -> torch.Tensor:
    """For a high first column, at little effort."""
    effort = rollout.actions[..., : ACTION.numbers].square().mean(dim=-1)
    return rollout.following[..., 0] - 0.1 * effort


def judge(value: Network, rollout: Rollout, rewards: torch.Tensor) -> Judged:
    """Generalised advantage estimates; the advantages are brought to mean 0 and spread 1."""
    import torch

    values = value(torch.cat([rollout.observations, rollout.following[-1:]])).squeeze(-1)
    surprise = rewards + _DISCOUNT * values[1:] - values[:-1]
    advantage = torch.zeros_like(surprise[0])
    advantages = torch.empty_like(surprise)
    for step in reversed(range(len(surprise))):
        advantage = surprise[step] + _DISCOUNT * _TRACE * advantage
        advantages[step] = advantage
    spread = advantages.std() + 1e-6
    return Judged((advantages - advantages.mean()) / spread, advantages + values[:-1])


def _clipped(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    import torch

    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


def venv_loss(networks: Networks, rollout: Rollout, judged: Judged) -> torch.Tensor:
    """Of both networks that act in the virtual environment, the policy and the transition, and of the value."""
    import torch

    acted = log_prob(ACTION, networks.policy(rollout.observations), rollout.actions)
    moved = networks.transition(torch.cat([rollout.observations, rollout.actions], dim=-1))
    followed = log_prob(OBSERVATION, moved, rollout.following)
    wrong = (networks.value(rollout.observations).squeeze(-1) - judged.returns).square().mean()
    return (
        _clipped(acted, rollout.action_log_probs, judged.advantages)
        + _clipped(followed, rollout.following_log_probs, judged.advantages)
        + _VENV_VALUE_WEIGHT * wrong
    )


def policy_loss(policy: Network, value: Network, rollout: Rollout, judged: Judged) -> torch.Tensor:
    """Of a policy that is held near the one that acted, and of its value."""
    head = policy(rollout.observations)
    acted = log_prob(ACTION, head, rollout.actions)
    moved_away = divergence(ACTION, rollout.action_heads, head).mean()
    wrong = (value(rollout.observations).squeeze(-1) - judged.returns).square().mean()
    return (
        _clipped(acted, rollout.action_log_probs, judged.advantages)
        + _DIVERGENCE_WEIGHT * moved_away
        + _POLICY_VALUE_WEIGHT * wrong
    )


def descend(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    """One step down the loss."""
    optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def one_step_error(transition: Network, windows: torch.Tensor) -> torch.Tensor:
    """How far off the next observation is on average, told from the recorded observation and action before it."""
    import torch

    size = OBSERVATION.encoded
    with torch.no_grad():
        told = expected(OBSERVATION, transition(windows[..., :-size]))
        return (told - windows[..., -size:]).abs().mean()
