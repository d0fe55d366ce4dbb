"""A small convolutional network learns MNIST: nine epochs with a test after each, through a real data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.workloads.contract import Setting
from torchmark.workloads.images import MNIST_TRAIN, Images, mnist
from torchmark.workloads.images.training import ImageTraining, Recipe

if TYPE_CHECKING:
    import torch

PARAMETERS = 21_840
_EPOCHS = 9
# Of an image, in each layer: places in the output × weights behind each of them.
_PRODUCTS = (24 * 24 * 10 * 25, 8 * 8 * 20 * 250, 320 * 50, 50 * 10)


class Params(Struct, frozen=True):
    """Images in a step and in an epoch, and processes that load them (0: the training process itself)."""

    batch: Annotated[int, Meta(ge=1, le=60_000)] = 64
    images: Annotated[int, Meta(ge=1, le=60_000)] = MNIST_TRAIN
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 0


class MnistCnn(ImageTraining):
    """Two convolutions with pooling and two dense layers; cross entropy, SGD with rate 0.01 and momentum 0.5.

    Every step takes its batch from the loader, which normalises one image at a time. Without a folder of real files
    the images are made up: same shape, size and number of classes, and as much to learn.
    """

    name = "mnist-cnn"
    params = Params
    tiny = Params(batch=2, images=12)
    products = _PRODUCTS
    parameters = PARAMETERS
    pixels = 28 * 28

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
            roundings=10,
        )

    def images(self, params: Params, setting: Setting) -> Images:
        return mnist(setting.data, params.images)


def _network() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU()),
        *(nn.Linear(50, 10), nn.LogSoftmax(1)),
    )
