"""MNIST and CIFAR-10: the real files if a folder of them is given, else synthetic images of the same shape and size."""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from msgspec import Struct

from torchmark.errors import CaseError

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 10

Bytes = Any  # an array of integers
Split = tuple[Bytes, Bytes]  # images and labels
_CIFAR10_SHAPE = (3, 32, 32)
_MOST_BYTES = 1 << 28  # far more than any file of these sets
_PLACES = ("", "MNIST/raw", "mnist", "cifar-10-batches-bin")  # folders of other programs
_MNIST_FILES = "four files of MNIST (train-images-idx3-ubyte, …, plain or .gz)"
_CIFAR10_FILES = "unpacked binary version of CIFAR-10 (data_batch_1.bin … test_batch.bin, plain or .gz)"
_BLOCK = 250  # images made at once, which fit into the CPU's cache
_ONE = 127  # a shape at full strength; the sum of two products of such numbers fits into 16 bits
_POOL = 1 << 20


class Images(Struct, frozen=True):
    """A data set in memory: bytes of [image, channel, row, column], and labels from 0 to 9."""

    dataset: str  # mnist or cifar10
    source: str  # files or stand-in
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_images(dataset: str, data: str | None = None, count: int = 50_000) -> Images:
    """The first `count` training images, and the same share of the test images; `data`: the folder with real files."""
    import torch

    read, look, each = (_read_mnist, _MNIST, 6) if dataset == "mnist" else (_read_cifar10, _CIFAR10, 5)
    arrays = list[Bytes]()
    for train, amount in ((True, count), (False, max(1, count // each))):
        images, labels = _make(look, amount, train) if data is None else read(data, train)
        arrays += (images[:amount], labels[:amount].astype(numpy.int64))
    return Images(dataset, "stand-in" if data is None else "files", *map(torch.from_numpy, arrays))


# The files: IDX (MNIST) and binary (CIFAR-10), plain or gzip. Nothing in them is trusted.


def _read_mnist(folder: str, train: bool) -> Split:
    part, whole = ("train", 60_000) if train else ("t10k", 10_000)
    names = [f"{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    # Some unpackers turn a dash into a dot.
    images, labels = (_find(folder, _MNIST_FILES, name, name.replace("-idx", ".idx")) for name in names)
    pixels = read_idx(images, (whole, 28, 28)).reshape(whole, 1, 28, 28)
    return pixels, _checked_labels(read_idx(labels, (whole,)), labels)


def _read_cifar10(folder: str, train: bool) -> Split:
    names = [f"data_batch_{part}.bin" for part in range(1, 6)] if train else ["test_batch.bin"]
    parts = [read_cifar10_records(_find(folder, _CIFAR10_FILES, name), 10_000) for name in names]
    images, labels = zip(*parts, strict=True)
    return numpy.concatenate(images), numpy.concatenate(labels)


def read_idx(path: Path, shape: tuple[int, ...]) -> numpy.ndarray:
    """An IDX file, which must hold bytes of this shape."""
    header = 4 + 4 * len(shape)
    content = _read(path, header + prod(shape))
    _check_length(path, content[:header], header)
    magic = bytes((0, 0, 8, len(shape)))  # 8: bytes
    if content[:4] != magic:
        raise _wrong(path, f"begins with {content[:4].hex()} where an IDX file of this kind begins with {magic.hex()}")
    if (claimed := tuple(numpy.frombuffer(content[4:header], ">u4").tolist())) != shape:
        found, due = (" × ".join(map(str, each)) for each in (claimed, shape))
        raise _wrong(path, f"says that it holds {found} bytes where {due} are due")
    _check_length(path, content, header + prod(shape))
    return numpy.frombuffer(content, numpy.uint8, offset=header).reshape(shape).copy()


def read_cifar10_records(path: Path, count: int) -> Split:
    """A binary file of CIFAR-10, which must hold this many images."""
    record = 1 + prod(_CIFAR10_SHAPE)
    content = _read(path, count * record)
    _check_length(path, content, count * record)
    records = numpy.frombuffer(content, numpy.uint8).reshape(count, record)
    labels = _checked_labels(records[:, 0].copy(), path)
    return numpy.ascontiguousarray(records[:, 1:]).reshape(count, *_CIFAR10_SHAPE), labels


def _find(folder: str, files: str, *names: str) -> Path:
    fix = f"Put the {files} there, or leave --data out"
    if not Path(folder).is_dir():
        raise CaseError("what --data names is no folder", fix)
    for place, name, end in product(_PLACES, names, ("", ".gz")):
        if (path := Path(folder, place, name + end)).is_file():
            return path
    raise CaseError(f"the folder given with --data holds no file {names[0]}", fix)


def _read(path: Path, expected: int) -> bytes:
    """The content, unpacked, at most a byte more than expected."""
    if expected > _MOST_BYTES:
        raise _wrong(path, f"would have to hold {expected} bytes, more than any file of these sets")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(expected + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(path, "is no whole gzip file", str(error)) from error
    except OSError as error:
        cause = f"{path.name} cannot be read ({error.strerror or type(error).__name__})"
        raise CaseError(cause, "Make it readable, or leave --data out") from error


def _check_length(path: Path, content: bytes, expected: int) -> None:
    if len(content) < expected:
        raise _wrong(path, f"ends after {len(content)} bytes where {expected} are due")
    if len(content) > expected:
        raise _wrong(path, f"holds more than the {expected} bytes that are due")


def _checked_labels(labels: numpy.ndarray, path: Path) -> numpy.ndarray:
    if labels.size and int(labels.max()) >= CLASSES:
        raise _wrong(path, f"holds the label {int(labels.max())} where 0 to {CLASSES - 1} are known")
    return labels


def _wrong(path: Path, cause: str, detail: str = "") -> CaseError:
    # Without the file's folder, as the message gets into run files.
    return CaseError(f"{path.name} {cause}", "Fetch it again, or leave --data out to use the stand-in", detail)


# The synthetic images: the same bytes on every machine, with something to learn.


class _Look(Struct, frozen=True):
    """How to make images, by default of MNIST: a shape of their class, bent and moved, under another and noise."""

    size: int = 28
    channels: int = 1
    cells: int = 7  # on each side of the coarse grid of a shape
    shapes: int = 2  # of each class, with nothing in common: the mean of a class says little about it
    styles: int = 6  # ways to bend a shape
    bend: int = 55  # how far a style departs from the shape, of 127
    shift: int = 2  # pixels that a shape may be moved by, in each direction
    strength: tuple[int, int] = (75, 127)  # of the shape, from and to, of 127
    disguise: tuple[int, int] = (0, 45)  # strength of the other class's shape laid over it
    noise: int = 50  # pixels are off by up to this much
    level: int = -90  # brightness of an empty image
    gain: int = 5  # a shape at full strength adds 127 times this
    seed: int = 28


_MNIST = _Look()
_CIFAR10 = _Look(
    size=32, channels=3, cells=6, shapes=3, styles=3, bend=80, shift=3, strength=(40, 127), disguise=(0, 90), noise=40,
    level=120, gain=1, seed=32,
)  # fmt: skip


@lru_cache(maxsize=4)
def _make(look: _Look, count: int, train: bool) -> Split:
    shapes, random = _shapes(look), numpy.random.RandomState(look.seed)
    # Noise to take pieces from, with the brightness of an empty image: [where it begins, pixel].
    noise = look.level + _chance(random, -look.noise, look.noise + 1, _POOL).astype(numpy.int16)
    pool = numpy.lib.stride_tricks.sliding_window_view(noise, look.channels * look.size**2)
    images = numpy.empty((count, look.channels, look.size, look.size), numpy.uint8)
    labels = numpy.empty(count, numpy.uint8)

    def draw(classes: Bytes, strength: tuple[int, int]) -> Bytes:
        image = shapes[classes, _chance(random, 0, shapes.shape[1], _BLOCK)]
        image *= _chance(random, strength[0], strength[1] + 1, (_BLOCK, 1)).astype(numpy.int16)
        return image

    for start in range(0, count, _BLOCK):
        random = numpy.random.RandomState([look.seed, int(train), start])
        classes = _chance(random, 0, CLASSES, _BLOCK)
        others = (classes + _chance(random, 1, CLASSES, _BLOCK)) % CLASSES
        image = draw(classes, look.strength)
        image += draw(others, look.disguise)
        image >>= 7
        image *= look.gain
        image += pool[_chance(random, 0, len(pool), _BLOCK)]
        numpy.clip(image, 0, 255, out=image)
        images.reshape(count, -1)[start : start + _BLOCK] = image[: count - start]
        labels[start : start + _BLOCK] = classes[: count - start]
    return images, labels


@lru_cache(maxsize=2)
def _shapes(look: _Look) -> Bytes:
    """Of each class every style at every place: [class, variant, pixel]."""
    random = numpy.random.RandomState(look.seed)
    grid = (look.channels, look.cells + 1, look.cells + 1)
    own = _chance(random, -_ONE, _ONE + 1, (CLASSES, look.shapes, 1, *grid))
    bent = own + _chance(random, -look.bend, look.bend + 1, (CLASSES, look.shapes, look.styles, *grid))
    styles = numpy.clip(bent, -_ONE, _ONE).reshape(CLASSES, -1, *grid)
    # Interpolate the coarse grid in whole numbers, which come out the same everywhere.
    size, fine = look.size + 2 * look.shift, 16
    place = numpy.arange(size) * look.cells * fine // size
    weights = numpy.zeros((size, look.cells + 1), numpy.int64)
    weights[numpy.arange(size), place // fine] = fine - place % fine
    weights[numpy.arange(size), place // fine + 1] = place % fine
    canvas = ((weights @ styles @ weights.T) // fine**2).astype(numpy.int16)
    windows = numpy.lib.stride_tricks.sliding_window_view(canvas, (look.size, look.size), axis=(-2, -1))
    by_place = numpy.moveaxis(windows, 2, 4)  # class, style, down, right, channel, row, column
    return by_place.reshape(CLASSES, -1, look.channels * look.size**2)


def _chance(random: numpy.random.RandomState, low: int, end: int, shape: int | tuple[int, ...]) -> Bytes:
    """Of this generator numpy promises only whole numbers for ever; their width depends on the platform by default."""
    return random.randint(low, end, shape, dtype=numpy.int64)
