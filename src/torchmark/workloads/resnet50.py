"""ResNet-50 on images: convolutions of every width, with norms between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import GRADIENTS, LAYOUT, Setting, Step, Tensors, Workload
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.learning import Descent, Forward, Lesson, guessing, prepare_training
from torchmark.workloads.reference import exact_model, plain_kernels

if TYPE_CHECKING:
    import torch

PARAMETERS = 25_557_032
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width inside the blocks, number of blocks
_WIDENING = 4  # of a block's output
_LABELS = 1000
_LEARNING_RATE, _MOMENTUM = 0.001, 0.9
_CHECKED_IMAGES = 2
_CHECKED_PIXELS = 64  # width and height in the check of training


class Params(Struct, frozen=True):
    """Images in a step, and their width and height in pixels."""

    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 32
    image: Annotated[int, Meta(ge=32, le=4096)] = 224


class Convolution(Struct, frozen=True):
    """One convolution: channels, kernel width, and the width of the image that comes out."""

    inputs: int
    outputs: int
    kernel: int
    pixels: int

    @property
    def products(self) -> int:
        """Multiplications for one image."""
        return self.inputs * self.outputs * self.kernel**2 * self.pixels**2


class Resnet50(Workload):
    """Random images, 1000 classes, random weights. `infer` is the forward pass in inference mode.

    `train` is cross entropy against random labels and a step of SGD with momentum; norms go by the batch then.
    """

    name = "resnet50"
    modes = ("infer", "train")
    params = Params
    tiny = Params(batch=2, image=32)
    ways = (LAYOUT, GRADIENTS)
    imports = ("transformers.models.resnet.modeling_resnet",)
    distributed = True

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: convolutions and the last layer, and twice as many on the way back, but none for the gradient of the
        images. Bytes: weights and images read once; in training weights and momentum are read and written."""
        convolutions = list(_convolutions(params.image))
        products = sum(each.products for each in convolutions) + _STAGES[-1][0] * _WIDENING * _LABELS
        training = setting.mode == "train"
        weights = PARAMETERS * (4 if training else 1)
        data = params.batch * (3 * params.image**2 + (1 if training else _LABELS))
        return setting.of_all_ranks(
            Work(
                items=params.batch,
                unit="image",
                flops=2 * params.batch * (3 * products - convolutions[0].products if training else products),
                bytes=(weights + data) * setting.item_bytes,
            )
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        made = [each.outputs * each.pixels**2 for each in _convolutions(params.image)]
        training = setting.mode == "train"
        images = params.batch * (3 * sum(made) if training else 4 * max(made))
        return setting.item_bytes * (PARAMETERS * (3 if training else 1) + images)

    def prepare(self, params: Params, setting: Setting) -> Step:
        prepare = _prepare_training if setting.mode == "train" else _prepare_inference
        return prepare(params, setting, self.work(params, setting))


def make_model() -> Any:
    """The model with weights drawn from torch's generator."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=_LABELS, problem_type="single_label_classification")
    return ResNetForImageClassification(config)


def _convolutions(image: int) -> Iterator[Convolution]:
    pixels = -(-image // 2)
    yield Convolution(3, _STAGES[0][0], 7, pixels)
    pixels, inputs = -(-pixels // 2), _STAGES[0][0]
    for stage, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            yield Convolution(inputs, width, 1, pixels)
            pixels = -(-pixels // 2) if block == 0 and stage > 0 else pixels
            yield Convolution(width, width, 3, pixels)
            yield Convolution(width, width * _WIDENING, 1, pixels)
            if block == 0:
                yield Convolution(inputs, width * _WIDENING, 1, pixels)
            inputs = width * _WIDENING


def make(params: Params, setting: Setting) -> tuple[Any, torch.Tensor]:
    """The model and its images on the host, already rounded to the dtype; the same for the same seed."""
    with setting.seeded():
        model = make_model().to(setting.torch_dtype)
    return model, _images(params, setting)[0]


def _images(params: Params, setting: Setting, most_pixels: int = 4096) -> Tensors:
    """Images and labels on the host, already rounded to the dtype."""
    import torch

    generator = setting.generator()
    labels = torch.randint(0, _LABELS, (params.batch,), generator=generator)
    images = torch.rand(params.batch, 3, params.image, params.image, generator=generator)
    return images[..., :most_pixels, :most_pixels].to(setting.torch_dtype), labels


def _loss(forward: Forward, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = forward(pixel_values=images, labels=labels).loss
    return loss


def _prepare_inference(params: Params, setting: Setting, work: Work) -> Step:
    import torch

    model, images = make(params, setting)
    made = fingerprints(model)
    forward = setting.compiled(setting.place_model(model).eval())
    feed = setting.feed(images)
    checked = [0, -1] if params.batch > 1 else [0]

    def run() -> torch.Tensor:
        with setting.without_gradients():
            return setting.drain(forward(pixel_values=feed()).logits)

    def reference() -> Tensors:
        few = _images(params, setting)[0][checked].double()
        with plain_kernels(), torch.inference_mode():
            return (exact_model(model)(pixel_values=few).logits,)

    return Step(
        run=run,
        work=work,
        outputs=lambda: (run()[checked],),
        reference=reference,
        copies=lambda: tuple(zip(fingerprints(model), made, strict=True)),
        roundings=24,  # three convolutions in each of 16 blocks; what goes past a block is not rounded by it
    )


def _prepare_training(params: Params, setting: Setting, work: Work) -> Step:
    lesson = Lesson(
        model=make(params, setting)[0],
        descent=Descent("SGD", _LEARNING_RATE, _MOMENTUM),
        loss=_loss,
        first_loss=guessing(_LABELS),
        feeds=[setting.feed(host) for host in _images(params, setting)],
        few=lambda: [host[:_CHECKED_IMAGES] for host in _images(params, setting, _CHECKED_PIXELS)],
        # Without batches to go by, later weights let values grow past all bounds.
        start=lambda: make(params, setting)[0],
    )
    return prepare_training(setting, lesson, work, {})
