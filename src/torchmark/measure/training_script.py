"""Published loops: a task, the stopwatch of its laps, and a training script as people write them. The script reads a
task and prints its laps as its last line; as a program of its own, it can be timed from start to end."""

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from torchmark.errors import DoesNotFitError
from torchmark.records import Case, Laps
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting
from torchmark.workloads.image_training import Normalized

STEP, FEWEST_STEPS = "step", 5
MORE_TIME = "Give it more time with --budget, or take fewer steps with --scale"


class Task(Struct, frozen=True):
    publication: str  # where this case was timed
    case: Case
    steps: int  # in the published loop
    scale: float = 1.0  # the share of them to take now
    seed: int = 0
    data: str | None = None

    @property
    def workload(self) -> Any:
        return find_workload(self.case.workload)

    @property
    def params(self) -> Any:
        return msgspec.convert(self.case.params, self.workload.params)

    def setting(self, place: str, **more: Any) -> Setting:
        case, more = self.case, more | {"seed": self.seed, "data": self.data}
        return Setting(case.mode, place, case.dtype, transfer=case.transfer, world_size=case.workers, **more)

    def model(self, place: str, **more: Any) -> Any:
        return self.workload.made(self.params, self.setting(place, **more))


def due(published: int, scale: float) -> int:
    """How many repetitions to do for a share of the published ones."""
    return min(published, max(FEWEST_STEPS, math.ceil(scale * published)))


class Stopwatch:
    """Laps by stage. Each begins at the end of the one before: together they are the whole time."""

    def __init__(self, time_left_s: float, listen: Callable[[str], None] = lambda _: None) -> None:
        self.stages, self._listen = dict[str, Laps](), listen
        self.unfinished_s = 0.0  # left to the device when the clock was stopped
        self._mark = self._spoken = time.perf_counter()
        self._deadline = self._mark + time_left_s

    def start(self) -> None:
        self._mark = time.perf_counter()

    def lap(self, stage: str, published: int = 1) -> None:
        """End something other than the work, which the publication did so many times."""
        self._note(self.stages.setdefault(stage, Laps(stage, [], published)).seconds)

    def loop(self, stage: str, published: int, due: int, most: int | None = None) -> Iterator[int]:
        """Number the laps that are due, at most so many now; raise where all would take too long."""
        laps = self.stages.setdefault(stage, Laps(stage, [], published, is_work=True)).seconds
        left = due - len(laps)
        for number in range(left if most is None else min(left, most)):
            yield number
            self._note(laps)
            done = len(laps)
            if done <= 2:  # a first step may take twice as long as others
                self._check_time((due - done) * (laps[-1] / 2.0 if done == 1 else laps[-1]))
            elif self._mark > self._deadline + 5.0:  # a loop that seemed to fit may be a little late
                self._check_time((due - done) * sum(laps) / done)
            if self._mark - self._spoken > 1.0:
                self._listen(f"{stage} {done} of {due}")
                self._spoken = self._mark = time.perf_counter()

    def finish(self, wait: Callable[[], None]) -> None:
        wait()  # the published clock has stopped, but the device may still work
        self.unfinished_s = time.perf_counter() - self._mark

    @property
    def seconds(self) -> float:
        return sum(sum(laps.seconds) for laps in self.stages.values())

    @property
    def time_left_s(self) -> float:
        return self._deadline - time.perf_counter()

    def _note(self, laps: list[float]) -> None:
        now = time.perf_counter()
        laps.append(now - self._mark)
        self._mark = now

    def _check_time(self, needed_s: float) -> None:
        if needed_s > max(self.time_left_s, 0.0):
            raise DoesNotFitError(would_take(needed_s + self.seconds), MORE_TIME)


def would_take(seconds: float) -> str:
    if seconds < 100:
        return f"would take {seconds:.0f} s"
    return f"would take {seconds / 60:.0f} min" if seconds < 100 * 60 else f"would take {seconds / 3600:.1f} h"


class Report(Struct, frozen=True):  # by the first process
    stages: tuple[Laps, ...] = ()
    data: str = ""
    threads: int = 0
    trouble: str = ""


def main() -> None:
    task, time_left_s = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[Task, float])
    if task.case.workers == 1:
        train(0, task, time_left_s)
        return
    from torch.multiprocessing.spawn import spawn

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(probe.getsockname()[1])
    spawn(train, args=(task, time_left_s), nprocs=task.case.workers)  # type: ignore[no-untyped-call]


def train(rank: int, task: Task, time_left_s: float) -> None:
    watch = Stopwatch(time_left_s if rank == 0 else math.inf)  # one decides for all
    try:
        report = _train(rank, task, watch)
    except DoesNotFitError as error:
        report = Report(trouble=str(error))
    if rank == 0:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    if report.trouble and task.case.workers > 1:
        os._exit(0)  # in an orderly end this process would wait for the others


def _train(rank: int, task: Task, watch: Stopwatch) -> Report:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    workload, params, ranks = task.workload, task.params, task.case.workers
    images = workload.images(params, Setting("train", seed=task.seed, data=task.data))
    recipe, network = workload.recipe, workload.network(torch.nn)
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    training: Any = Normalized(images)
    testing: Any = Normalized(images, train=False)
    sampler: Any = None
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        network = torch.nn.parallel.DistributedDataParallel(network)
        sampler = DistributedSampler(training, ranks, rank)
    # Every epoch starts new loader processes.
    workers = params.loader_workers
    loader = DataLoader(training, params.batch, shuffle=sampler is None, sampler=sampler, num_workers=workers)
    tests = DataLoader(testing, recipe.test_batch or params.batch, num_workers=workers)
    watch.start()
    _run(workload, network, optimizer, loader, tests, watch, task.scale)
    if ranks > 1:
        torch.distributed.destroy_process_group()
    return Report(tuple(watch.stages.values()), images.source, torch.get_num_threads())


def _run(workload: Any, network: Any, optimizer: Any, loader: Any, tests: Any, watch: Stopwatch, scale: float) -> None:
    """A share of the steps means to end the training early and to test on fewer batches."""
    import torch

    recipe, running_loss, right = workload.recipe, 0.0, 0

    def batches(stage: str, loader: Any, passes: int) -> Iterator[list[torch.Tensor]]:
        """The batches of one pass that are due; each lap lasts until the next is asked for."""
        published, done = passes * len(loader), watch.stages.get(stage)
        if done and len(done.seconds) >= due(published, scale):
            return
        remaining = iter(loader)
        watch.lap(f"loader of a {stage}", passes)
        for _ in watch.loop(stage, published, due(published, scale), len(loader)):
            yield next(remaining)

    for epoch in range(recipe.epochs):
        if isinstance(loader.sampler, torch.utils.data.DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for images, labels in batches(STEP, loader, recipe.epochs):
            optimizer.zero_grad()
            loss = workload.loss(network(images), labels)
            loss.backward()
            optimizer.step()
            if recipe.reads_loss:
                running_loss += loss.item()
        if recipe.tests > 1 or epoch == recipe.epochs - 1:
            with torch.no_grad():
                for images, labels in batches("test batch", tests, recipe.tests):
                    scores = network(images)
                    running_loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
                    right += int((scores.argmax(1) == labels).sum())


if __name__ == "__main__":
    from torchmark.measure.bootstrap import request_death_signal

    request_death_signal("SIGKILL")
    main()
