"""A vision transformer in training: patches of images, attention, and AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import ATTENTION, Setting, Step, Tensors, Workload
from torchmark.workloads.encoder import SHAPES, Size, activations, layer_parameters, layer_products
from torchmark.workloads.learning import Descent, Forward, Lesson, guessing, prepare_training

if TYPE_CHECKING:
    import torch

_PATCH = 16
_PATCH_VALUES = 3 * _PATCH**2
_LABELS = 1000
_LEARNING_RATE = 1e-4
_CHECKED_IMAGES = 1


class Params(Struct, frozen=True):
    """The model's size, images in a step, and their width and height in pixels."""

    size: Size = "base"
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 8
    image: Annotated[int, Meta(ge=_PATCH, le=4096)] = 224


class VitTrain(Workload):
    """Patches of 16 × 16 pixels, 1000 classes, random images and labels, no dropout; cross entropy, a step of AdamW."""

    name = "vit-train"
    modes = ("train",)
    params = Params
    tiny = Params(size="tiny", batch=2, image=32)
    ways = (ATTENTION,)
    imports = ("transformers.models.vit.modeling_vit",)
    dtypes = ("float32", "float64", "bfloat16")
    distributed = True

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: matrix products only, and twice as many on the way back, but none for the gradient of the images.
        Bytes: images read once; weights and the two means that AdamW keeps for each of them are read and written."""
        shape, patches = SHAPES[params.size], (params.image // _PATCH) ** 2
        layers = layer_products(shape, params.batch, patches + 1) + params.batch * shape.hidden * _LABELS
        embedding = params.batch * patches * _PATCH_VALUES * shape.hidden
        images = params.batch * 3 * params.image**2
        return setting.of_all_ranks(
            Work(
                items=params.batch,
                unit="image",
                flops=2 * (3 * layers + 2 * embedding),
                bytes=(6 * parameter_count(params) + images) * setting.item_bytes + params.batch * 8,
            )
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        tokens = (params.image // _PATCH) ** 2 + 1
        numbers = activations(SHAPES[params.size], params.batch, tokens, training=True)
        return setting.item_bytes * (4 * parameter_count(params) + numbers)

    def prepare(self, params: Params, setting: Setting) -> Step:
        with setting.seeded():
            model = make_model(params, setting.ways.get("attention")).to(setting.torch_dtype)
        lesson = Lesson(
            model=model,
            descent=Descent("AdamW", _LEARNING_RATE),
            loss=_loss,
            first_loss=guessing(_LABELS),
            feeds=[setting.feed(host) for host in _images(params, setting)],
            few=lambda: _other_images(params, setting),
        )
        notes = {"attention": model.config._attn_implementation}
        return prepare_training(setting, lesson, self.work(params, setting), notes)


def parameter_count(params: Params) -> int:
    """The embedding of patches, positions and the first token, the layers, the last norm, and the classes."""
    shape, patches = SHAPES[params.size], (params.image // _PATCH) ** 2
    embedding = (_PATCH_VALUES + 1) * shape.hidden + (patches + 2) * shape.hidden
    return embedding + layer_parameters(shape) + 2 * shape.hidden + (shape.hidden + 1) * _LABELS


def make_model(params: Params, attention: str | None = None) -> Any:
    """The model with weights drawn from torch's generator; its attention is what the library picks, unless named."""
    from transformers import ViTConfig, ViTForImageClassification

    shape = SHAPES[params.size]
    config = ViTConfig(
        image_size=params.image,
        patch_size=_PATCH,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feedforward,
        num_labels=_LABELS,
        problem_type="single_label_classification",
        **({"attn_implementation": attention} if attention else {}),
    )
    return ViTForImageClassification(config)


def _images(params: Params, setting: Setting) -> Tensors:
    import torch

    generator = setting.generator()
    labels = torch.randint(0, _LABELS, (params.batch,), generator=generator)
    images = torch.rand(params.batch, 3, params.image, params.image, generator=generator)
    return images.to(setting.torch_dtype), labels


def _other_images(params: Params, setting: Setting) -> Tensors:
    """A few images with labels that are not learned: of the learned ones a few steps leave a loss of nearly nothing,
    which is a difference of nearly equal numbers that short formats cannot tell."""
    images, labels = (host[:_CHECKED_IMAGES] for host in _images(params, setting))
    return images, (labels + 1) % _LABELS


def _loss(forward: Forward, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = forward(pixel_values=images, labels=labels).loss
    return loss
