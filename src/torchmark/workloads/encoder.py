"""Encoders shaped like BERT, whose work and memory are known without torch; classifiers of images."""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.workloads.contract import Setting
from torchmark.workloads.model import Model, guessing

Size = Literal["tiny", "base", "large"]
POSITIONS = 512
LABELS = 1000  # of an image


class Shape(Struct, frozen=True):
    """Equal layers of attention and two dense layers; fields are named as in transformers."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int

    @property
    def parameters(self) -> int:
        """Weights, biases and norms of all layers."""
        hidden, wide = self.hidden_size, self.intermediate_size
        of_layer = 4 * (hidden + 1) * hidden + (hidden + 1) * wide + (wide + 1) * hidden + 4 * hidden
        return self.num_hidden_layers * of_layer

    def products(self, rows: int, tokens: int) -> int:
        """Multiplications in the matrix products of all layers: with weights, and in attention."""
        weights = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * rows * tokens * (weights + 2 * tokens * self.hidden_size)

    def activations(self, rows: int, tokens: int, training: bool) -> float:
        """About how many numbers besides the weights are in memory at once: of every layer in training, else of one."""
        states = rows * tokens * (12 * self.hidden_size + 3 * self.intermediate_size)
        scores = rows * self.num_attention_heads * tokens**2
        return self.num_hidden_layers * (states + 3 * scores) if training else states / 2 + scores

    def bert_parameters(self, vocabulary: int, head: int) -> int:
        """With embeddings of words, positions and two kinds of sentences, their norm, and `head` outputs."""
        return (vocabulary + POSITIONS + 2 + 2) * self.hidden_size + self.parameters + (self.hidden_size + 1) * head


# `tiny` is a test of a second, not a model in use.
SHAPES = {"tiny": Shape(2, 64, 2, 128), "base": Shape(12, 768, 12, 3072), "large": Shape(24, 1024, 16, 4096)}


def encoder_config(size: str, setting: Setting) -> dict[str, Any]:
    """Fields of all configurations of transformers; attention is its default unless chosen."""
    attention = setting.options.get("attention")
    return asdict(SHAPES[size]) | ({"attn_implementation": attention} if attention else {})


def image_classifier(architecture: str, params: Any, setting: Setting, **config: Any) -> Model:
    """A model of that name with random images and, in training, labels."""
    import torch
    import transformers

    generator, size = setting.generator(), (params.batch, 3, params.image, params.image)
    labels = {"labels": torch.randint(0, LABELS, (params.batch,), generator=generator)}
    images = {"pixel_values": torch.rand(size, generator=generator)}
    config |= {"num_labels": LABELS, "problem_type": "single_label_classification"}
    make_model = getattr(transformers, f"{architecture}ForImageClassification")
    return Model(
        module=make_model(make_model.config_class(**config)),
        inputs=images | (labels if setting.mode == "train" else {}),
        result=lambda answer: answer.logits,
        first_loss=guessing(LABELS),
    )
