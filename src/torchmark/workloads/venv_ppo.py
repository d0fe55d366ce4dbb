"""Two-stage offline reinforcement learning: tiny kernels, long rollouts, and a host that keeps asking for results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from torchmark.errors import WrongResultError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload
from torchmark.workloads.model import OptimizerSpec, first_descents, load_values
from torchmark.workloads.reference import exact_model, exactly, recorded

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Network = Callable[[Tensor], Tensor]

VENV_EPOCHS, POLICY_EPOCHS = 50, 20
_GRAPHS, _PASSES = 2, 2
_VALIDATIONS = 2  # each graph is rolled out on both halves of the records
_HIDDEN_LAYERS = 4  # in a residual network these are blocks of two layers each
_TRAJECTORIES, _TRANSITIONS = 100, 30  # and transitions in each of them
_WINDOW = 10  # steps of a rollout
_NOISE = 0.05
_LOG_SPREAD_AT_ZERO = -1.0  # a head of 0 means a spread of 0.37, as the data lies within ±1
_CLIP = 0.2
_DISCOUNT, _LAMBDA = 0.99, 0.95  # of the generalised advantage estimate
_MATCHER_SHARE = 0.75
_VENV_VALUE_WEIGHT, _POLICY_VALUE_WEIGHT = 0.5, 0.001
_OPTIMIZER, _MATCHER_OPTIMIZER = OptimizerSpec("Adam", 4e-5), OptimizerSpec("Adam", 6e-4)
_CHECKED_WINDOWS = 2
# How much less likely checked actions were when taken: some are clipped, none so narrowly that rounding decides.
_LESS_LIKELY = (-0.5, -0.1, 0.1, 0.5)


class Params(Struct, frozen=True):
    batch: Annotated[int, Meta(ge=2, le=1_048_576)] = 1024  # rows of a rollout in the first stage
    policy_batch: Annotated[int, Meta(ge=2, le=1_048_576)] = 256  # in the second one
    horizon: Annotated[int, Meta(ge=2, le=10_000)] = 100  # steps of a rollout in the second one
    width: Annotated[int, Meta(ge=1, le=16_384)] = 256  # of all networks
    checks: bool = True  # whether the host reads after every step


class VenvPpo(Workload):
    """A clean-room job of the computational shape of a commercial SDK's. Its times can be shown next to that SDK's
    published ones, but it is not the same code, and their ratio means nothing.

    One step is one epoch of learning a virtual environment, for a training and a validation graph: a rollout of ten
    steps from recorded observations, one update of the matcher that separates recorded from rolled-out, two PPO passes
    over policy, transition and value, and rollouts on both halves of the records. The job is 50 of them, then 20 epochs
    in which each graph learns a policy by PPO inside its environment.

    With `checks` the host reads at every step of every rollout whether each tensor is finite. dtypes below float32
    would swallow the steps of this learning rate."""

    name = "venv-ppo"
    modes = ("train",)
    tiny = Params(batch=8, policy_batch=4, horizon=5, width=16)
    dtypes = ("float32", "float64")

    def work(self, params: Params, setting: Setting) -> Work:
        """Only matrix products count as FLOPs. Bytes: weights read and written once, one batch of records read."""
        rows, width, products = params.batch * _WINDOW, params.width, 0
        rolled_out = (1 + _VALIDATIONS) * rows
        evaluated = {"policy": rolled_out, "transition": rolled_out, "matcher": rows, "value": rows + params.batch}
        for kind, shape in SHAPES.items():
            forward = sum(math.prod(edge) for edge in shape.layers(width))
            at_input = shape.inputs * width * (2 if shape.residual else 1)  # whose gradient is not computed
            learned = (2 if kind == "matcher" else _PASSES) * rows  # the matcher's: recorded and rolled out
            products += evaluated[kind] * forward + learned * (3 * forward - at_input)
        weights = sum(shape.parameter_count(width) for shape in SHAPES.values())
        values = _GRAPHS * (2 * weights + rolled_out * SHAPES["matcher"].inputs)
        return Work(items=1, unit="epoch", flops=2 * _GRAPHS * products, bytes=values * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        job = _Job(params, setting)
        return Step(
            job.learn_environment,
            self.work(params, setting),
            job.outputs,
            job.reference,
            copies=lambda: [(job.windows(), job.records()), *job.prints],
            job_steps=VENV_EPOCHS,
            stages=(Stage("policy epoch", POLICY_EPOCHS, job.learn_policies),),
            metrics=job.metrics,
        )


class Columns(NamedTuple):
    """Numbers within ±1 and one-hot categories. A network's head gives mean and spread of each number, and a weight for
    every choice of a category."""

    numbers: int
    categories: tuple[int, ...]  # choices of each

    @property
    def encoded(self) -> int:
        return self.numbers + sum(self.categories)

    def encode(self, values: Tensor) -> Tensor:
        """Numbers within ±1, and for each category the choice with the highest value."""
        import torch

        numbers, *categories = values.split([self.numbers, *self.categories], dim=-1)  # type: ignore[no-untyped-call]
        return torch.cat([numbers.tanh(), *map(_one_hot, categories)], dim=-1)

    def read(self, head: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Mean and logarithm of the spread of every number, logarithms of the probabilities of every category."""
        sizes = [self.numbers, self.numbers, *self.categories]
        mean, spread, *weights = head.split(sizes, dim=-1)  # type: ignore[no-untyped-call]
        log_spread = (spread + _LOG_SPREAD_AT_ZERO).clamp(-5.0, 1.0)
        return mean.tanh(), log_spread, [weight.log_softmax(dim=-1) for weight in weights]

    def sample(self, head: Tensor, generator: torch.Generator) -> Tensor:
        import torch

        mean, log_spread, categories = self.read(head)
        options: dict[str, Any] = {"generator": generator, "device": head.device, "dtype": head.dtype}
        drawn = [mean + log_spread.exp() * torch.randn(mean.shape, **options)]
        # The Gumbel trick: no draw by the host.
        drawn += [_one_hot(choices - (-torch.rand(choices.shape, **options).log()).log()) for choices in categories]
        return torch.cat(drawn, dim=-1)

    def log_prob(self, head: Tensor, encoded: Tensor) -> Tensor:
        mean, log_spread, categories = self.read(head)
        numbers, *chosen = encoded.split([self.numbers, *self.categories], dim=-1)  # type: ignore[no-untyped-call]
        distance: Tensor = (numbers - mean) / log_spread.exp()
        total = (-0.5 * distance.square() - log_spread - 0.5 * math.log(2 * math.pi)).sum(dim=-1)
        return sum(((choices * hot).sum(dim=-1) for choices, hot in zip(categories, chosen, strict=True)), total)

    def divergence(self, before: Tensor, after: Tensor) -> Tensor:
        mean, log_spread, categories = self.read(before)
        new_mean, new_log_spread, new_categories = self.read(after)
        ratio = (2 * (log_spread - new_log_spread)).exp()
        distance = ((mean - new_mean) / new_log_spread.exp()).square()
        total = (0.5 * (ratio + distance - 1) + new_log_spread - log_spread).sum(dim=-1)
        pairs = zip(categories, new_categories, strict=True)
        return sum(((old.exp() * (old - new)).sum(dim=-1) for old, new in pairs), total)


