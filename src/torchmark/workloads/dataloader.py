"""Loads batches of images and does nothing with them: how fast torch's data loader can feed training."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Workload
from torchmark.workloads.image_training import DATASETS, Batches, Normalized


class Params(Struct, frozen=True):
    dataset: Literal["mnist", "cifar10"] = "mnist"
    batch: Annotated[int, Meta(ge=1, le=50_000)] = 64
    images: Annotated[int, Meta(ge=1, le=50_000)] = 50_000  # in an epoch
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 2  # processes; 0: none


class Dataloader(Workload):
    """A step takes one shuffled batch and copies it to the device; every image is normalised by itself. Loading
    processes work ahead, so that consecutive steps show how many images per second all of them can make."""

    name = "dataloader"
    dtypes = ("float32", "bfloat16", "float16")  # images are made in float32
    tiny = Params(batch=2, images=12, loader_workers=0)

    def work(self, params: Params, setting: Setting) -> Work:
        """Each pixel is scaled and shifted, read as a byte and written as a number of four."""
        pixels = params.batch * DATASETS[params.dataset][0]
        return Work(items=params.batch, unit="image", flops=2 * pixels, bytes=(1 + 4) * pixels)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        from torchmark.workloads.images import load_images

        images = load_images(params.dataset, setting.data, params.images)
        data, (_, mean, deviation) = Normalized(images), DATASETS[params.dataset]
        feed = Batches(data, params.batch, setting, params.loader_workers)
        order = torch.randperm(params.images, generator=setting.generator())
        few = [*map(int, order[: min(2, params.batch)])]

        return Step(
            lambda: setting.drain(setting.place(feed.take()[0])),
            self.work(params, setting),
            outputs=lambda: (setting.place(Batches(data, params.batch, setting, order=few).take()[0]),),
            reference=lambda: (torch.from_numpy((images.train_images[few].double().numpy() / 255 - mean) / deviation),),
            job_steps=feed.per_epoch,
            epochs=1,
            metrics=lambda: {"data_is_real": float(images.source == "files"), "loader_share": 1.0},
            notes={"data": images.source},
        )
