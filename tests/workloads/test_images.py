"""Images are read from the real files or made up, the same every time; a file that is wrong is named with its fix."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.errors import CaseError
from torchmark.workloads.images import load_images, read_cifar10_records, read_idx

COUNT = 3
mnist, cifar10 = partial(load_images, "mnist"), partial(load_images, "cifar10")
RECORD = 1 + 3 * 32 * 32


def idx(array: numpy.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def pixels(*shape: int) -> numpy.ndarray:
    return numpy.random.RandomState(1).randint(0, 256, shape).astype(numpy.uint8)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    return path


def records(count: int = COUNT) -> bytes:
    made = pixels(count, RECORD)
    made[:, 0] %= 10
    return made.tobytes()


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_an_idx_file_gives_the_bytes_that_were_written(tmp_path: Path, name: str) -> None:
    made = pixels(COUNT, 28, 28)
    assert (read_idx(write(tmp_path, name, idx(made)), made.shape) == made).all()


@pytest.mark.parametrize("name", ["data.bin", "data.bin.gz"])
def test_a_cifar10_file_gives_images_and_labels(tmp_path: Path, name: str) -> None:
    content = records()
    images, labels = read_cifar10_records(write(tmp_path, name, content), COUNT)
    assert images.shape == (COUNT, 3, 32, 32)
    assert images[1].tobytes() == content[RECORD + 1 : 2 * RECORD]
    assert labels.tolist() == [content[place * RECORD] for place in range(COUNT)]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "ends after 0 bytes"),
        (b"\0\0\x08", "ends after 3 bytes"),
        (b"\0\0\x0d\3" + bytes(3 * 4), "begins with 00000d03"),
        (idx(pixels(COUNT)) + bytes(100), "begins with 00000801"),
        (b"\x80\x04" + bytes(100), "begins with 8004"),
        (idx(pixels(COUNT, 28, 27)), "28 × 27"),
        (idx(pixels(COUNT + 1, 28, 28)), "4 × 28 × 28 bytes where 3 × 28 × 28"),
        (b"\0\0\x08\3" + b"\xff" * 12, "4294967295 × 4294967295"),
        (idx(pixels(COUNT, 28, 28))[:-1], "ends after 2367 bytes where 2368 are due"),
        (idx(pixels(COUNT, 28, 28)) + b"!", "holds more than the 2368 bytes"),
    ],
)
@pytest.mark.parametrize("name", ["train-images", "train-images.gz"])
def test_a_wrong_idx_file_is_named_with_the_cause(tmp_path: Path, name: str, content: bytes, cause: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(CaseError) as raised:
        read_idx(path, (COUNT, 28, 28))
    assert raised.value.cause.startswith(name)
    assert cause in raised.value.cause
    assert "--data" in raised.value.fix


@given(st.data())
def test_a_damaged_file_is_read_rightly_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut short or changed anywhere, packed or not: the bytes that are there, or an error that names the file."""
    packed = data.draw(st.booleans())
    whole = idx(pixels(COUNT, 28, 28))
    content = bytearray(gzip.compress(whole, 1) if packed else whole)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path_factory.mktemp("damaged") / ("file.gz" if packed else "file")
    path.write_bytes(bytes(content))
    expected = whole[16:] if packed else bytes(content[16:])
    outcome: object
    try:
        outcome = read_idx(path, (COUNT, 28, 28)).tobytes()
    except CaseError as error:
        outcome = error.cause.startswith(path.name) and error.fix != ""
    assert outcome in (True, expected)


@given(st.binary(max_size=200))
def test_any_content_a_file_holds_it_ends_in_an_error_of_its_case(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("strange")
    for name in ("file", "file.gz"):
        (folder / name).write_bytes(content)
        for read in (lambda path: read_idx(path, (COUNT, 28, 28)), lambda path: read_cifar10_records(path, COUNT)):
            with pytest.raises(CaseError):
                read(folder / name)


def test_a_small_packed_file_that_unpacks_without_end_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx(pixels(COUNT, 28, 28)) + bytes(1 << 24)))
    with pytest.raises(CaseError, match="more than the 2368 bytes"):
        read_idx(path, (COUNT, 28, 28))


def test_a_label_that_no_class_has_is_refused(tmp_path: Path) -> None:
    content = bytearray(records())
    content[RECORD] = 10
    with pytest.raises(CaseError, match="holds the label 10"):
        read_cifar10_records(write(tmp_path, "data_batch_1.bin", bytes(content)), COUNT)


