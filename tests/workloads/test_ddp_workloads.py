"""The two workloads that are published for several workers: their nets, their jobs, and what they come to."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from torchmark.workloads import find_workload, names
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.image_training import MnistParams
from torchmark.workloads.mnist_ddp_sigmoid import MnistDdpSigmoid

binary_cross_entropy = MnistDdpSigmoid.loss


def prepare(name: str, params: object, **changes: object) -> Step:
    return find_workload(name).prepare(params, Setting(mode="train", **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "params", "workers", "parameters", "steps"),
    [
        ("mnist-ddp-sigmoid", MnistParams(), 2, 407_061, 4_690),
        ("mnist-ddp-mlp", MnistParams(), 4, 203_530, 2_350),
    ],
)
def test_nets_and_jobs_are_those_of_the_publication(
    name: str, params: MnistParams, workers: int, parameters: int, steps: int
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
    step = prepare("mnist-ddp-mlp", MnistParams(batch=4 * 64))
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
    step = prepare("mnist-ddp-sigmoid", MnistParams(images=600))
    assert step.metrics is not None
    step.run()
    first = step.metrics()["loss"]
    for _ in range(50):
        step.run()
    later = step.metrics()
    assert later["loss"] < first
    assert "accuracy" not in later


# What two ranks do: every workload once as it is, and once with ranks that keep their gradients to themselves.
# The ranks share their imports; each draws the random weights of a workload only once.
RANKS = """
import copy
import importlib
import multiprocessing
import sys
from pathlib import Path
import msgspec
import torch
import torch._dynamo  # which sharing gradients would import in each rank
import torch.distributed as dist
from torchmark.errors import WrongResultError
from torchmark.measure.check import check_step
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting
from torchmark.workloads.model import ModelWorkload

def keep(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done

class Deaf(Setting, frozen=True):
    def parallel(self, model):
        shared = Setting.parallel(self, model)
        shared.register_comm_hook(None, keep)
        return shared

draw, drawn = ModelWorkload.made, {}

def made(workload, params, setting):
    model = drawn.get(workload.name) or draw(workload, params, setting)
    if not model.feed:
        drawn[workload.name] = model
    return msgspec.structs.replace(model, module=copy.deepcopy(model.module))

ModelWorkload.made = made

def act(rank, meeting, workloads):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    reported = []
    for workload in workloads:
        drawn.clear()
        for kind in (Setting, Deaf):
            step = workload.prepare(workload.tiny, kind(mode="train", rank=rank, world_size=2))
            step.run()
            try:
                check_step(step, "float32")
                reported.append(f"{workload.name} {kind.__name__} right")
            except WrongResultError:
                reported.append(f"{workload.name} {kind.__name__} wrong")
            dist.barrier()
    Path(f"{meeting}.{rank}").write_text("\\n".join(reported))

torch.set_num_threads(1)
workloads = [find_workload(name) for name in sys.argv[2:]]
for workload in workloads:
    for module in workload.imports:
        importlib.import_module(module)
fork = multiprocessing.get_context("fork")
ranks = [fork.Process(target=act, args=(rank, sys.argv[1], workloads)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank, most_s in zip(ranks, (250, 20)):
    rank.join(most_s)
for rank in ranks:
    rank.kill()  # does nothing to one that has ended
    rank.join()
sys.exit(max(abs(rank.exitcode) for rank in ranks))
"""


def test_ranks_that_do_not_exchange_their_gradients_are_caught(tmp_path: Path) -> None:
    trained = [name for name in names() if find_workload(name).distributed and "train" in find_workload(name).modes]
    assert len(trained) >= 8
    meeting = tmp_path / "meeting"
    command = [sys.executable, "-c", RANKS, str(meeting), *trained]
    ranks = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ranks.returncode == 0, ranks.stderr
    expected = [f"{name} {kind}" for name in trained for kind in ("Setting right", "Deaf wrong")]
    for rank in range(2):
        assert Path(f"{meeting}.{rank}").read_text().splitlines() == expected
