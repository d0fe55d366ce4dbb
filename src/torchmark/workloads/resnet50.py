"""ResNet-50 on images: convolutions of every width, with norms between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from torchmark.workloads.contract import GRADIENTS, LAYOUT, Setting
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec, guessing

_PARAMETERS = 25_557_032
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width inside the blocks, number of blocks
_WIDENING = 4  # of a block's output
_LABELS = 1000
_CHECKED_PIXELS = 64  # width and height in the check of training


class Params(Struct, frozen=True):
    """Images in a step, and their width and height in pixels."""

    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 32
    image: Annotated[int, Meta(ge=32, le=4096)] = 224


class Resnet50(ModelWorkload):
    """Random images, 1000 classes, random weights. `infer` is the forward pass in inference mode.

    `train` is cross entropy against random labels and a step of SGD with momentum; norms go by the batch then.
    """

    name = "resnet50"
    params = Params
    tiny = Params(batch=2, image=32)
    options = (LAYOUT, GRADIENTS)
    imports = ("transformers.models.resnet.modeling_resnet",)

    def cost(self, params: Params, training: bool) -> Cost:
        convolutions = list(_convolutions(params.image))
        outputs = [each.outputs * each.pixels**2 for each in convolutions]
        products = sum(each.products for each in convolutions) + _STAGES[-1][0] * _WIDENING * _LABELS
        kept = 3 * sum(outputs) if training else 4 * max(outputs)
        return Cost(
            items=params.batch,
            unit="image",
            products=params.batch * products,
            products_at_input=params.batch * convolutions[0].products,
            numbers=_PARAMETERS * (4 if training else 1)
            + params.batch * (3 * params.image**2 + (1 if training else _LABELS)),
            memory=_PARAMETERS * (3 if training else 1) + params.batch * kept,
        )

    def build(self, params: Params, setting: Setting) -> Model:
        import torch
        from transformers import ResNetConfig, ResNetForImageClassification

        generator = setting.generator()
        labels = torch.randint(0, _LABELS, (params.batch,), generator=generator)
        images = torch.rand(params.batch, 3, params.image, params.image, generator=generator)
        training = setting.mode == "train"
        return Model(
            module=ResNetForImageClassification(
                ResNetConfig(num_labels=_LABELS, problem_type="single_label_classification")
            ),
            inputs={"pixel_values": images} | ({"labels": labels} if training else {}),
            result=lambda answer: answer.logits,
            loss=lambda answer, *_: answer.loss,
            optimizer=OptimizerSpec("SGD", 0.001, momentum=0.9),
            few=_few if training else None,
            first_loss=guessing(_LABELS),
        )


def _few(inputs: dict[str, Any], _: None) -> tuple[dict[str, Any], None]:
    few = inputs["pixel_values"][:2, :, :_CHECKED_PIXELS, :_CHECKED_PIXELS]
    return {"pixel_values": few, "labels": inputs["labels"][:2]}, None


class _Convolution(NamedTuple):
    """Channels, kernel width, and the width of the image that comes out."""

    inputs: int
    outputs: int
    kernel: int
    pixels: int

    @property
    def products(self) -> int:
        return self.inputs * self.outputs * self.kernel**2 * self.pixels**2


def _convolutions(image: int) -> Iterator[_Convolution]:
    pixels = -(-image // 2)
    yield _Convolution(3, _STAGES[0][0], 7, pixels)
    pixels, inputs = -(-pixels // 2), _STAGES[0][0]
    for stage, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            yield _Convolution(inputs, width, 1, pixels)
            pixels = -(-pixels // 2) if block == 0 and stage > 0 else pixels
            yield _Convolution(width, width, 3, pixels)
            yield _Convolution(width, width * _WIDENING, 1, pixels)
            if block == 0:
                yield _Convolution(inputs, width * _WIDENING, 1, pixels)
            inputs = width * _WIDENING
