"""The two workloads that are published for several workers: their nets, their jobs, and what they come to."""

from __future__ import annotations

import math

import pytest

from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.mnist_ddp_mlp import Params as MlpParams
from torchmark.workloads.mnist_ddp_sigmoid import Params as SigmoidParams
from torchmark.workloads.mnist_ddp_sigmoid import binary_cross_entropy


def prepare(name: str, params: object, **changes: object) -> Step:
    return find_workload(name).prepare(params, Setting(mode="train", **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "params", "workers", "parameters", "steps"),
    [
        ("mnist-ddp-sigmoid", SigmoidParams(), 2, 407_061, 4_690),
        ("mnist-ddp-mlp", MlpParams(), 4, 203_530, 2_350),
    ],
)
def test_nets_and_jobs_are_those_of_the_publication(
    name: str, params: SigmoidParams | MlpParams, workers: int, parameters: int, steps: int
) -> None:
    workload = find_workload(name)
    assert (workload.default_workers, params.batch) == (workers, 64)
    every = type(params)(batch=params.batch * workers)  # one worker that does what all of them do together
    step = prepare(name, every)
    assert step.job_steps == steps
    assert step.metrics is not None
    step.run()
    assert step.metrics()["parameters"] == parameters
    shared = workload.work(params, Setting(mode="train", world_size=workers))
    assert shared is not None
    assert (shared.items, shared.flops) == (step.work.items, step.work.flops)


def test_the_mlp_learns_within_its_epochs() -> None:
    step = prepare("mnist-ddp-mlp", MlpParams(batch=4 * 64))
    for _ in range(2 * step.job_steps // 10):
        step.run()
    assert step.metrics is not None
    assert step.metrics()["accuracy"] >= 0.97


def test_the_loss_with_one_output_is_the_formula_and_stays_finite_where_it_saturates() -> None:
    import torch

    chances, digits = torch.tensor([[0.25], [0.5]]), torch.tensor([3, 0])
    by_hand = -((3 * math.log(0.25) - 2 * math.log(0.75)) + math.log(0.5)) / 2
    assert float(binary_cross_entropy(chances, digits)) == pytest.approx(by_hand)
    likely, target = torch.tensor([[0.2], [0.9]]), torch.tensor([0, 1])
    usual = torch.nn.functional.binary_cross_entropy(likely, target.float().unsqueeze(1))
    assert float(binary_cross_entropy(likely, target)) == pytest.approx(float(usual))
    certain = torch.tensor([[1.0], [0.0]], requires_grad=True)
    binary_cross_entropy(certain, digits).backward()
    assert certain.grad is not None
    assert bool(certain.grad.isfinite().all())


def test_the_network_with_one_output_moves_as_its_loss_makes_it() -> None:
    step = prepare("mnist-ddp-sigmoid", SigmoidParams(images=600))
    assert step.metrics is not None
    step.run()
    first = step.metrics()["loss"]
    for _ in range(50):
        step.run()
    later = step.metrics()
    assert later["loss"] < first
    assert "accuracy" not in later
