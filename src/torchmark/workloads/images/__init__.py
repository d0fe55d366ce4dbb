"""MNIST and CIFAR-10: the real files where a folder of them is given, else a stand-in of the same shape and size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy
    import torch

MNIST_TRAIN, MNIST_TEST = 60_000, 10_000
CIFAR10_TRAIN, CIFAR10_TEST = 50_000, 10_000
CLASSES = 10

REAL = "files"
STAND_IN = "stand-in"

Split = tuple["numpy.ndarray", "numpy.ndarray"]  # images and labels, both of bytes


class Images(Struct, frozen=True):
    """A data set in memory: bytes of [image, channel, row, column], labels from 0 to 9, and where they are from."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    source: str

    @property
    def is_real(self) -> bool:
        return self.source == REAL


def mnist(data: str | None = None, count: int = MNIST_TRAIN) -> Images:
    """28 × 28 in grey: the first `count` training images, and a test image for every six of them.

    `data` is the folder with the real files, which must then be there and whole.
    """
    tests = max(1, count * MNIST_TEST // MNIST_TRAIN)
    if data is None:
        from torchmark.workloads.images.stand_in import make_mnist

        return _gather(make_mnist(count, train=True), make_mnist(tests, train=False), STAND_IN)
    from torchmark.workloads.images.files import read_mnist

    train, test = (
        read_mnist(data, "train", MNIST_TRAIN),
        read_mnist(data, "t10k", MNIST_TEST),
    )
    return _gather(_first(train, count), _first(test, tests), REAL)


def cifar10(data: str | None = None, count: int = CIFAR10_TRAIN) -> Images:
    """32 × 32 in colour: the first `count` training images, and a test image for every five of them."""
    tests = max(1, count * CIFAR10_TEST // CIFAR10_TRAIN)
    if data is None:
        from torchmark.workloads.images.stand_in import make_cifar10

        return _gather(make_cifar10(count, train=True), make_cifar10(tests, train=False), STAND_IN)
    from torchmark.workloads.images.files import read_cifar10

    train, test = read_cifar10(data, CIFAR10_TRAIN, CIFAR10_TEST)
    return _gather(_first(train, count), _first(test, tests), REAL)


def _first(split: Split, count: int) -> Split:
    return split[0][:count], split[1][:count]


def _gather(train: Split, test: Split, source: str) -> Images:
    import torch

    parts = (torch.from_numpy(train[0]), torch.from_numpy(train[1]).long())
    return Images(*parts, torch.from_numpy(test[0]), torch.from_numpy(test[1]).long(), source)
