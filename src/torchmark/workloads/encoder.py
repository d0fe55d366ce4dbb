"""What encoders shaped like BERT are made of, hold and cost: sizes, parameters, matrix products, memory."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Size = Literal["tiny", "base", "large"]


class Shape(Struct, frozen=True):
    """A stack of equal layers, each of attention and two dense layers."""

    layers: int
    hidden: int
    heads: int
    feedforward: int


# `tiny` is no model that anyone uses: it tells within a second whether everything works.
SHAPES: dict[str, Shape] = {
    "tiny": Shape(2, 64, 2, 128),
    "base": Shape(12, 768, 12, 3072),
    "large": Shape(24, 1024, 16, 4096),
}


POSITIONS = 512


def bert_config(size: str, vocabulary: int, **more: Any) -> Any:
    """The model library's description of BERT in this size."""
    from transformers import BertConfig

    shape = SHAPES[size]
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feedforward,
        max_position_embeddings=POSITIONS,
        **more,
    )


def embedding_parameters(shape: Shape, vocabulary: int) -> int:
    """Of words, positions and the two kinds of sentences, with the norm after them."""
    return (vocabulary + POSITIONS + 2 + 2) * shape.hidden


def layer_parameters(shape: Shape) -> int:
    """Weights, biases and norms of all layers, without what comes before and after them."""
    attention = 4 * (shape.hidden + 1) * shape.hidden
    dense = (shape.hidden + 1) * shape.feedforward + (shape.feedforward + 1) * shape.hidden
    return shape.layers * (attention + dense + 4 * shape.hidden)


def layer_products(shape: Shape, rows: int, tokens: int) -> int:
    """Multiplications in the matrix products of all layers: with their weights, and of attention with itself."""
    weights = 4 * shape.hidden**2 + 2 * shape.hidden * shape.feedforward
    return shape.layers * rows * tokens * (weights + 2 * tokens * shape.hidden)


def activations(shape: Shape, rows: int, tokens: int, training: bool) -> float:
    """About how many numbers are there at once beside the weights; training keeps those of every layer."""
    states = rows * tokens * (12 * shape.hidden + 3 * shape.feedforward)
    scores = rows * shape.heads * tokens**2
    if training:
        return shape.layers * (states + 3 * scores)
    return states / 2 + scores  # of one layer, where attention may or may not be computed in one piece
