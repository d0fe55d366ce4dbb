"""A Llama-shaped language model writes one token after many: tokens per second."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.workloads import llama
from torchmark.workloads.contract import Setting
from torchmark.workloads.model import Cost, Model


class Params(Struct, frozen=True):
    size: llama.Size = "125m"
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 1  # texts that are written at once
    context: Annotated[int, Meta(ge=1, le=1_048_575)] = 128  # tokens that each has already


class LlmDecode(llama.LlamaWorkload):
    """One step gives every text one more token, from the keys and values kept of those before it. What it adds is
    dropped, so that every step follows the same `context` tokens. Weights, keys and values are random."""

    name = "llm-decode"
    tiny = Params(size="tiny", batch=2, context=12)

    def cost(self, params: Params, training: bool) -> Cost:
        """Keys and values of earlier tokens are read, the new one's written; while they grow, both are in memory."""
        shape, rows = llama.SHAPES[params.size], params.batch
        kept = rows * (params.context + 1) * shape.cached
        products, numbers = shape.step_products(rows, 1, params.context), shape.weights_read(rows) + kept
        return Cost(rows, "token", products, numbers, memory=shape.parameters + 2 * kept + rows * shape.vocab_size)

    def build(self, params: Params, setting: Setting) -> Model:
        cache = _make_cache([map(setting.place, each) for each in _kept(params, setting)])
        first = [(layer, layer.keys, layer.values) for layer in cache.layers]

        def call(model: Any, given: Any) -> Any:
            if isinstance(given, dict):
                return model(input_ids=given["ids"], past_key_values=_make_cache(given["kept"]), use_cache=True)
            # Reset in some microseconds: it grows into new tensors and leaves the old ones alone.
            for layer, keys, values in first:
                layer.keys, layer.values = keys, values
            return model(input_ids=given, past_key_values=cache, use_cache=True)

        model = llama.language_model(params.size, setting, params.batch, 1)
        return replace(
            model,
            call=call,
            few=lambda ids, _: ({"ids": ids[:2], "kept": [(k[:2], v[:2]) for k, v in _kept(params, setting)]}, None),
            look=lambda run, given: (run(given).logits[:2, -1],),
            metrics=lambda: model.metrics() | {"cached_tokens": float(cache.get_seq_length())},
        )


def _kept(params: Params, setting: Setting) -> Any:
    """Keys and values of the earlier tokens in each layer."""
    import torch

    shape, options = llama.SHAPES[params.size], dict[str, Any](generator=setting.generator(), dtype=torch.float32)
    width = shape.hidden_size // shape.num_attention_heads
    size = (params.batch, shape.num_key_value_heads, params.context, width)
    layers = range(shape.num_hidden_layers)
    return [[torch.randn(size, **options).to(setting.torch_dtype) for _ in ("keys", "values")] for _ in layers]


def _make_cache(kept: Any) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache()
    for index, (keys, values) in enumerate(kept):
        cache.update(keys, values, index)
    return cache
