"""Takes batches from a data set through torch's own loader, epoch after epoch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchmark.workloads.contract import Setting

if TYPE_CHECKING:
    import torch


class Normalized:
    """A data set as torch's loader wants it: one image as floating-point numbers, and its label.

    Bytes become numbers one image at a time, as published training scripts do it: that is part of what is measured.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: float, deviation: float) -> None:
        self._images, self._labels = images, labels
        self._scale, self._offset = 1 / (255 * deviation), mean / deviation

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.several(index)

    def several(self, index: int | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for many at once, where loading is not what is measured."""
        return self._images[index] * self._scale - self._offset, self._labels[index]


class Batches:
    """Batches without end: where an epoch ends the next one begins. Processes that load end with this object."""

    def __init__(self, loader: Any, sampler: Any = None) -> None:
        self.per_epoch = len(loader)
        self.epoch = -1
        self._loader, self._sampler = loader, sampler
        self._left: Iterator[list[torch.Tensor]] = iter(())

    def take(self) -> list[torch.Tensor]:
        """The next images and their labels, in memory of the host. The first one starts what loads them."""
        batch = next(self._left, None)
        if batch is None:
            self.epoch += 1
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self.epoch)
            self._left = iter(self._loader)
            batch = next(self._left)
        return batch


def batches(
    data: Normalized,
    batch: int,
    setting: Setting,
    *,
    workers: int = 0,
    shuffle: bool = True,
    order: Sequence[int] | None = None,
) -> Batches:
    """Batches of this data set: shuffled, of which each rank gets its own part; as they are; or in a given order."""
    from torch.utils.data import DataLoader

    loads: Any = data  # all that is asked of a data set are a length and items
    sampler = order if order is not None else _shuffled(loads, setting) if shuffle else None
    loader: Any = DataLoader(
        loads,
        batch_size=batch,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=_end_with_parent,
        generator=setting.generator(),
    )
    return Batches(loader, sampler)


def _end_with_parent(worker: int) -> None:
    """On Linux a loading process is ended by signal with the one that started it: torch's own watch takes seconds."""
    del worker
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _shuffled(data: Any, setting: Setting) -> Any:
    """With a generator of its own: the loader draws from its one more or less often, depending on its processes."""
    from torch.utils.data import DistributedSampler, RandomSampler

    if setting.world_size == 1:
        return RandomSampler(data, generator=setting.generator())
    sampler: Any = DistributedSampler(data, setting.world_size, setting.rank, seed=setting.seed)
    return sampler
