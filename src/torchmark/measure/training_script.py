"""A training script as people write them: one loop over epochs, or one for each of several processes that it starts.

It is run as a program of its own, so that starting, importing, loading and ending can be timed from outside. It reads
what to do from its input and prints what it timed inside as its last line.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from torchmark.errors import DoesNotFitError
from torchmark.measure.stopwatch import Stopwatch, due
from torchmark.records import Laps, Value

if TYPE_CHECKING:
    import torch

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

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(_free_port())
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

    from torchmark.workloads import find_workload
    from torchmark.workloads.contract import Setting

    workload: ImageTraining = find_workload(job.workload)  # type: ignore[assignment]  # only such are in these tables
    params = msgspec.convert(job.params, workload.params)
    images = workload.images(params, Setting("train", seed=job.seed, data=job.data))
    if job.workers > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=job.workers)
    network = workload.network()
    shared = torch.nn.parallel.DistributedDataParallel(network) if job.workers > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=workload.recipe.rate, momentum=workload.recipe.momentum)
    loaders = _load(workload, images, params, rank, job.workers)
    watch.start()
    _Training(workload, shared, optimizer, watch, job).run(*loaders)
    if job.workers > 1:
        torch.distributed.destroy_process_group()
    return Report(tuple(watch.stages.values()), images.source, torch.get_num_threads())


def _load(workload: ImageTraining, images: Any, params: Any, rank: int, workers: int) -> tuple[Any, Any]:
    """Torch\'s loader as it comes: every epoch starts new loader processes."""
    from torch.utils.data import DataLoader, DistributedSampler

    from torchmark.workloads.image_training import Normalized

    train: Any = Normalized(images.train_images, images.train_labels, *workload.recipe.normal)
    test: Any = Normalized(images.test_images, images.test_labels, *workload.recipe.normal)
    mine: Any = DistributedSampler(train, workers, rank) if workers > 1 else None
    return (
        DataLoader(train, params.batch, shuffle=mine is None, sampler=mine, num_workers=params.loader_workers),
        DataLoader(test, workload.recipe.test_batch or params.batch, num_workers=params.loader_workers),
    )


class _Training:
    """The loops. Taking a share of the steps means to end the training early and to test on fewer batches."""

    def __init__(
        self, workload: ImageTraining, network: Any, optimizer: torch.optim.Optimizer, watch: Stopwatch, job: Job
    ):
        self._recipe, self._loss = workload.recipe, workload.loss
        self._network, self._optimizer = network, optimizer
        self._watch, self._job = watch, job
        self._running_loss = 0.0

    def run(self, train: Any, test: Any) -> None:
        recipe = self._recipe
        steps, tests = recipe.epochs * len(train), recipe.tests * len(test)
        steps_left, tests_left = due(steps, self._job.scale), due(tests, self._job.scale)
        self._watch.expect(STEP, steps_left)
        for epoch in range(recipe.epochs):
            if steps_left:
                steps_left -= self._learn(epoch, train, steps, steps_left)
            if tests_left and (recipe.tests > 1 or epoch == recipe.epochs - 1):
                tests_left -= self._test(test, tests, tests_left)

    def _batches(self, stage: str, loader: Any, passes: int, published: int, most: int) -> Iterator[list[torch.Tensor]]:
        """The batches of one pass, as many of them as are due; each is a lap that lasts until the next is asked for."""
        batches = iter(loader)
        self._watch.lap(f"loader of a {stage}", passes)
        for _ in self._watch.loop(stage, published, min(most, len(loader))):
            yield next(batches)

    def _learn(self, epoch: int, loader: Any, published: int, most: int) -> int:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for images, labels in self._batches(STEP, loader, self._recipe.epochs, published, most):
            self._optimizer.zero_grad()
            loss = self._loss(self._network(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            if self._recipe.reads_loss:
                self._running_loss += loss.item()
        return min(most, len(loader))

    def _test(self, loader: Any, published: int, most: int) -> int:
        import torch

        right = 0
        with torch.no_grad():
            for images, labels in self._batches(TEST, loader, self._recipe.tests, published, most):
                scores = self._network(images)
                self._running_loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
                right += int((scores.argmax(1) == labels).sum())
        return min(most, len(loader))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    from torchmark.measure.lifecycle import request_death_signal

    if hasattr(signal, "SIGKILL"):
        request_death_signal(signal.SIGKILL)
    main()
