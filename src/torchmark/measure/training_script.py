"""A training script as people write them: one loop over epochs, or one for each of several processes that it starts.

It is run as a program of its own, so that starting, importing, loading and ending can be timed from outside. It reads
what to do from its input and prints what it timed inside as its last line.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from torchmark.errors import DoesNotFitError
from torchmark.measure.stopwatch import Stopwatch, due
from torchmark.records import Laps, Value

if TYPE_CHECKING:
    from torchmark.workloads.image_training import ImageTraining


STEP, TEST = "step", "test batch"


class Job(Struct, frozen=True):
    """What to train, by how many processes, and how much of it."""

    workload: str
    params: dict[str, Value]
    workers: int
    scale: float
    time_left_s: float
    seed: int = 0
    data: str | None = None


class Report(Struct, frozen=True):
    """What was timed inside the first process."""

    stages: tuple[Laps, ...] = ()
    data: str = ""
    threads: int = 0
    trouble: str = ""


def main() -> None:
    """Runs in a process of its own."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    if job.workers == 1:
        train(0, job)
        return
    from torch.multiprocessing.spawn import spawn

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(probe.getsockname()[1])
    spawn(train, args=(job,), nprocs=job.workers)  # type: ignore[no-untyped-call]


def train(rank: int, job: Job) -> None:
    """The whole training of one process."""
    watch = Stopwatch(job.time_left_s if rank == 0 else math.inf)  # one decides for all
    try:
        report = _train(rank, job, watch)
    except DoesNotFitError as error:
        report = Report(trouble=str(error))
    if rank == 0:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    if report.trouble and job.workers > 1:
        os._exit(0)  # in an orderly end this process would wait for the others


def _train(rank: int, job: Job, watch: Stopwatch) -> Report:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    from torchmark.workloads import find_workload
    from torchmark.workloads.contract import Setting
    from torchmark.workloads.image_training import Normalized

    workload: ImageTraining = find_workload(job.workload)  # type: ignore[assignment]  # only such are in these tables
    recipe = workload.recipe
    params: Any = msgspec.convert(job.params, workload.params)
    images = workload.images(params, Setting("train", seed=job.seed, data=job.data))
    network: Any = workload.network()
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    training: Any = Normalized(images.train_images, images.train_labels, *recipe.normal)
    testing: Any = Normalized(images.test_images, images.test_labels, *recipe.normal)
    sampler: Any = None
    if job.workers > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=job.workers)
        network, sampler = (
            torch.nn.parallel.DistributedDataParallel(network),
            DistributedSampler(training, job.workers, rank),
        )
    # Loaders as they come: every epoch starts new loader processes.
    workers = params.loader_workers
    loader = DataLoader(training, params.batch, shuffle=sampler is None, sampler=sampler, num_workers=workers)
    tests = DataLoader(testing, recipe.test_batch or params.batch, num_workers=workers)
    watch.start()
    _run(workload, network, optimizer, loader, tests, watch, job.scale)
    if job.workers > 1:
        torch.distributed.destroy_process_group()
    return Report(tuple(watch.stages.values()), images.source, torch.get_num_threads())


def _run(
    workload: ImageTraining, network: Any, optimizer: Any, loader: Any, tests: Any, watch: Stopwatch, scale: float
) -> None:
    """The loops. Taking a share of the steps means to end the training early and to test on fewer batches."""
    import torch

    recipe, running_loss, right = workload.recipe, 0.0, 0
    steps_left, tests_left = due(recipe.epochs * len(loader), scale), due(recipe.tests * len(tests), scale)

    def batches(stage: str, loader: Any, passes: int, most: int) -> Iterator[list[torch.Tensor]]:
        """The batches of one pass, as many of them as are due; each is a lap that lasts until the next is asked for."""
        remaining = iter(loader)
        watch.lap(f"loader of a {stage}", passes)
        for _ in watch.loop(stage, passes * len(loader), min(most, len(loader))):
            yield next(remaining)

    watch.expect(STEP, steps_left)
    for epoch in range(recipe.epochs):
        if steps_left:
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for images, labels in batches(STEP, loader, recipe.epochs, steps_left):
                optimizer.zero_grad()
                loss = workload.loss(network(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if recipe.reads_loss:
                    running_loss += loss.item()
            steps_left -= min(steps_left, len(loader))
        if tests_left and (recipe.tests > 1 or epoch == recipe.epochs - 1):
            with torch.no_grad():
                for images, labels in batches(TEST, tests, recipe.tests, tests_left):
                    scores = network(images)
                    running_loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
                    right += int((scores.argmax(1) == labels).sum())
            tests_left -= min(tests_left, len(tests))


if __name__ == "__main__":
    from torchmark.measure.lifecycle import request_death_signal

    request_death_signal("SIGKILL")
    main()
