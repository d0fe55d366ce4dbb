"""Encoders shaped like BERT, with sizes, products and memory known without torch; classifiers of images."""

from typing import Any, Literal

from msgspec import Struct

from torchmark.workloads.contract import Setting
from torchmark.workloads.model import Model, guessing

Size = Literal["tiny", "base", "large"]
POSITIONS = 512
LABELS = 1000  # of an image


class Shape(Struct, frozen=True):
    """A stack of equal layers, each of attention and two dense layers."""

    layers: int
    hidden: int
    heads: int
    feedforward: int

    @property
    def parameters(self) -> int:
        """Weights, biases and norms of all layers, without what comes before and after them."""
        hidden, wide = self.hidden, self.feedforward
        return self.layers * (4 * (hidden + 1) * hidden + (hidden + 1) * wide + (wide + 1) * hidden + 4 * hidden)

    def products(self, rows: int, tokens: int) -> int:
        """Multiplications in the matrix products of all layers: with their weights, and of attention with itself."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.feedforward
        return self.layers * rows * tokens * (weights + 2 * tokens * self.hidden)

    def activations(self, rows: int, tokens: int, training: bool) -> float:
        """About how many numbers are in memory at once besides the weights: in training those of every layer, else
        those of one, whose attention may or may not be computed in one piece."""
        states = rows * tokens * (12 * self.hidden + 3 * self.feedforward)
        scores = rows * self.heads * tokens**2
        return self.layers * (states + 3 * scores) if training else states / 2 + scores

    def bert_parameters(self, vocabulary: int, head: int) -> int:
        """Embeddings of words, positions and two kinds of sentences with their norm, the layers, and dense layers with
        so many outputs after them."""
        return (vocabulary + POSITIONS + 2 + 2) * self.hidden + self.parameters + (self.hidden + 1) * head


# `tiny` is a test of a second, not a model in use.
SHAPES = {"tiny": Shape(2, 64, 2, 128), "base": Shape(12, 768, 12, 3072), "large": Shape(24, 1024, 16, 4096)}


def encoder_config(size: str, setting: Setting) -> dict[str, Any]:
    """What the model library's configurations have in common; attention is the library's default unless chosen."""
    shape, attention = SHAPES[size], setting.options.get("attention")
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward,
        **({"attn_implementation": attention} if attention else {}),
    }


def image_classifier(architecture: str, params: Any, setting: Setting, **config: Any) -> Model:
    """A model of that name with random images and labels; in inference it is given no labels."""
    import torch
    import transformers

    generator, size = setting.generator(), (params.batch, 3, params.image, params.image)
    labels = {"labels": torch.randint(0, LABELS, (params.batch,), generator=generator)}
    images = {"pixel_values": torch.rand(size, generator=generator)}
    kind = getattr(transformers, f"{architecture}Config")
    made = kind(num_labels=LABELS, problem_type="single_label_classification", **config)
    return Model(
        module=getattr(transformers, f"{architecture}ForImageClassification")(made),
        inputs=images | (labels if setting.mode == "train" else {}),
        result=lambda answer: answer.logits,
        first_loss=guessing(LABELS),
    )
