"""Reads MNIST (IDX) and CIFAR-10 (binary version) files, plain or gzip, and trusts nothing that they say."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from torchmark.errors import CaseError

if TYPE_CHECKING:
    from torchmark.workloads.images import Split

_CLASSES = 10
_MOST_BYTES = 1 << 28  # no file of these sets is near that: a header that claims more is wrong
_IDX_BYTES = 0x08  # the element type of both MNIST files
_MNIST_FOLDERS = ("", "MNIST/raw", "mnist")
_CIFAR10_FOLDERS = ("", "cifar-10-batches-bin")
_CIFAR10_SHAPE = (3, 32, 32)
_CIFAR10_PARTS = 5
_MNIST_CURE = "Put the four files of MNIST (train-images-idx3-ubyte, …, plain or .gz) there, or leave --data out"
_CIFAR10_CURE = (
    "Put the binary version of CIFAR-10 there, unpacked (data_batch_1.bin … test_batch.bin, plain or .gz), "
    "or leave --data out"
)


def read_mnist(folder: str, part: str, count: int) -> Split:
    """The images and labels of `train` or `t10k`."""
    images = _find(folder, _MNIST_FOLDERS, _spellings(f"{part}-images", 3), _MNIST_CURE)
    labels = _find(folder, _MNIST_FOLDERS, _spellings(f"{part}-labels", 1), _MNIST_CURE)
    pixels = read_idx(images, (count, 28, 28))
    return pixels.reshape(count, 1, 28, 28), _checked_labels(read_idx(labels, (count,)), labels)


def read_cifar10(folder: str, count: int, tests: int) -> tuple[Split, Split]:
    """The training and the test images with their labels."""
    each = count // _CIFAR10_PARTS
    parts = [_read_cifar10_file(folder, f"data_batch_{part + 1}.bin", each) for part in range(_CIFAR10_PARTS)]
    train = tuple(numpy.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return (train[0], train[1]), _read_cifar10_file(folder, "test_batch.bin", tests)


def _read_cifar10_file(folder: str, name: str, count: int) -> Split:
    return read_cifar10_records(_find(folder, _CIFAR10_FOLDERS, (name,), _CIFAR10_CURE), count)


def read_idx(path: Path, shape: tuple[int, ...]) -> numpy.ndarray:
    """The bytes of an IDX file, which must hold an array of this very shape."""
    header = 4 + 4 * len(shape)
    content = _read(path, header + prod(shape), header)
    magic = bytes((0, 0, _IDX_BYTES, len(shape)))
    if content[:4] != magic:
        raise _wrong(path, f"begins with {content[:4].hex()} where an IDX file of this kind begins with {magic.hex()}")
    said = tuple(int(length) for length in numpy.frombuffer(content[4:header], ">u4"))
    if said != shape:
        raise _wrong(path, f"says that it holds {_times(said)} bytes where {_times(shape)} are due")
    _check_length(path, content, header + prod(shape))
    return numpy.frombuffer(content, numpy.uint8, offset=header).reshape(shape).copy()


def read_cifar10_records(path: Path, count: int) -> Split:
    """The images and labels of a file of CIFAR-10's binary version, which must hold this many."""
    record = 1 + prod(_CIFAR10_SHAPE)
    content = _read(path, count * record, 1)
    _check_length(path, content, count * record)
    records = numpy.frombuffer(content, numpy.uint8).reshape(count, record)
    labels = _checked_labels(records[:, 0].copy(), path)
    return numpy.ascontiguousarray(records[:, 1:]).reshape(count, *_CIFAR10_SHAPE), labels


def _spellings(name: str, dimensions: int) -> tuple[str, str]:
    """Both ways in which the file is known; some unpackers turn the dash into a dot."""
    return f"{name}-idx{dimensions}-ubyte", f"{name}.idx{dimensions}-ubyte"


def _find(folder: str, inner: Iterable[str], names: tuple[str, ...], cure: str) -> Path:
    """The file, plain or gzip, in the folder itself or where other programs put it below."""
    root = Path(folder)
    if not root.is_dir():
        raise CaseError("what --data names is no folder", cure)
    for place in inner:
        for name in names:
            for path in (root / place / name, root / place / f"{name}.gz"):
                if path.is_file():
                    return path
    raise CaseError(f"the folder given with --data holds no file {names[0]}", cure)


def _read(path: Path, expected: int, least: int) -> bytes:
    """The file's content, unpacked, but never much more than is expected of it."""
    if expected > _MOST_BYTES:
        raise _wrong(path, f"would have to hold {expected} bytes, which is more than any file of these sets")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(expected + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _wrong(path, "is no whole gzip file", str(error)) from error
    except OSError as error:
        cause = f"{path.name} cannot be read ({error.strerror or type(error).__name__})"
        raise CaseError(cause, "Make it readable, or leave --data out") from error
    if len(content) < least:
        raise _wrong(path, f"ends after {len(content)} bytes")
    return content


def _check_length(path: Path, content: bytes, expected: int) -> None:
    if len(content) < expected:
        raise _wrong(path, f"ends after {len(content)} bytes where {expected} are due")
    if len(content) > expected:
        raise _wrong(path, f"holds more than the {expected} bytes that are due")


def _checked_labels(labels: numpy.ndarray, path: Path) -> numpy.ndarray:
    if labels.size and int(labels.max()) >= _CLASSES:
        raise _wrong(path, f"holds the label {int(labels.max())} where 0 to {_CLASSES - 1} are known")
    return labels


def _wrong(path: Path, cause: str, detail: str = "") -> CaseError:
    """Names the file, which is one of a data set, but not the folder: the message gets into run files."""
    return CaseError(f"{path.name} {cause}", "Fetch it again, or leave --data out to use the stand-in", detail)


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
