"""Four workers learn MNIST together with two dense layers: ten epochs, gradients shared in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Workload
from torchmark.workloads.images import MNIST_TRAIN, mnist
from torchmark.workloads.images.training import Recipe, prepare_classifier, training_work

if TYPE_CHECKING:
    import torch

PARAMETERS = 203_530
_EPOCHS = 10
_PIXELS = 28 * 28
_PRODUCTS = (_PIXELS * 256, 256 * 10)


class Params(Struct, frozen=True):
    """Images in a step of one worker, images in an epoch of all, and processes that load them for each worker."""

    batch: Annotated[int, Meta(ge=1, le=60_000)] = 64
    images: Annotated[int, Meta(ge=1, le=60_000)] = MNIST_TRAIN
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 0


class MnistDdpMlp(Workload):
    """784 → 256 → 10 with ReLU between; cross entropy, SGD with rate 0.01 and momentum 0.5.

    Each worker has its own part of the images, and its own pass over the whole test set after every epoch. More workers
    make fewer steps of an epoch, not smaller ones.
    """

    name = "mnist-ddp-mlp"
    modes = ("train",)
    params = Params
    tiny = Params(batch=2, images=12)
    distributed = True
    default_workers = 4

    def work(self, params: Params, setting: Setting) -> Work:
        return training_work(params.batch, _PRODUCTS, PARAMETERS, _PIXELS, setting)

    def prepare(self, params: Params, setting: Setting) -> Step:
        recipe = Recipe(
            network=_network,
            mean=0.1307,
            deviation=0.3081,
            learning_rate=0.01,
            momentum=0.5,
            epochs=_EPOCHS,
            tests=_EPOCHS,
            test_batch=1000,
            roundings=8,
        )
        images = mnist(setting.data, params.images)
        work = self.work(params, setting)
        return prepare_classifier(recipe, images, params.batch, params.loader_workers, setting, work)


def _network() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, 256), nn.ReLU(), nn.Linear(256, 10))