def test_an_absurd_size_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="more than any file"):
        read_idx(write(tmp_path, "file", b""), (1 << 20, 1 << 20))


@pytest.mark.parametrize(("load", "first"), [(mnist, "train-images-idx3-ubyte"), (cifar10, "data_batch_1.bin")])
def test_a_folder_without_the_files_is_reported_what_belongs_there(tmp_path: Path, load: object, first: str) -> None:
    with pytest.raises(CaseError, match=f"no file {first}.*leave --data out") as raised:
        load(str(tmp_path))  # type: ignore[operator]
    assert str(tmp_path) not in str(raised.value)
    with pytest.raises(CaseError, match="no folder"):
        load(str(tmp_path / "nowhere"))  # type: ignore[operator]


def test_a_file_that_may_not_be_read_is_named_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pixels(1, 28, 28)))
    (tmp_path / "train-labels-idx1-ubyte").mkdir()
    with pytest.raises(CaseError, match="no file train-labels"):
        mnist(str(tmp_path))
    with pytest.raises(CaseError) as raised:
        read_idx(tmp_path / "train-labels-idx1-ubyte", (1,))
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("inner", ["", "MNIST/raw/"])
def test_whole_mnist_files_are_found_where_other_programs_put_them(tmp_path: Path, inner: str) -> None:
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        write(tmp_path, f"{inner}{part}-images-idx3-ubyte", idx(numpy.full((count, 28, 28), 7, numpy.uint8)))
        write(tmp_path, f"{inner}{part}-labels-idx1-ubyte.gz", idx((numpy.arange(count) % 10).astype(numpy.uint8)))
    found = mnist(str(tmp_path), count=600)
    assert found.source == "files"
    assert found.train_images.shape == (600, 1, 28, 28)
    assert len(found.test_labels) == 100
    assert found.train_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_whole_cifar10_files_are_put_together_in_order(tmp_path: Path) -> None:
    for part in range(5):
        content = numpy.full((10_000, RECORD), part, numpy.uint8).tobytes()
        write(tmp_path, f"cifar-10-batches-bin/data_batch_{part + 1}.bin", content)
    write(tmp_path, "cifar-10-batches-bin/test_batch.bin", numpy.full((10_000, RECORD), 9, numpy.uint8).tobytes())
    found = cifar10(str(tmp_path))
    assert found.source == "files"
    assert found.train_images.shape == (50_000, 3, 32, 32)
    assert found.train_labels[::10_000].tolist() == [0, 1, 2, 3, 4]
    assert found.test_labels.unique().tolist() == [9]


@pytest.mark.parametrize(
    ("load", "counts", "shape"),
    [(mnist, (60_000, 10_000), (1, 28, 28)), (cifar10, (50_000, 10_000), (3, 32, 32))],
)
def test_the_stand_in_has_the_form_of_the_real_set(
    load: object, counts: tuple[int, int], shape: tuple[int, ...]
) -> None:
    made = load(count=counts[0])  # type: ignore[operator]
    assert made.source == "stand-in"
    assert made.train_images.shape == (counts[0], *shape)
    assert made.test_images.shape == (counts[1], *shape)
    for labels, count in zip((made.train_labels, made.test_labels), counts, strict=True):
        assert (labels.bincount() > 0.09 * count).all()
        assert labels.max() == 9


@pytest.mark.parametrize(("load", "checksum"), [(mnist, 4070515545), (cifar10, 3941721028)])
def test_the_stand_in_is_the_same_everywhere_and_a_small_one_begins_the_large_one(load: object, checksum: int) -> None:
    few, more = load(count=300), load(count=1200)  # type: ignore[operator]
    assert (few.train_images == more.train_images[:300]).all()
    assert (few.train_labels == more.train_labels[:300]).all()
    assert not (few.test_images == few.train_images[: len(few.test_images)]).all()
    assert zlib.crc32(few.train_images.numpy().tobytes() + few.train_labels.numpy().tobytes()) == checksum


@pytest.mark.parametrize("load", [mnist, cifar10])
def test_the_stand_in_is_more_than_templates(load: object) -> None:
    """Nearest class mean, all that templates would need, is far from what a network learns."""
    made = load(count=6000)  # type: ignore[operator]
    train, test = (images.flatten(1).double() for images in (made.train_images, made.test_images))
    means = [train[made.train_labels == label].mean(0) for label in range(10)]
    nearest = [min(range(10), key=lambda label: float((image - means[label]).norm())) for image in test]
    share = sum(one == int(other) for one, other in zip(nearest, made.test_labels, strict=True)) / len(nearest)
    assert 0.2 < share < 0.93
