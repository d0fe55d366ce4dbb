"""ResNet-50 on images: convolutions of every width, with norms between them."""

from collections.abc import Iterator
from operator import mul
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.workloads.contract import GRADIENTS, LAYOUT, Count, Setting
from torchmark.workloads.encoder import LABELS, image_classifier
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec

_PARAMETERS = 25_557_032
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width inside the blocks, number of blocks


class Params(Struct, frozen=True):
    batch: Count = 32  # images in a step
    image: Annotated[int, Meta(ge=32, le=4096)] = 224  # width and height in pixels


class Resnet50(ModelWorkload):
    """Random images and weights, 1000 classes. `train`: cross entropy, norms by the batch, SGD with momentum."""

    name = "resnet50"
    tiny = Params(batch=2, image=32)
    options = (LAYOUT, GRADIENTS)
    imports = ("transformers.models.resnet.modeling_resnet",)

    def cost(self, params: Params, training: bool) -> Cost:
        weights, outputs = zip(*_convolutions(params.image), strict=True)
        products = [*map(mul, weights, outputs)]
        kept = 3 * sum(outputs) if training else 4 * max(outputs)
        given = 3 * params.image**2 + (1 if training else LABELS)
        every = params.batch * (sum(products) + 4 * _STAGES[-1][0] * LABELS)
        numbers = _PARAMETERS * (4 if training else 1) + params.batch * given
        memory = _PARAMETERS * (3 if training else 1) + params.batch * kept
        return Cost(params.batch, "image", every, numbers, params.batch * products[0], memory=memory)

    def build(self, params: Params, setting: Setting) -> Model:
        def few(inputs: Any, _: None) -> tuple[Any, None]:
            return {"pixel_values": inputs["pixel_values"][:2, :, :64, :64], "labels": inputs["labels"][:2]}, None

        model, optimizer = image_classifier("ResNet", params, setting), OptimizerSpec("SGD", 0.001, momentum=0.9)
        return replace(model, optimizer=optimizer, few=few if setting.mode == "train" else None)


def _convolutions(image: int) -> Iterator[tuple[int, int]]:
    """Of each convolution: the weights behind one output, and the outputs for one image."""
    pixels = -(-image // 2)
    yield 3 * 7**2, 64 * pixels**2
    pixels, inputs = -(-pixels // 2), 64
    for width, blocks in _STAGES:
        for block in range(blocks):
            yield inputs, width * pixels**2
            pixels = -(-pixels // 2) if block == 0 and width > 64 else pixels
            yield width * 3**2, width * pixels**2
            yield width, 4 * width * pixels**2
            if block == 0:
                yield inputs, 4 * width * pixels**2
            inputs = 4 * width
