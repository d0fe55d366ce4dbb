"""Trains a small classifier on images as published: epochs through torch's data loader, with test passes."""

from __future__ import annotations

import signal
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.workloads.contract import Setting, Stage, Step
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec

if TYPE_CHECKING:
    import torch

    from torchmark.workloads.images import Images

_PASS = 1000  # images that are classified at once to find the accuracy


class MnistParams(Struct, frozen=True):
    """Images in a step of one worker, images in an epoch of all, and loading processes of each worker (0: none)."""

    batch: Annotated[int, Meta(ge=1, le=60_000)] = 64
    images: Annotated[int, Meta(ge=1, le=60_000)] = 60_000
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 0


class Recipe(Struct, frozen=True):
    """How a network is trained, as published."""

    rate: float
    momentum: float
    epochs: int
    tests: int  # passes over the test set in the whole job; 0: the network does not learn to classify
    dataset: str = "mnist"
    normal: tuple[float, float] = (0.1307, 0.3081)  # mean and deviation that images are normalised with
    test_batch: int = 1000  # 0: that of the training
    reads_loss: bool = False  # in every step, on the host


class ImageTraining(ModelWorkload):
    """A workload that trains a network on images: its file gives the network and the recipe."""

    modes = ("train",)
    params: ClassVar[type[Struct]] = MnistParams
    tiny: ClassVar[Struct] = MnistParams(batch=2, images=12)
    recipe: ClassVar[Recipe]
    products: ClassVar[tuple[int, ...]]  # of one image in each layer: places in the output × weights behind each
    parameters: ClassVar[int]
    pixels: ClassVar[int] = 28 * 28  # numbers in an image

    @abstractmethod
    def network(self) -> torch.nn.Module:
        """With random weights."""

    @staticmethod
    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.cross_entropy(scores, labels)

    def images(self, params: Any, setting: Setting) -> Images:
        from torchmark.workloads.images import cifar10, mnist

        return (mnist if self.recipe.dataset == "mnist" else cifar10)(setting.data, params.images)

    def cost(self, params: Any, training: bool) -> Cost:
        """Weights and the momentum of their gradients are read and written."""
        return Cost(
            items=params.batch,
            unit="image",
            products=params.batch * sum(self.products),
            products_at_input=params.batch * self.products[0],
            numbers=4 * self.parameters + params.batch * self.pixels,
            integers=params.batch,
        )

    def build(self, params: Any, setting: Setting) -> Model:
        images = self.images(params, setting)
        train = Normalized(images.train_images, images.train_labels, *self.recipe.normal)
        loader = batches(train, params.batch, setting, workers=params.loader_workers)
        loader.images = images
        inputs, targets = train[:2]
        return Model(
            module=self.network(),
            inputs=inputs,
            targets=targets,
            feed=loader.take,
            loss=lambda scores, _, labels: self.loss(scores, labels),
            optimizer=OptimizerSpec("SGD", self.recipe.rate, self.recipe.momentum),
            loss_scale=1.0,
            reads_loss=self.recipe.reads_loss,
            notes={"data": images.source},
        )

    def prepare(self, params: Any, setting: Setting) -> Step:
        import torch

        recipe, model = self.recipe, self.made(params, setting)
        train: Batches = model.feed.__self__  # type: ignore[union-attr]  # of `build`
        images, network = train.images, model.module
        assert images
        training = self.prepared(params, setting, model)
        step, forward = training.step(), training.forward
        test = Normalized(images.test_images, images.test_labels, *recipe.normal)
        size = recipe.test_batch or params.batch
        loader = batches(test, size, setting, workers=params.loader_workers, shuffle=False)

        def run_test() -> torch.Tensor:
            pixels, labels = map(setting.place, loader.take())
            with torch.no_grad():
                scores = forward(pixels)
                loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
                return torch.stack([loss, (scores.argmax(1) == labels).sum()]).cpu()

        def metrics() -> dict[str, float]:
            found = step.metrics() if step.metrics else {}
            if recipe.tests:
                right = 0
                with torch.no_grad():
                    for start in range(0, len(test), _PASS):
                        pixels, labels = test[start : start + _PASS]
                        right += int((network(setting.place(pixels)).argmax(1).cpu() == labels).sum())
                found["accuracy"] = right / len(test)
            return found | {"data_is_real": float(images.is_real), "parameters": float(self.parameters)}

        tests = [Stage("test batch", recipe.tests * loader.per_epoch, run_test)] if recipe.tests else []
        return replace(
            step,
            job_steps=recipe.epochs * train.per_epoch,
            stages=(*tests, Stage("load batch", 0, train.take)),
            epochs=recipe.epochs,
            metrics=metrics,
        )


class Normalized:
    """A data set for torch's loader: bytes become numbers one image at a time, as in published training scripts."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: float, deviation: float) -> None:
        self._images, self._labels = images, labels
        self._scale, self._offset = 1 / (255 * deviation), mean / deviation

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int | slice) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index] * self._scale - self._offset, self._labels[index]


class Batches:
    """Batches without end: one epoch follows the other. Loading processes end with this object."""

    def __init__(self, loader: Any, sampler: Any) -> None:
        self.per_epoch = len(loader)
        self.images: Images | None = None  # the whole data set, if the batches come from one
        self._loader, self._sampler, self._epoch = loader, sampler, -1
        self._left: Iterator[list[torch.Tensor]] = iter(())

    def take(self) -> list[torch.Tensor]:
        batch = next(self._left, None)
        if batch is None:
            self._epoch += 1
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self._epoch)
            self._left = iter(self._loader)
            batch = next(self._left)
        return batch


def batches(
    data: Any,
    batch: int,
    setting: Setting,
    *,
    workers: int = 0,
    shuffle: bool = True,
    order: Sequence[int] | None = None,
) -> Batches:
    """Batches of this data set: shuffled, with a part for each rank; as they are; or in a given order."""
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

    sampler: Any = order
    if shuffle and order is None:
        # With a generator of its own: the loader draws from its one more or less often, depending on its processes.
        sampler = RandomSampler(data, generator=setting.generator())
        if setting.world_size > 1:
            sampler = DistributedSampler(data, setting.world_size, setting.rank, seed=setting.seed)
    processes: Any = {"num_workers": workers, "persistent_workers": workers > 0, "worker_init_fn": _end_with_parent}
    loader: Any = DataLoader(data, batch, sampler=sampler, generator=setting.generator(), **processes)
    return Batches(loader, sampler)


def _end_with_parent(worker: int) -> None:
    """On Linux a signal ends a loading process together with its parent: torch's own watch takes seconds."""
    del worker
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
