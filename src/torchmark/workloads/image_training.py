"""Trains a small classifier on images as published: epochs through torch's data loader, with test passes."""

from __future__ import annotations

import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, Struct

from torchmark.workloads.contract import Setting, Stage
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from torchmark.workloads.images import Images

# Of each data set: numbers in an image, and their mean and deviation.
DATASETS = {"mnist": (28 * 28, 0.1307, 0.3081), "cifar10": (3 * 32 * 32, 0.5, 0.5)}
_PASS = 1000  # images classified at once to find the accuracy


class MnistParams(Struct, frozen=True):
    batch: Annotated[int, Meta(ge=1, le=60_000)] = 64  # images in a step of one worker
    images: Annotated[int, Meta(ge=1, le=60_000)] = 60_000  # in an epoch of all workers
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 0  # processes of each worker; 0: none


class Recipe(Struct, frozen=True):
    """How a network is trained, as published."""

    rate: float
    momentum: float
    epochs: int
    tests: int  # passes over the test set; 0: it does not learn to classify
    dataset: str = "mnist"
    test_batch: int = 1000  # 0: that of the training
    reads_loss: bool = False  # in every step, on the host


class ImageTraining(ModelWorkload):
    """A workload that trains a network on images: its file gives the layers and the recipe."""

    modes = ("train",)
    tiny: ClassVar[Struct] = MnistParams(batch=2, images=12)
    recipe: ClassVar[Recipe]
    products: ClassVar[tuple[int, ...]]  # of one image in each layer: outputs × weights behind each
    parameters: ClassVar[int]

    @abstractmethod
    def network(self, nn: Any) -> Any:
        """With random weights, from `torch.nn`."""

    def images(self, params: Any, setting: Setting) -> Images:
        from torchmark.workloads.images import load_images

        return load_images(self.recipe.dataset, setting.data, params.images)

    @staticmethod
    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        import torch

        return torch.nn.functional.cross_entropy(scores, labels)

    def cost(self, params: Any, training: bool) -> Cost:
        """Weights and their momentum are read and written."""
        batch, numbers = params.batch, 4 * self.parameters + params.batch * DATASETS[self.recipe.dataset][0]
        return Cost(batch, "image", batch * sum(self.products), numbers, batch * self.products[0], integers=batch)

    def build(self, params: Any, setting: Setting) -> Model:
        import torch

        recipe, images, network = self.recipe, self.images(params, setting), self.network(torch.nn)
        train, test = Normalized(images), Normalized(images, train=False)
        batches = Batches(train, params.batch, setting, params.loader_workers)
        inputs, targets = train[:2]

        def stages(forward: Callable[..., Any]) -> tuple[Stage, ...]:
            load = Stage("load batch", 0, batches.take)
            if not recipe.tests:
                return (load,)
            size = recipe.test_batch or params.batch
            tests = Batches(test, size, setting, params.loader_workers, order=range(len(test)))

            def run_test() -> Tensor:
                pixels, labels = map(setting.place, tests.take())
                with torch.no_grad():
                    scores = forward(pixels)
                    loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
                    return torch.stack([loss, (scores.argmax(1) == labels).sum()]).cpu()

            return Stage("test batch", recipe.tests * tests.per_epoch, run_test), load

        def metrics() -> dict[str, float]:
            found = {"data_is_real": float(images.source == "files"), "parameters": float(self.parameters)}
            if recipe.tests:
                parts = (test[start : start + _PASS] for start in range(0, len(test), _PASS))
                with torch.no_grad():
                    right = [network(setting.place(pixels)).argmax(1).cpu() == labels for pixels, labels in parts]
                found["accuracy"] = float(torch.cat(right).double().mean())
            return found

        return Model(
            network,
            inputs,
            targets=targets,
            feed=batches.take,
            loss=lambda scores, _, labels: self.loss(scores, labels),
            optimizer=OptimizerSpec("SGD", recipe.rate, recipe.momentum),
            loss_scale=1.0,
            reads_loss=recipe.reads_loss,
            notes={"data": images.source},
            metrics=metrics,
            job_steps=recipe.epochs * batches.per_epoch,
            epochs=recipe.epochs,
            stages=stages,
        )


class Normalized:
    """For torch's loader: converts one image at a time, as published training scripts do."""

    def __init__(self, data: Images, train: bool = True) -> None:
        self._images = data.train_images if train else data.test_images
        self._labels = data.train_labels if train else data.test_labels
        _, mean, deviation = DATASETS[data.dataset]
        self._scale, self._offset = 1 / (255 * deviation), mean / deviation

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor]:
        return self._images[index] * self._scale - self._offset, self._labels[index]


class Batches:
    """Endless batches: shuffled in every epoch, with a part for each rank, or in a given order."""

    def __init__(self, data: Any, batch: int, setting: Setting, workers: int = 0, order: Sequence[int] = ()) -> None:
        from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

        # Not the loader's generator: how often that is drawn from depends on the number of processes.
        self._sampler: Any = order or RandomSampler(data, generator=setting.generator())
        if not order and setting.world_size > 1:
            self._sampler = DistributedSampler(data, setting.world_size, setting.rank, seed=setting.seed)
        processes: Any = {"num_workers": workers, "persistent_workers": workers > 0, "worker_init_fn": _end_with_parent}
        self._loader: Any = DataLoader(data, batch, sampler=self._sampler, generator=setting.generator(), **processes)
        self.per_epoch, self._epoch = len(self._loader), -1
        self._left: Iterator[list[Tensor]] = iter(())

    def take(self) -> list[Tensor]:
        if (batch := next(self._left, None)) is None:
            self._epoch += 1
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self._epoch)
            self._left = iter(self._loader)
            batch = next(self._left)
        return batch


def _end_with_parent(_: int) -> None:
    """On Linux, end a loading process by a signal with its parent: torch's own watch takes seconds."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
