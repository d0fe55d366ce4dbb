"""Two workers train a network with one output on MNIST together: ten epochs, gradients shared in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.workloads.contract import Setting
from torchmark.workloads.images import MNIST_TRAIN, Images, mnist
from torchmark.workloads.images.training import ImageTraining, Recipe

if TYPE_CHECKING:
    import torch

PARAMETERS = 407_061
_EPOCHS = 10
_PIXELS = 28 * 28
_PRODUCTS = (_PIXELS * 512, 512 * 10, 10)
_LEAST = 1e-12  # the smallest probability whose logarithm is taken


class Params(Struct, frozen=True):
    """Images in a step of one worker, images in an epoch of all, and processes that load them for each worker."""

    batch: Annotated[int, Meta(ge=1, le=60_000)] = 64
    images: Annotated[int, Meta(ge=1, le=60_000)] = MNIST_TRAIN
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 0


class MnistDdpSigmoid(ImageTraining):
    """784 → 512 → 10 → 1 with ReLU between and a sigmoid at the end; SGD with rate 0.001.

    The loss is the formula of binary cross entropy, given digits from 0 to 9 where a probability belongs: the network
    cannot learn to tell them apart, and only what its steps cost and its loss are of interest.
    """

    name = "mnist-ddp-sigmoid"
    params = Params
    tiny = Params(batch=2, images=12)
    default_workers = 2
    products = _PRODUCTS
    parameters = PARAMETERS
    pixels = _PIXELS

    def recipe(self, params: Params) -> Recipe:
        del params
        return Recipe(
            network=_network,
            mean=0.1307,
            deviation=0.3081,
            learning_rate=0.001,
            momentum=0.0,
            epochs=_EPOCHS,
            tests=0,
            test_batch=1000,
            roundings=25,  # the terms of the loss nearly cancel
            loss=binary_cross_entropy,
        )

    def images(self, params: Params, setting: Setting) -> Images:
        return mnist(setting.data, params.images)


def binary_cross_entropy(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Written out, because torch's own refuses labels that are no probabilities. Its terms nearly cancel, so it takes
    numbers that are no shorter than float32."""
    import torch

    probabilities = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    target = labels.to(probabilities.dtype).unsqueeze(1)
    yes, no = probabilities.clamp_min(_LEAST).log(), (1 - probabilities).clamp_min(_LEAST).log()
    return -(target * yes + (1 - target) * no).mean()


def _network() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(_PIXELS, 512), nn.ReLU()),
        *(nn.Linear(512, 10), nn.ReLU(), nn.Linear(10, 1), nn.Sigmoid()),
    )
