"""A vision transformer in training: patches of images, attention, and AdamW."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.workloads.contract import ATTENTION, Count, Setting
from torchmark.workloads.encoder import LABELS, SHAPES, Size, encoder_config, image_classifier
from torchmark.workloads.model import Cost, Model, ModelWorkload

_PATCH = 16


class Params(Struct, frozen=True):
    size: Size = "base"
    batch: Count = 8  # images in a step
    image: Annotated[int, Meta(ge=_PATCH, le=4096)] = 224  # width and height in pixels


class VitTrain(ModelWorkload):
    """Patches of 16 × 16 pixels, 1000 classes, random images and labels, no dropout; cross entropy, a step of AdamW."""

    name = "vit-train"
    modes = ("train",)
    tiny = Params(size="tiny", batch=2, image=32)
    options = (ATTENTION,)
    imports = ("transformers.models.vit.modeling_vit",)
    dtypes = ("float32", "float64", "bfloat16")

    def cost(self, params: Params, training: bool) -> Cost:
        shape, rows, patches, values = SHAPES[params.size], params.batch, (params.image // _PATCH) ** 2, 3 * _PATCH**2
        # Of patches, positions and the class token with its place; the layers, their last norm, and the classes.
        parameters = (values + patches + 5) * shape.hidden_size + shape.parameters + (shape.hidden_size + 1) * LABELS
        at_input = rows * patches * values * shape.hidden_size
        products = shape.products(rows, patches + 1) + rows * shape.hidden_size * LABELS + at_input
        numbers = 6 * parameters + rows * 3 * params.image**2
        memory = 4 * parameters + shape.activations(rows, patches + 1, training)
        return Cost(rows, "image", products, numbers, at_input, integers=rows, memory=memory)

    def build(self, params: Params, setting: Setting) -> Model:
        def few(inputs: Any, _: None) -> tuple[Any, None]:  # a label that is not learned, as in bert-classify
            return {"pixel_values": inputs["pixel_values"][:1], "labels": (inputs["labels"][:1] + 1) % LABELS}, None

        sizes = encoder_config(params.size, setting) | {"image_size": params.image, "patch_size": _PATCH}
        model = image_classifier("ViT", params, setting, **sizes)
        config: Any = model.module.config
        return replace(model, few=few, notes={"attention": config._attn_implementation})
