"""A vision transformer in training: patches of images, attention, and AdamW."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from torchmark.workloads.contract import ATTENTION, Setting
from torchmark.workloads.encoder import SHAPES, Size, encoder_config
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec, guessing

_PATCH = 16
_PATCH_VALUES = 3 * _PATCH**2
_LABELS = 1000


class Params(Struct, frozen=True):
    """The model's size, images in a step, and their width and height in pixels."""

    size: Size = "base"
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 8
    image: Annotated[int, Meta(ge=_PATCH, le=4096)] = 224


class VitTrain(ModelWorkload):
    """Patches of 16 × 16 pixels, 1000 classes, random images and labels, no dropout; cross entropy, a step of AdamW."""

    name = "vit-train"
    modes = ("train",)
    params = Params
    tiny = Params(size="tiny", batch=2, image=32)
    options = (ATTENTION,)
    imports = ("transformers.models.vit.modeling_vit",)
    dtypes = ("float32", "float64", "bfloat16")

    def cost(self, params: Params, training: bool) -> Cost:
        shape, patches = SHAPES[params.size], (params.image // _PATCH) ** 2
        embedding = (_PATCH_VALUES + 1) * shape.hidden + (patches + 2) * shape.hidden
        parameters = embedding + shape.parameters + 2 * shape.hidden + (shape.hidden + 1) * _LABELS
        at_input = params.batch * patches * _PATCH_VALUES * shape.hidden
        return Cost(
            items=params.batch,
            unit="image",
            products=shape.products(params.batch, patches + 1) + params.batch * shape.hidden * _LABELS + at_input,
            products_at_input=at_input,
            numbers=6 * parameters + params.batch * 3 * params.image**2,
            integers=params.batch,
            memory=4 * parameters + shape.activations(params.batch, patches + 1, training),
        )

    def build(self, params: Params, setting: Setting) -> Model:
        import torch
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=params.image,
            patch_size=_PATCH,
            num_labels=_LABELS,
            problem_type="single_label_classification",
            **encoder_config(params.size, setting),
        )
        module, generator = ViTForImageClassification(config), setting.generator()
        labels = torch.randint(0, _LABELS, (params.batch,), generator=generator)
        images = torch.rand(params.batch, 3, params.image, params.image, generator=generator)
        return Model(
            module=module,
            inputs={"pixel_values": images, "labels": labels},
            loss=lambda answer, *_: answer.loss,
            optimizer=OptimizerSpec("AdamW", 1e-4),
            few=_few,
            first_loss=guessing(_LABELS),
            notes={"attention": module.config._attn_implementation},
        )


def _few(inputs: dict[str, Any], _: None) -> tuple[dict[str, Any], None]:
    """One image with a label that is not learned: of a learned one a few steps leave a loss of nearly zero, a
    difference of nearly equal numbers that short formats cannot represent."""
    return {"pixel_values": inputs["pixel_values"][:1], "labels": (inputs["labels"][:1] + 1) % _LABELS}, None
