"""Loads batches of images and does nothing with them: how fast torch's data loader can feed a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload
from torchmark.workloads.images import cifar10, mnist
from torchmark.workloads.images.loading import Normalized, batches

if TYPE_CHECKING:
    import torch

_PIXELS = {"mnist": 28 * 28, "cifar10": 3 * 32 * 32}
_NORMAL = {"mnist": (0.1307, 0.3081), "cifar10": (0.5, 0.5)}
_MADE_AS = 4  # bytes of a number as the loader makes it, whatever it is turned into later
_CHECKED_IMAGES = 2


class Params(Struct, frozen=True):
    """Which images, how many in a batch and in an epoch, and processes that load them (0: the asking one itself)."""

    dataset: Literal["mnist", "cifar10"] = "mnist"
    batch: Annotated[int, Meta(ge=1, le=50_000)] = 64
    images: Annotated[int, Meta(ge=1, le=50_000)] = 50_000
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 2


class Dataloader(Workload):
    """A step asks for one shuffled batch and puts it on the device; every image is normalised by itself.

    Loading processes work ahead, so that steps one after another tell how many images a second all of them can make.
    """

    name = "dataloader"
    params = Params
    dtypes = ("float32", "bfloat16", "float16")  # images are made in float32: as float64 they hold no more
    tiny = Params(batch=2, images=12, loader_workers=0)

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: each pixel is scaled and shifted. Bytes: pixels are read as bytes and written as numbers."""
        del setting
        pixels = params.batch * _PIXELS[params.dataset]
        return Work(items=params.batch, unit="image", flops=2 * pixels, bytes=(1 + _MADE_AS) * pixels)

    def prepare(self, params: Params, setting: Setting) -> Step:
        images = (mnist if params.dataset == "mnist" else cifar10)(setting.data, params.images)
        data = Normalized(images.train_images, images.train_labels, *_NORMAL[params.dataset])
        feed = batches(data, params.batch, setting, workers=params.loader_workers)

        def load() -> torch.Tensor:
            return setting.drain(setting.place(feed.take()[0]))

        def known() -> Tensors:
            return [setting.place(batches(data, params.batch, setting, order=_few(params, setting)).take()[0])]

        return Step(
            run=load,
            work=self.work(params, setting),
            outputs=known,
            reference=lambda: [_normalized(params, images.train_images[_few(params, setting)])],
            job_steps=feed.per_epoch,
            epochs=1,
            metrics=lambda: {"data_is_real": float(images.is_real), "loader_share": 1.0},
            notes={"data": images.source},
        )


def _few(params: Params, setting: Setting) -> list[int]:
    """Which images are looked at in the check."""
    import torch

    chosen = torch.randperm(params.images, generator=setting.generator())[: min(_CHECKED_IMAGES, params.batch)]
    return [int(index) for index in chosen]


def _normalized(params: Params, images: torch.Tensor) -> torch.Tensor:
    """The same by numpy in float64, as it is written in books."""
    import torch

    mean, deviation = _NORMAL[params.dataset]
    return torch.from_numpy((images.double().numpy() / 255 - mean) / deviation)
