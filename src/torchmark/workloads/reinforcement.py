"""The reinforcement-learning job: its records, networks, distributions, rollouts and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torchmark.errors import WrongResultError

if TYPE_CHECKING:
    import torch

Network = Callable[["torch.Tensor"], "torch.Tensor"]

HIDDEN_LAYERS = 4  # in a residual network these are blocks of two layers each
TRAJECTORIES = 100
TRANSITIONS = 30  # in each trajectory
WINDOW = 10  # steps that are rolled out, and compared, at once
_NOISE = 0.05
_LOG_SPREAD_AT_ZERO = -1.0  # a head that says 0 means a spread of 0.37: the data lies within ±1
_LOG_SPREAD_BOUNDS = (-5.0, 1.0)
PASSES = 2
CLIP = 0.2
_DISCOUNT = 0.99
_TRACE = 0.95  # lambda of the generalised advantage estimate
_MATCHER_SHARE = 0.75
_VENV_VALUE_WEIGHT = 0.5
_POLICY_VALUE_WEIGHT = 0.001
_DIVERGENCE_WEIGHT = 1.0


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


# The recorded trajectories: a made-up system and policy.


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


# Distributions over mixed columns, as a network's head describes them: normal numbers and one-hot categories.


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


# Rollouts, rewards, advantages, and the losses that are minimised.


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
    """How badly the recorded and the rolled out transitions are separated."""
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
