"""Four workers learn MNIST together with two dense layers: ten epochs, gradients shared in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.workloads.contract import Setting
from torchmark.workloads.images import MNIST_TRAIN, Images, mnist
from torchmark.workloads.images.training import ImageTraining, Recipe

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


class MnistDdpMlp(ImageTraining):
    """784 → 256 → 10 with ReLU between; cross entropy, SGD with rate 0.01 and momentum 0.5.

    Each worker has its own part of the images, and its own pass over the whole test set after every epoch. More workers
    make fewer steps of an epoch, not smaller ones.
    """

    name = "mnist-ddp-mlp"
    params = Params
    tiny = Params(batch=2, images=12)
    default_workers = 4
    products = _PRODUCTS
    parameters = PARAMETERS
    pixels = _PIXELS

    def recipe(self, params: Params) -> Recipe:
        del params
        return Recipe(
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

    def images(self, params: Params, setting: Setting) -> Images:
        return mnist(setting.data, params.images)


def _network() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, 256), nn.ReLU(), nn.Linear(256, 10))
