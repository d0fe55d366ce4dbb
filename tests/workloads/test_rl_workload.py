"""The reinforcement-learning job has the networks, the host reads and the learning that it promises."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from torchmark.errors import WrongResultError
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.venv_ppo import SHAPES, Params, Simulator, make_network, make_windows

TINY = find_workload("venv-ppo").tiny


def prepare(params: Params = TINY, seed: int = 0) -> Step:  # type: ignore[assignment]
    return find_workload("venv-ppo").prepare(params, Setting(mode="train", seed=seed))


def metrics(step: Step) -> dict[str, float]:
    assert step.metrics
    return step.metrics()


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "parameters"),
    [
        ("policy", 10, 11, 469_003),
        ("transition", 19, 14, 474_382),
        ("matcher", 29, 1, 205_313),
        ("value", 10, 1, 200_449),
    ],
)
def test_networks_have_their_sizes(kind: str, inputs: int, outputs: int, parameters: int) -> None:
    import torch

    network = make_network(kind, Params().width)
    assert sum(weight.numel() for weight in network.parameters()) == parameters
    assert SHAPES[kind].parameter_count(Params().width) == parameters
    assert network(torch.zeros(3, inputs)).shape == (3, outputs)


def test_records_are_100_trajectories_of_30_in_two_halves() -> None:
    windows = make_windows(Setting(mode="train").generator())
    assert windows.shape == (2, 50 * 21, 10, 29)
    assert float(windows.abs().max()) <= 1
    assert bool((windows[:, :, 1:, :10] == windows[:, :, :-1, 19:]).all())  # each step goes on where the last ended
    assert bool((windows[..., 4:7].sum(dim=-1) == 1).all())


def test_the_host_reads_every_tensor_at_every_step_unless_reported_not_to() -> None:
    for checks in (True, False):
        step = prepare(replace(TINY, checks=checks))
        for _ in range(2):
            step.run()
        step.stages[0].run()
        # Six tensors at each step; two graphs, each with one rollout to learn from and two to validate.
        assert metrics(step)["host_reads"] == (6 * 10 * 2 * 3 if checks else 0)
        assert metrics(step)["policy_host_reads"] == (6 * 5 * 2 if checks else 0)


def test_reading_back_changes_no_number() -> None:
    results = [prepare(replace(TINY, checks=checks)).run() for checks in (True, False)]
    assert results[0].tolist() == results[1].tolist()  # type: ignore[attr-defined]


def test_what_is_not_finite_is_refused() -> None:
    import torch

    setting = Setting(mode="train")
    with pytest.raises(WrongResultError, match="not finite"):
        Simulator(setting, 1, checks=True).check(torch.ones(2), torch.tensor([1.0, float("nan")]))
    Simulator(setting, 1, checks=False).check(torch.tensor(float("inf")))


def test_the_job_is_50_epochs_of_the_environment_and_20_of_the_policies() -> None:
    step = prepare()
    assert step.job_steps == 50
    assert [(stage.name, stage.steps) for stage in step.stages] == [("policy epoch", 20)]
    assert step.work.unit == "epoch"


def test_the_one_step_error_falls_while_learning() -> None:
    # A smaller batch draws too few samples: its first epochs go either way.
    step = prepare(Params(batch=256, policy_batch=2, horizon=2, width=128, checks=False))
    errors = [metrics(step)["one_step_error"]]
    for _ in range(2):
        for _ in range(3):
            step.run()
        errors.append(metrics(step)["one_step_error"])
    assert errors[2] < errors[1] < errors[0]


def test_the_same_seed_learns_the_same_and_the_stages_do_not_disturb_each_other() -> None:
    plain, staged, other = prepare(), prepare(), prepare(seed=1)
    for step in (plain, staged, other):
        step.run()
    rewards = staged.stages[0].run()
    again = plain.run().tolist()  # type: ignore[attr-defined]
    assert again == staged.run().tolist() != other.run().tolist()  # type: ignore[attr-defined]
    assert rewards.tolist() != staged.stages[0].run().tolist()  # type: ignore[attr-defined]


def test_flops_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    step = prepare()
    with FlopCounterMode(display=False) as counter:
        step.run()
    assert step.work.flops == pytest.approx(counter.get_total_flops(), rel=0.02)
