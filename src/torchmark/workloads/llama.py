"""The decoder that both language workloads run: its sizes, and the same computation written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from torchmark.workloads.contract import Setting

if TYPE_CHECKING:
    import torch

    from torchmark.workloads.filling import Filling

Size = Literal["tiny", "5m", "30m", "125m", "350m", "1b"]
KeysAndValues = Sequence[tuple["torch.Tensor", "torch.Tensor"]]

_ROTARY_BASE = 10_000.0
_EPSILON = 1e-6


class Shape(Struct, frozen=True):
    """What a decoder is made of; every head is hidden / heads wide."""

    hidden: int
    layers: int
    heads: int
    shared_heads: int  # of keys and values, each of them used by several heads where it is fewer
    feed_forward: int
    vocabulary: int

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads

    @property
    def products(self) -> int:
        """Weights that every token is multiplied by, on the way through all layers."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.shared_heads * self.head_width
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def output_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        return self.products + 2 * self.output_weights + (2 * self.layers + 1) * self.hidden

    @property
    def cached(self) -> int:
        """Numbers that are kept for every token: its keys and values in all layers."""
        return 2 * self.layers * self.shared_heads * self.head_width


SHAPES: dict[str, Shape] = {
    "tiny": Shape(hidden=32, layers=2, heads=4, shared_heads=2, feed_forward=64, vocabulary=128),
    "5m": Shape(hidden=128, layers=6, heads=4, shared_heads=4, feed_forward=384, vocabulary=16_000),
    "30m": Shape(hidden=256, layers=16, heads=8, shared_heads=8, feed_forward=768, vocabulary=32_000),
    "125m": Shape(hidden=768, layers=12, heads=12, shared_heads=12, feed_forward=2048, vocabulary=32_000),
    "350m": Shape(hidden=1024, layers=24, heads=16, shared_heads=16, feed_forward=2816, vocabulary=32_000),
    "1b": Shape(hidden=2048, layers=22, heads=32, shared_heads=4, feed_forward=5632, vocabulary=32_000),
}


def step_flops(shape: Shape, rows: int, tokens: int, before: int) -> float:
    """Products for so many new tokens in each row after `before` others: each is multiplied by all weights and looks
    at itself and those before it, and only the last one is turned into the next token."""
    pairs = tokens * before + tokens * (tokens + 1) // 2
    attention = 2 * 2 * shape.layers * shape.hidden * pairs
    return rows * (2 * tokens * shape.products + attention + 2 * shape.output_weights)


def roundings(shape: Shape) -> int:
    """What a layer adds is a part of what passes it by, so of its seven roundings about one remains; measured, all
    together come to less than half of this."""
    return 6 + shape.layers


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
            rope_parameters={"rope_type": "default", "rope_theta": _ROTARY_BASE},
            rms_norm_eps=_EPSILON,
            attn_implementation="sdpa",
        )
    )


def token_ids(shape: Shape, setting: Setting, rows: int, tokens: int) -> torch.Tensor:
    import torch

    return torch.randint(shape.vocabulary, (rows, tokens), generator=setting.generator())


def exact_logits(
    shape: Shape, weights: Filling, ids: torch.Tensor, past: KeysAndValues = ()
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In float64, from the formulas: what follows the last token, and the keys and values of the last layer."""
    import torch

    def weight(name: str) -> torch.Tensor:
        return weights[name].double()

    hidden = weights["model.embed_tokens.weight"][ids].double()
    keys = values = hidden
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        normed = _normed(hidden) * weight(prefix + "input_layernorm.weight")
        query, key, value = (
            _heads(shape, normed @ weight(f"{prefix}self_attn.{kind}_proj.weight").T) for kind in "qkv"
        )
        before = past[layer][0].shape[2] if past else 0
        query, keys, values = _rotated(query, before), _rotated(key, before), value
        if past:
            keys, values = (
                torch.cat((old.double(), new), 2) for old, new in zip(past[layer], (keys, values), strict=True)
            )
        attended = _attended(query, keys, values, before)
        hidden = hidden + attended @ weight(prefix + "self_attn.o_proj.weight").T
        normed = _normed(hidden) * weight(prefix + "post_attention_layernorm.weight")
        gate, up = (normed @ weight(f"{prefix}mlp.{kind}_proj.weight").T for kind in ("gate", "up"))
        hidden = hidden + (gate / (1 + torch.exp(-gate)) * up) @ weight(prefix + "mlp.down_proj.weight").T
    last = _normed(hidden[:, -1]) * weight("model.norm.weight")
    return last @ weight("lm_head.weight").T, keys, values


def _normed(hidden: torch.Tensor) -> torch.Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + _EPSILON).sqrt()


def _heads(shape: Shape, flat: torch.Tensor) -> torch.Tensor:
    rows, tokens, _ = flat.shape
    return flat.view(rows, tokens, -1, shape.head_width).transpose(1, 2)


def _rotated(heads: torch.Tensor, before: int) -> torch.Tensor:
    """Each pair of numbers, half a head apart, turned by an angle that grows with the token's place."""
    import torch

    half = heads.shape[-1] // 2
    places = torch.arange(before, before + heads.shape[2], dtype=torch.float64)
    angles = places[:, None] * _ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


def _attended(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, before: int) -> torch.Tensor:
    import torch

    rows, heads, tokens, width = query.shape
    keys, values = (each.repeat_interleave(heads // each.shape[1], 1) for each in (keys, values))
    scores = query @ keys.transpose(2, 3) / width**0.5
    hidden_ones = torch.ones(tokens, before + tokens, dtype=torch.bool).triu(before + 1)
    attended = torch.matmul(scores.masked_fill(hidden_ones, -torch.inf).softmax(-1), values)
    return attended.transpose(1, 2).reshape(rows, tokens, heads * width)