def _one_hot(values: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.one_hot(values.argmax(dim=-1), values.shape[-1]).to(values.dtype)


OBSERVATION, ACTION = Columns(4, (3, 3)), Columns(2, (3, 4))


class Shape(NamedTuple):
    """The columns that a network reads and returns."""

    inputs: int
    outputs: int
    residual: bool = False

    def layers(self, width: int) -> list[tuple[int, int]]:
        """Inputs and outputs of every layer, those of a residual network with the skip at its input."""
        at_input, inside = (2, 2 * _HIDDEN_LAYERS - 1) if self.residual else (1, _HIDDEN_LAYERS - 1)
        return [*[(self.inputs, width)] * at_input, *[(width, width)] * inside, (width, self.outputs)]

    def parameter_count(self, width: int) -> int:
        return sum((wide + 1) * narrow for wide, narrow in self.layers(width))


SHAPES = {
    "policy": Shape(OBSERVATION.encoded, ACTION.numbers + ACTION.encoded, residual=True),
    "transition": Shape(OBSERVATION.encoded + ACTION.encoded, OBSERVATION.numbers + OBSERVATION.encoded, residual=True),
    "matcher": Shape(2 * OBSERVATION.encoded + ACTION.encoded, 1),
    "value": Shape(OBSERVATION.encoded, 1),
}


def make_network(kind: str, width: int) -> torch.nn.Module:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.skip = nn.Identity() if inputs == width else nn.Linear(inputs, width)

        def forward(self, rows: Tensor) -> Tensor:
            return self.body(rows) + self.skip(rows)  # type: ignore[no-any-return]

    shape = SHAPES[kind]
    if shape.residual:
        blocks = [Block(shape.inputs), *(Block(width) for _ in range(_HIDDEN_LAYERS - 1))]
        return nn.Sequential(*blocks, nn.Linear(width, shape.outputs))
    activation = nn.LeakyReLU if kind == "value" else nn.ReLU
    *edges, last = shape.layers(width)
    layers = [module for edge in edges for module in (nn.Linear(*edge), activation())]
    return nn.Sequential(*layers, nn.Linear(*last), *([nn.Sigmoid()] if kind == "matcher" else []))


def make_windows(generator: torch.Generator) -> Tensor:
    """Every ten transitions in a row of the trajectories of a made-up system and policy: half, window, step,
    (observation, action, next observation). The halves share no trajectory."""
    import torch

    def respond(inputs: int, columns: Columns) -> Tensor:  # linear; the last row is the constant
        return torch.randn(inputs + 1, columns.encoded, generator=generator) / math.sqrt(inputs)

    def react(columns: Columns, rows: Tensor, response: Tensor) -> Tensor:
        noise = _NOISE * torch.randn(len(rows), columns.encoded, generator=generator)
        return columns.encode(rows @ response[:-1] + 2 * response[-1] + noise)

    acting = respond(OBSERVATION.encoded, ACTION)
    moving = respond(OBSERVATION.encoded + ACTION.encoded, OBSERVATION)
    observation = OBSERVATION.encode(torch.randn(_TRAJECTORIES, OBSERVATION.encoded, generator=generator))
    steps = []
    for _ in range(_TRANSITIONS):
        action = react(ACTION, observation, acting)
        following = react(OBSERVATION, torch.cat([observation, action], dim=-1), moving)
        steps.append(torch.cat([observation, action, following], dim=-1))
        observation = following
    windows = torch.stack(steps, dim=1).unfold(1, _WINDOW, 1).transpose(2, 3)
    return windows.reshape(2, -1, _WINDOW, windows.shape[-1]).contiguous()


class Rollout(NamedTuple):
    """Each is of step, row, columns."""

    observations: Tensor
    action_heads: Tensor
    actions: Tensor
    action_log_probs: Tensor
    following: Tensor
    following_log_probs: Tensor


class Networks(NamedTuple):
    """A graph's networks, with their rewards and losses."""

    policy: Network
    transition: Network
    matcher: Network
    value: Network

    def matcher_loss(self, real: Tensor, made: Tensor) -> Tensor:
        import torch

        loss = torch.nn.functional.binary_cross_entropy
        looks_real, looks_made = self.matcher(real), self.matcher(made)
        return loss(looks_real, torch.ones_like(looks_real)) + loss(looks_made, torch.zeros_like(looks_made))

    def imitation_reward(self, real: Tensor, made: Tensor) -> Tensor:
        likeness, distance = self.matcher(made).squeeze(-1), (made - real).abs().mean(dim=-1)
        return _MATCHER_SHARE * likeness - (1 - _MATCHER_SHARE) * distance

    def judge(self, rollout: Rollout, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised advantage estimates of each step, and the value that it should have had."""
        import torch

        with torch.no_grad():
            values = self.value(torch.cat([rollout.observations, rollout.following[-1:]])).squeeze(-1)
            surprise = rewards + _DISCOUNT * values[1:] - values[:-1]
            advantage, advantages = torch.zeros_like(surprise[0]), torch.empty_like(surprise)
            for step in reversed(range(len(surprise))):
                advantage = surprise[step] + _DISCOUNT * _LAMBDA * advantage
                advantages[step] = advantage
            return (advantages - advantages.mean()) / (advantages.std() + 1e-6), advantages + values[:-1]

    def ppo_loss(self, rollout: Rollout, advantages: Tensor, returns: Tensor, inside: bool = False) -> Tensor:
        """Of policy and value; in the first stage also of the transition, inside it of how far the policy has moved."""
        import torch

        def clipped(new: Tensor, old: Tensor) -> Tensor:
            ratio = (new - old).exp()
            return -(ratio * advantages).minimum(ratio.clamp(1 - _CLIP, 1 + _CLIP) * advantages).mean()

        head = self.policy(rollout.observations)
        acting = clipped(ACTION.log_prob(head, rollout.actions), rollout.action_log_probs)
        wrong = (self.value(rollout.observations).squeeze(-1) - returns).square().mean()
        if inside:
            return acting + ACTION.divergence(rollout.action_heads, head).mean() + _POLICY_VALUE_WEIGHT * wrong
        moved = self.transition(torch.cat([rollout.observations, rollout.actions], dim=-1))
        followed = OBSERVATION.log_prob(moved, rollout.following)
        return acting + clipped(followed, rollout.following_log_probs) + _VENV_VALUE_WEIGHT * wrong


class Simulator:
    """Rollouts of one stage, with random numbers that the other one does not change."""

    def __init__(self, setting: Setting, stage: int, checks: bool) -> None:
        import torch

        self.generator = torch.Generator(setting.device).manual_seed(setting.seed + stage)
        self.checks, self.reads, self.epochs = checks, 0, 0

    def choose(self, records: Tensor, count: int) -> Tensor:
        import torch

        return records[torch.randint(len(records), (count,), generator=self.generator, device=records.device)]

    def check(self, *tensors: Tensor) -> None:
        """Let the host read whether each tensor is finite, if `checks` are on."""
        for tensor in tensors if self.checks else ():
            self.reads += 1
            if not bool(tensor.isfinite().all()):
                raise WrongResultError("numbers of a rollout are not finite", "Try dtype float64, or another device")

    def roll_out(self, networks: Networks, start: Tensor, steps: int) -> Rollout:
        import torch

        seen, observation = [], start
        with torch.no_grad():
            for _ in range(steps):
                head = networks.policy(observation)
                action = ACTION.sample(head, self.generator)
                action_log_prob = ACTION.log_prob(head, action)
                self.check(head, action, action_log_prob)
                moved = networks.transition(torch.cat([observation, action], dim=-1))
                following = OBSERVATION.sample(moved, self.generator)
                following_log_prob = OBSERVATION.log_prob(moved, following)
                self.check(moved, following, following_log_prob)
                seen.append((observation, head, action, action_log_prob, following, following_log_prob))
                observation = following
            return Rollout(*(torch.stack(each) for each in zip(*seen, strict=True)))


def _descend(optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor], *arguments: Any) -> None:
    optimizer.zero_grad()
    loss(*arguments).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class _Graph(NamedTuple):
    """What learns from one half of the records."""

    networks: Networks
    learner: Networks  # the same with another policy and value, which learn inside the environment
    optimizer: torch.optim.Optimizer
    matcher_optimizer: torch.optim.Optimizer
    policy_optimizer: torch.optim.Optimizer


class _Job:
    """The state of the job, and an epoch of each stage: `learn_environment` and `learn_policies`."""

    def __init__(self, params: Params, setting: Setting) -> None:
        self.params, self.setting = params, setting
        self.windows = setting.feed(self.records())
        self.modules, self.graphs, count = self._make_modules(), [], len(SHAPES)
        pairs = recorded(self.modules)
        setting.place_model(self.modules)
        self.prints = pairs()  # before the first step learns
        for index in range(_GRAPHS):
            ours, learners = self.modules[count * index :][:count], self.modules[count * _GRAPHS + 2 * index :][:2]
            optimizers = (
                _OPTIMIZER.make([*ours[:2].parameters(), *ours[3].parameters()]),
                _MATCHER_OPTIMIZER.make(ours[2].parameters()),
                _OPTIMIZER.make(learners.parameters()),
            )
            networks, (policy, value) = Networks(*map(setting.compiled, ours)), map(setting.compiled, learners)
            self.graphs.append(_Graph(networks, networks._replace(policy=policy, value=value), *optimizers))
        self.venv, self.inside = (Simulator(setting, stage, params.checks) for stage in (1, 2))

    def records(self) -> Tensor:
        return make_windows(self.setting.generator()).to(self.setting.torch_dtype)

    def _make_modules(self) -> nn.ModuleList:
        """The networks of both graphs, and then the policy and value that each learns, on the host."""
        from torch import nn

        kinds = (*SHAPES, *SHAPES, "policy", "value", "policy", "value")
        with self.setting.seeded():
            return nn.ModuleList(make_network(kind, self.params.width) for kind in kinds).to(self.setting.torch_dtype)

    def learn_environment(self) -> Tensor:
        """Returns how far both graphs' rollouts are from the records of both halves."""
        import torch

        self.venv.epochs += 1
        halves, errors = self.windows(), []

        def roll_out(networks: Networks, half: Tensor) -> tuple[Rollout, Tensor, Tensor]:
            """From the beginnings of recorded windows, with these and the rollout in their form."""
            real = self.venv.choose(half, self.params.batch).transpose(0, 1)
            rollout = self.venv.roll_out(networks, real[0, :, : OBSERVATION.encoded], _WINDOW)
            return rollout, real, torch.cat([rollout.observations, rollout.actions, rollout.following], dim=-1)

        for graph, half in zip(self.graphs, halves, strict=True):
            networks = graph.networks
            rollout, real, made = roll_out(networks, half)
            _descend(graph.matcher_optimizer, networks.matcher_loss, real, made)
            with torch.no_grad():
                rewards = networks.imitation_reward(real, made)
            judged = networks.judge(rollout, rewards)
            for _ in range(_PASSES):
                _descend(graph.optimizer, networks.ppo_loss, rollout, *judged)
            for each in halves:
                _, real, made = roll_out(networks, each)
                errors.append((made - real).abs().mean())
        return self.setting.drain(torch.stack(errors))

    def learn_policies(self) -> Tensor:
        """Returns the mean reward of each policy before it learned from it."""
        import torch

        self.inside.epochs += 1
        means = []
        for graph, half in zip(self.graphs, self.windows(), strict=True):
            start = self.inside.choose(half[:, 0, : OBSERVATION.encoded], self.params.policy_batch)
            rollout = self.inside.roll_out(graph.learner, start, self.params.horizon)
            effort = rollout.actions[..., : ACTION.numbers].square().mean(dim=-1)
            rewards = rollout.following[..., 0] - 0.1 * effort
            judged = graph.learner.judge(rollout, rewards)
            for _ in range(_PASSES):
                _descend(graph.policy_optimizer, graph.learner.ppo_loss, rollout, *judged, True)
            means.append(rewards.mean())
        return self.setting.drain(torch.stack(means))

    def outputs(self) -> Tensors:
        """Results of the first graph for known rows, with the first weights."""
        import torch

        graph, weights = self.graphs[0], [*self.modules[: len(SHAPES)].parameters()]
        kept = [weight.detach().clone() for weight in weights]
        load_values(weights, self.setting.place_model(self._make_modules()[: len(SHAPES)]).parameters())
        results = _known_results(graph.networks, weights, self.setting.place(self.records()))
        descents = first_descents((graph.optimizer, graph.matcher_optimizer), weights, results[-len(weights) :])
        load_values(weights, kept)
        return [*results, torch.stack([descent.sum() for descent in descents])]

    def reference(self) -> Tensors:
        import torch

        records, modules = self.records().double(), exact_model(self._make_modules()[: len(SHAPES)])
        specs = [_MATCHER_OPTIMIZER if kind == "matcher" else _OPTIMIZER for kind in SHAPES]
        networks = [*modules.children()]
        moves = [spec.first_move for spec, module in zip(specs, networks, strict=True) for _ in module.parameters()]
        with exactly():
            results = _known_results(Networks(*networks), [*modules.parameters()], records)
            gradients = zip(moves, results[-len(moves) :], strict=True)
            return [*results, torch.stack([(gradient * move(gradient)).sum() for move, gradient in gradients])]

    def metrics(self) -> dict[str, float]:
        """The error is that of the next observation, predicted by each graph for the half it did not learn from."""
        import torch

        size, errors = OBSERVATION.encoded, []
        for graph, half in zip(self.graphs, reversed([*self.windows()]), strict=True):
            with torch.no_grad():
                mean, _, categories = OBSERVATION.read(graph.networks.transition(half[..., :-size]))
                predicted = torch.cat([mean, *(choices.exp() for choices in categories)], dim=-1)
                errors.append(float((predicted - half[..., -size:]).abs().mean()))
        return {
            "host_reads": self.venv.reads / max(self.venv.epochs, 1),
            "policy_host_reads": self.inside.reads / max(self.inside.epochs, 1),
            "one_step_error": sum(errors) / len(errors),
            **{f"{kind}_parameters": shape.parameter_count(self.params.width) for kind, shape in SHAPES.items()},
        }


def _known_results(networks: Networks, weights: Sequence[Tensor], records: Tensor) -> list[Tensor]:
    """Heads, rewards, advantages, losses and their gradients. Recorded windows stand for a rollout, the same in
    opposite order for the records that it is compared with."""
    import torch

    rows = records[0, :_CHECKED_WINDOWS].transpose(0, 1)
    real, sizes = rows.flip(1), [OBSERVATION.encoded, ACTION.encoded, OBSERVATION.encoded]
    observations, actions, following = torch.split(rows, sizes, dim=-1)
    with torch.no_grad():
        head = networks.policy(observations)
        moved = networks.transition(torch.cat([observations, actions], dim=-1))
        acted, followed = ACTION.log_prob(head, actions), OBSERVATION.log_prob(moved, following)
        pattern = torch.tensor(_LESS_LIKELY, device=rows.device, dtype=rows.dtype)
        offsets = pattern.repeat(acted.numel() // len(_LESS_LIKELY) + 1)[: acted.numel()].view_as(acted)
        # The head that acted is half of today's, so that there is a divergence to speak of.
        rollout = Rollout(observations, head / 2, actions, acted + offsets, following, followed - offsets)
        rewards = networks.imitation_reward(real, rows)
        judged = networks.judge(rollout, rewards)
        moved_away = ACTION.divergence(rollout.action_heads, head)
    losses = [networks.matcher_loss(real, rows), *(networks.ppo_loss(rollout, *judged, each) for each in (False, True))]
    # Of their sum only, which holds every weight, and every error of a loss.
    gradients = torch.autograd.grad(sum(losses[1:], losses[0]), weights)
    return [head, moved, rewards, *judged, moved_away, *(loss.detach() for loss in losses), *gradients]
