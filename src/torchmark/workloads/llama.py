"""The decoder that both language workloads run: its sizes, its cost, and the model."""

from typing import Any, Literal

from msgspec import Struct

from torchmark.workloads.contract import Setting
from torchmark.workloads.model import ModelWorkload

Size = Literal["tiny", "5m", "30m", "125m", "350m", "1b"]


class Shape(Struct, frozen=True):
    """What a decoder is made of; every head is hidden / heads wide."""

    hidden: int
    layers: int
    heads: int
    shared_heads: int  # of keys and values, each of them used by several heads where it is fewer
    feed_forward: int
    vocabulary: int

    @property
    def cached(self) -> int:  # numbers for every token: its keys and values in all layers
        return 2 * self.layers * self.shared_heads * (self.hidden // self.heads)

    @property
    def products(self) -> int:  # weights that every token is multiplied by, on the way through all layers
        return self.hidden * (self.layers * (2 * self.hidden + 3 * self.feed_forward) + self.cached)

    @property
    def parameters(self) -> int:
        return self.products + (2 * self.vocabulary + 2 * self.layers + 1) * self.hidden

    def step_products(self, rows: int, tokens: int, before: int) -> int:
        """Multiplications for so many new tokens in each row after `before` others: each is multiplied by all weights
        and attends to itself and those before it, and only the last one is turned into the next token."""
        pairs = tokens * before + tokens * (tokens + 1) // 2
        attention = 2 * self.layers * self.hidden * pairs
        return rows * (tokens * self.products + attention + self.hidden * self.vocabulary)

    def weights_read(self, tokens: int) -> int:
        """Numbers of all weights; of the table of tokens only the rows in use."""
        return self.parameters - max(self.vocabulary - tokens, 0) * self.hidden


SHAPES = {
    "tiny": Shape(hidden=32, layers=2, heads=4, shared_heads=2, feed_forward=64, vocabulary=128),
    "5m": Shape(hidden=128, layers=6, heads=4, shared_heads=4, feed_forward=384, vocabulary=16_000),
    "30m": Shape(hidden=256, layers=16, heads=8, shared_heads=8, feed_forward=768, vocabulary=32_000),
    "125m": Shape(hidden=768, layers=12, heads=12, shared_heads=12, feed_forward=2048, vocabulary=32_000),
    "350m": Shape(hidden=1024, layers=24, heads=16, shared_heads=16, feed_forward=2816, vocabulary=32_000),
    "1b": Shape(hidden=2048, layers=22, heads=32, shared_heads=4, feed_forward=5632, vocabulary=32_000),
}


class LlamaWorkload(ModelWorkload):
    """What reading a prompt and writing after it have in common."""

    modes = ("infer",)
    imports = ("transformers.models.llama.modeling_llama",)
    dtypes = ("float32", "bfloat16", "float16")
    distributed = False
    filled = True


def make(shape: Shape) -> Any:
    """The model of transformers for this shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.shared_heads,
            intermediate_size=shape.feed_forward,
            vocab_size=shape.vocabulary,
            max_position_embeddings=1_048_576,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            rms_norm_eps=1e-6,
            attn_implementation="sdpa",
        )
    )


def token_ids(shape: Shape, setting: Setting, rows: int, tokens: int) -> Any:
    import torch

    return torch.randint(shape.vocabulary, (rows, tokens), generator=setting.generator())
