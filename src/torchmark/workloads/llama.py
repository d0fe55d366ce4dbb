"""The decoder that both language workloads run: its sizes, its cost, and the model."""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from torchmark.workloads.contract import Setting
from torchmark.workloads.model import Model, ModelWorkload

Size = Literal["tiny", "5m", "30m", "125m", "350m", "1b"]


class Shape(Struct, frozen=True):
    """Sizes of a decoder, named as in transformers; every head is hidden size / attention heads wide."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int  # if fewer, each serves several attention heads
    intermediate_size: int
    vocab_size: int

    @property
    def cached(self) -> int:  # keys and values of a token in all layers
        width = self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * self.num_key_value_heads * width

    @property
    def products(self) -> int:  # weights that every token is multiplied by in all layers
        of_layer = 2 * self.hidden_size + 3 * self.intermediate_size
        return self.hidden_size * (self.num_hidden_layers * of_layer + self.cached)

    @property
    def parameters(self) -> int:
        return self.products + (2 * self.vocab_size + 2 * self.num_hidden_layers + 1) * self.hidden_size

    def step_products(self, rows: int, tokens: int, before: int) -> int:
        """Multiplications for new tokens after `before` others. Only the last one is turned into the next token."""
        pairs = tokens * before + tokens * (tokens + 1) // 2
        attention = 2 * self.num_hidden_layers * self.hidden_size * pairs
        return rows * (tokens * self.products + attention + self.hidden_size * self.vocab_size)

    def weights_read(self, tokens: int) -> int:
        """All weights, but of the table of tokens only the rows in use."""
        return self.parameters - max(self.vocab_size - tokens, 0) * self.hidden_size


SHAPES = {
    "tiny": Shape(32, 2, 4, 2, 64, 128),
    "5m": Shape(128, 6, 4, 4, 384, 16_000),
    "30m": Shape(256, 16, 8, 8, 768, 32_000),
    "125m": Shape(768, 12, 12, 12, 2048, 32_000),
    "350m": Shape(1024, 24, 16, 16, 2816, 32_000),
    "1b": Shape(2048, 22, 32, 4, 5632, 32_000),
}


class LlamaWorkload(ModelWorkload):
    modes = ("infer",)
    imports = ("transformers.models.llama.modeling_llama",)
    dtypes = ("float32", "bfloat16", "float16")
    distributed = False
    filled = True


def make(shape: Shape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    fixed: dict[str, Any] = {"max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-6, "attn_implementation": "sdpa"}
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    return LlamaForCausalLM(LlamaConfig(**asdict(shape), **fixed, rope_parameters=rope))


def language_model(size: Size, setting: Setting, rows: int, tokens: int) -> Model:
    """With random token ids; a step returns the next token of each row."""
    import torch

    shape = SHAPES[size]
    return Model(
        module=make(shape),
        inputs=torch.randint(shape.vocab_size, (rows, tokens), generator=setting.generator()),
        result=lambda answer: answer.logits[:, -1].argmax(-1),
        notes={"attention": "sdpa"},
        metrics=lambda: {"parameters": float(shape.parameters)},
    )
