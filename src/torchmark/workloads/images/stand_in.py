"""Makes the stand-ins for MNIST and CIFAR-10: the same bytes on every machine, and something to learn in them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy
from msgspec import Struct

if TYPE_CHECKING:
    from torchmark.workloads.images import Split

_CLASSES = 10
_BLOCK = 250  # images made at once: few enough to stay in the CPU's cache
_ONE = 127  # a shape at full strength; two products of two such numbers add up to less than 16 bits hold
_POOL = 1 << 20

Bytes = Any  # an array of integers: numpy's own types say more than is of use here


class Look(Struct, frozen=True):
    """How the images of a set come about: a shape of their class, bent and moved, under another one and noise."""

    size: int
    channels: int
    cells: int  # of the coarse grid that a shape is drawn on, along each side
    shapes: int  # of each class, with nothing in common, so that the mean of a class says little about it
    styles: int  # ways to bend a shape
    bend: int  # how far a style departs from the shape, of 127
    shift: int  # pixels that a shape may be moved by, in each direction
    strength: tuple[int, int]  # of the shape, from and to, of 127
    disguise: tuple[int, int]  # strength of the shape of another class that is laid over it
    noise: int  # pixels are off by up to this much
    level: int  # brightness of an empty image
    gain: int  # times that a shape at full strength adds 127 to it
    seed: int


MNIST = Look(
    size=28, channels=1, cells=7, shapes=2, styles=6, bend=55, shift=2, strength=(75, 127), disguise=(0, 45), noise=50,
    level=-90, gain=5, seed=28,
)  # fmt: skip
CIFAR10 = Look(
    size=32, channels=3, cells=6, shapes=3, styles=3, bend=80, shift=3, strength=(40, 127), disguise=(0, 90), noise=40,
    level=120, gain=1, seed=32,
)  # fmt: skip


def make_mnist(count: int, train: bool) -> Split:
    """The first images of the grey set and their labels."""
    return _make(MNIST, count, train)


def make_cifar10(count: int, train: bool) -> Split:
    """The first images of the coloured set and their labels."""
    return _make(CIFAR10, count, train)


@lru_cache(maxsize=4)
def _make(look: Look, count: int, train: bool) -> Split:
    """Block after block, each from a seed of its own: a small set is the beginning of the large one."""
    shapes, pool = _shapes(look), _pool(look)
    images = numpy.empty((count, look.channels, look.size, look.size), numpy.uint8)
    labels = numpy.empty(count, numpy.uint8)
    flat = images.reshape(count, -1)
    for start in range(0, count, _BLOCK):
        random = numpy.random.RandomState([look.seed, int(train), start])
        block, block_labels = _make_block(look, shapes, pool, random)
        flat[start : start + _BLOCK] = block[: count - start]
        labels[start : start + _BLOCK] = block_labels[: count - start]
    return images, labels


def _make_block(look: Look, shapes: Bytes, pool: Bytes, random: numpy.random.RandomState) -> tuple[Bytes, Bytes]:
    labels = _chance(random, 0, _CLASSES, _BLOCK)
    others = (labels + _chance(random, 1, _CLASSES, _BLOCK)) % _CLASSES
    image = _draw(shapes, labels, look.strength, random)
    image += _draw(shapes, others, look.disguise, random)
    image >>= 7
    if look.gain > 1:
        image *= look.gain
    image += pool[_chance(random, 0, len(pool), _BLOCK)]
    return numpy.clip(image, 0, 255, out=image), labels


def _draw(shapes: Bytes, classes: Bytes, strength: tuple[int, int], random: numpy.random.RandomState) -> Bytes:
    """For each of these classes one of its variants, as strong as chance will have it."""
    image = shapes[classes, _chance(random, 0, shapes.shape[1], _BLOCK)]
    image *= _chance(random, strength[0], strength[1] + 1, (_BLOCK, 1)).astype(numpy.int16)
    return image


@lru_cache(maxsize=2)
def _shapes(look: Look) -> Bytes:
    """Of each class every style at every place: [class, variant, pixel]."""
    random = numpy.random.RandomState(look.seed)
    grid = (look.channels, look.cells + 1, look.cells + 1)
    own = _chance(random, -_ONE, _ONE + 1, (_CLASSES, look.shapes, 1, *grid))
    bent = own + _chance(random, -look.bend, look.bend + 1, (_CLASSES, look.shapes, look.styles, *grid))
    styles = numpy.clip(bent, -_ONE, _ONE).reshape(_CLASSES, -1, *grid)
    canvas = _spread(styles, look.size + 2 * look.shift)
    windows = numpy.lib.stride_tricks.sliding_window_view(canvas, (look.size, look.size), axis=(-2, -1))
    by_place = numpy.moveaxis(windows, 2, 4)  # class, style, down, right, channel, row, column
    return by_place.reshape(_CLASSES, -1, look.channels * look.size**2)


def _chance(random: numpy.random.RandomState, low: int, end: int, shape: int | tuple[int, ...]) -> Bytes:
    """Whole numbers from this old generator are the only ones that numpy promises never to change; of a width that is
    not left to the platform."""
    return random.randint(low, end, shape, dtype=numpy.int64)


def _spread(grid: Bytes, size: int) -> Bytes:
    """The coarse grid drawn out to this many pixels a side, with straight lines between its points; in whole numbers,
    because those come out the same everywhere."""
    cells, fine = grid.shape[-1] - 1, 16
    place = numpy.arange(size) * cells * fine // size
    weights = numpy.zeros((size, cells + 1), numpy.int64)
    weights[numpy.arange(size), place // fine] = fine - place % fine
    weights[numpy.arange(size), place // fine + 1] = place % fine
    return ((weights @ grid @ weights.T) // fine**2).astype(numpy.int16)


def _pool(look: Look) -> Bytes:
    """Noise to take pieces from, with the brightness of an empty image already in it: [where it begins, pixel]."""
    random = numpy.random.RandomState(look.seed)
    noise = look.level + _chance(random, -look.noise, look.noise + 1, _POOL).astype(numpy.int16)
    return numpy.lib.stride_tricks.sliding_window_view(noise, look.channels * look.size**2)
