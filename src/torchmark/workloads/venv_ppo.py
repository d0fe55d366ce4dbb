"""Two-stage offline reinforcement learning: tiny kernels, long rollouts and a host that keeps asking for results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Pairs, Setting, Stage, Step, Tensors, Workload
from torchmark.workloads.model import OptimizerSpec
from torchmark.workloads.model_step import first_descents, load_values
from torchmark.workloads.reference import exact_model, exactly, fingerprints
from torchmark.workloads.reinforcement import (
    ACTION,
    OBSERVATION,
    PASSES,
    SHAPES,
    WINDOW,
    FiniteCheck,
    Networks,
    Rollout,
    descend,
    divergence,
    imitation_reward,
    judge,
    log_prob,
    make_network,
    make_windows,
    matcher_loss,
    one_step_error,
    policy_loss,
    roll_out,
    task_reward,
    venv_loss,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

VENV_EPOCHS = 50
POLICY_EPOCHS = 20
_GRAPHS = 2
_VALIDATIONS = 2  # each graph is rolled out on both halves of the records
_OPTIMIZER, _MATCHER_OPTIMIZER = OptimizerSpec("Adam", 4e-5), OptimizerSpec("Adam", 6e-4)
_CHECKED_WINDOWS = 2
# How much less likely an action was when it was taken than it is now. Some are clipped and some are not, and none is so
# near to the edge that rounding could decide.
_LESS_LIKELY = (-0.5, -0.1, 0.1, 0.5)


class Params(Struct, frozen=True):
    """Rows of each stage's rollouts, steps of the second one's, width of all networks, and whether to ask the host."""

    batch: Annotated[int, Meta(ge=2, le=1_048_576)] = 1024
    policy_batch: Annotated[int, Meta(ge=2, le=1_048_576)] = 256
    horizon: Annotated[int, Meta(ge=2, le=10_000)] = 100
    width: Annotated[int, Meta(ge=1, le=16_384)] = 256
    checks: bool = True


class VenvPpo(Workload):
    """A clean-room job of the same computational shape as a commercial SDK's, not the same code: its times can be set
    beside published ones of that SDK, but a ratio of the two would mean nothing.

    One step is one epoch of learning a virtual environment, for a training and a validation graph: a rollout of ten
    steps from recorded observations, one update of the matcher that tells recorded from rolled out, two PPO passes
    over policy, transition and value, and rollouts on both halves of the records. The job is 50 of them and then 20
    policy epochs, in which one policy for each graph is learned by PPO inside its environment.

    With `checks` the host reads at every step of every rollout whether each tensor is finite. Numbers shorter than
    float32 are not offered: a step of this learning rate would vanish in rounding and nothing would be learned.
    """

    name = "venv-ppo"
    modes = ("train",)
    params = Params
    tiny = Params(batch=8, policy_batch=4, horizon=5, width=16)
    dtypes = ("float32", "float64")

    def work(self, params: Params, setting: Setting) -> Work:
        """Only matrix products count as FLOPs. Bytes: weights read and written once, one batch of records read."""
        rows = params.batch * WINDOW
        forward = {kind: shape.forward_products(params.width) for kind, shape in SHAPES.items()}
        training = {kind: shape.training_products(params.width) for kind, shape in SHAPES.items()}
        products = (
            (1 + _VALIDATIONS) * rows * (forward["policy"] + forward["transition"])
            + 2 * rows * training["matcher"]
            + rows * forward["matcher"]
            + (rows + params.batch) * forward["value"]
            + PASSES * rows * (training["policy"] + training["transition"] + training["value"])
        )
        weights = sum(shape.parameter_count(params.width) for shape in SHAPES.values())
        values = 2 * weights + (1 + _VALIDATIONS) * rows * SHAPES["matcher"].inputs
        return Work(
            items=1,
            unit="epoch",
            flops=2 * _GRAPHS * products,
            bytes=_GRAPHS * values * setting.item_bytes,
        )

    def prepare(self, params: Params, setting: Setting) -> Step:
        job = _Job(params, setting)
        return Step(
            run=job.learn_environment,
            work=self.work(params, setting),
            outputs=job.outputs,
            reference=lambda: _reference(params, setting),
            copies=job.copies,
            job_steps=VENV_EPOCHS,
            stages=(Stage("policy epoch", POLICY_EPOCHS, job.learn_policies),),
            metrics=job.metrics,
        )


class _Graph(NamedTuple):
    """The networks of one half of the records, as modules and as they are called, and what changes them."""

    modules: tuple[nn.Module, ...]
    networks: Networks
    optimizer: torch.optim.Optimizer
    matcher_optimizer: torch.optim.Optimizer


class _Learner(NamedTuple):
    """A policy to be learned inside a virtual environment, with its own value."""

    policy: Callable[..., torch.Tensor]
    value: Callable[..., torch.Tensor]
    optimizer: torch.optim.Optimizer


class _Job:
    """Everything that lives as long as the job; `learn_environment` and `learn_policies` are its two kinds of step."""

    def __init__(self, params: Params, setting: Setting) -> None:
        import torch

        self.params, self.setting = params, setting
        self.windows = setting.feed(_make_windows(setting))
        modules, policies = _make_modules(params, setting)
        every = [module for group in (*modules, *policies) for module in group]
        self.made = [print_ for module in every for print_ in fingerprints(module)]
        self.graphs = [_make_graph(each, setting) for each in modules]
        self.learners = [_make_learner(each, setting) for each in policies]
        self.placed = [print_ for module in every for print_ in fingerprints(module)]  # before the first step learns
        # One generator for each stage, so that neither changes what the other draws.
        self.venv_generator, self.policy_generator = (
            torch.Generator(setting.device).manual_seed(setting.seed + offset) for offset in (1, 2)
        )
        self.venv_check, self.policy_check = FiniteCheck(params.checks), FiniteCheck(params.checks)
        self.venv_epochs = self.policy_epochs = 0

    def learn_environment(self) -> torch.Tensor:
        """One epoch of the first stage: how far both graphs' rollouts stay from the records of both halves."""
        import torch

        self.venv_epochs += 1
        halves = self.windows()
        errors = []
        for graph, half in zip(self.graphs, halves, strict=True):
            self._learn_graph(graph, self._draw(half))
            errors += [self._validate(graph, self._draw(each)) for each in halves]
        return self.setting.drain(torch.stack(errors))

    def learn_policies(self) -> torch.Tensor:
        """One epoch of the second stage: the mean reward of each policy before it learned from it."""
        import torch

        self.policy_epochs += 1
        halves = self.windows()
        rewards = [
            self._learn_policy(learner, graph.networks, half)
            for learner, graph, half in zip(self.learners, self.graphs, halves, strict=True)
        ]
        return self.setting.drain(torch.stack(rewards))

    def _draw(self, half: torch.Tensor) -> torch.Tensor:
        """A batch of recorded windows, steps first."""
        import torch

        size = (self.params.batch,)
        chosen = torch.randint(len(half), size, generator=self.venv_generator, device=half.device)
        return half[chosen].transpose(0, 1)

    def _roll_out(self, networks: Networks, real: torch.Tensor) -> Rollout:
        start = real[0, :, : OBSERVATION.encoded]
        return roll_out(networks.policy, networks.transition, start, WINDOW, self.venv_generator, self.venv_check)

    def _learn_graph(self, graph: _Graph, real: torch.Tensor) -> None:
        import torch

        networks = graph.networks
        rollout = self._roll_out(networks, real)
        made = rollout.joined()
        descend(graph.matcher_optimizer, lambda: matcher_loss(networks.matcher, real, made))
        with torch.no_grad():
            judged = judge(networks.value, rollout, imitation_reward(networks.matcher, real, made))
        for _ in range(PASSES):
            descend(graph.optimizer, lambda: venv_loss(networks, rollout, judged))

    def _validate(self, graph: _Graph, real: torch.Tensor) -> torch.Tensor:
        return (self._roll_out(graph.networks, real).joined() - real).abs().mean()

    def _learn_policy(self, learner: _Learner, venv: Networks, half: torch.Tensor) -> torch.Tensor:
        import torch

        size, generator = (self.params.policy_batch,), self.policy_generator
        chosen = torch.randint(len(half), size, generator=generator, device=half.device)
        start = half[chosen, 0, : OBSERVATION.encoded]
        rollout = roll_out(learner.policy, venv.transition, start, self.params.horizon, generator, self.policy_check)
        rewards = task_reward(rollout)
        with torch.no_grad():
            judged = judge(learner.value, rollout, rewards)
        for _ in range(PASSES):
            descend(learner.optimizer, lambda: policy_loss(learner.policy, learner.value, rollout, judged))
        return rewards.mean()

    def outputs(self) -> Tensors:
        """What the first graph's networks, losses and optimisers make of known rows from the first weights."""
        import torch

        graph = self.graphs[0]
        weights, optimizers = _weights_of(graph.modules), (graph.optimizer, graph.matcher_optimizer)
        kept = [weight.detach().clone() for weight in weights]
        load_values(weights, self._first_weights())
        rows = self.setting.place(_make_windows(self.setting)[0, :_CHECKED_WINDOWS])
        results = _known_results(graph.networks, weights, rows.transpose(0, 1))
        for weight, gradient in zip(weights, results[-len(weights) :], strict=True):
            weight.grad = gradient
        descents = [descent.sum() for descent in first_descents(optimizers, weights)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        load_values(weights, kept)
        return [*results, torch.stack(descents)]

    def _first_weights(self) -> Tensors:
        first = _make_modules(self.params, self.setting)[0][0]
        return _weights_of([self.setting.place_model(module) for module in first])

    def copies(self) -> Pairs:
        """The records, and fingerprints of all weights that the job starts from."""
        return [(self.windows(), _make_windows(self.setting)), *zip(self.placed, self.made, strict=True)]

    def metrics(self) -> dict[str, float]:
        """The error is that of each graph on the half that it did not learn from."""
        unseen = zip(self.graphs, reversed(list(self.windows())), strict=True)
        errors = [float(one_step_error(graph.networks.transition, half)) for graph, half in unseen]
        counts = {f"{kind}_parameters": SHAPES[kind].parameter_count(self.params.width) for kind in SHAPES}
        return {
            "host_reads": self.venv_check.reads / max(self.venv_epochs, 1),
            "policy_host_reads": self.policy_check.reads / max(self.policy_epochs, 1),
            "one_step_error": sum(errors) / len(errors),
            **counts,
        }


def _make_windows(setting: Setting) -> torch.Tensor:
    return make_windows(setting.generator()).to(setting.torch_dtype)


def _make_modules(params: Params, setting: Setting) -> tuple[list[list[nn.Module]], list[list[nn.Module]]]:
    """The networks of both graphs, and policy and value of both learners, on the host; the same for the same seed."""
    with setting.seeded():
        graphs = [[make_network(kind, params.width) for kind in SHAPES] for _ in range(_GRAPHS)]
        learners = [[make_network(kind, params.width) for kind in ("policy", "value")] for _ in range(_GRAPHS)]
    for module in (module for each in (*graphs, *learners) for module in each):
        module.to(setting.torch_dtype)
    return graphs, learners


def _make_graph(modules: list[nn.Module], setting: Setting) -> _Graph:
    placed = [setting.place_model(module) for module in modules]
    networks = Networks(*(setting.compiled(module) for module in placed))
    policy, transition, matcher, value = placed
    return _Graph(
        tuple(placed),
        networks,
        _OPTIMIZER.make(_weights_of([policy, transition, value])),
        _MATCHER_OPTIMIZER.make(matcher.parameters()),
    )


def _make_learner(modules: list[nn.Module], setting: Setting) -> _Learner:
    placed = [setting.place_model(module) for module in modules]
    policy, value = (setting.compiled(module) for module in placed)
    return _Learner(policy, value, _OPTIMIZER.make(_weights_of(placed)))


def _reference(params: Params, setting: Setting) -> Tensors:
    import torch

    modules = [exact_model(module) for module in _make_modules(params, setting)[0][0]]
    rows = _make_windows(setting)[0, :_CHECKED_WINDOWS].double()
    weights = _weights_of(modules)
    ways = [_MATCHER_OPTIMIZER if kind == "matcher" else _OPTIMIZER for kind in SHAPES]
    moves = [way.first_move for way, module in zip(ways, modules, strict=True) for _ in module.parameters()]
    with exactly():
        results = _known_results(Networks(*modules), weights, rows.transpose(0, 1))
        gradients = zip(moves, results[-len(weights) :], strict=True)
        return [*results, torch.stack([(gradient * move(gradient)).sum() for move, gradient in gradients])]


def _weights_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """All weights, in a fixed order."""
    return [weight for module in modules for weight in module.parameters()]


def _known_results(networks: Networks, weights: list[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
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
