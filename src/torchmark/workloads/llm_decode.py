"""A Llama-shaped language model writes one token after many: tokens per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads import llama
from torchmark.workloads.contract import Setting, Step, Tensors, Workload
from torchmark.workloads.filling import FilledPairs, build_filled

if TYPE_CHECKING:
    import torch

_CHECKED_ROWS = 2


class Params(Struct, frozen=True):
    """How large the model is, how many texts it writes at once, and how many tokens each of them has already."""

    size: llama.Size = "125m"
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 1
    context: Annotated[int, Meta(ge=1, le=1_048_575)] = 128


class LlmDecode(Workload):
    """One step gives every text one more token, from the keys and values that are kept of those before it.

    Every step is the same one, after `context` tokens: what it adds to the kept ones is dropped when the next step
    begins, so that the time does not depend on how many steps were measured. Weights, keys and values are random
    numbers of the usual size.
    """

    name = "llm-decode"
    params = Params
    tiny = Params(size="tiny", batch=2, context=12)
    imports = ("transformers.models.llama.modeling_llama",)
    dtypes = ("float32", "bfloat16", "float16")

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: all matrix products. Bytes: weights read once, of the table of tokens only the rows in use; what is
        kept of the earlier tokens is read, and of the new one written."""
        shape = llama.SHAPES[params.size]
        looked_up = min(params.batch, shape.vocabulary) * shape.hidden
        kept = params.batch * (params.context + 1) * shape.cached
        return Work(
            items=params.batch,
            unit="token",
            flops=llama.step_flops(shape, params.batch, 1, params.context),
            bytes=(shape.parameters - shape.output_weights + looked_up + kept) * setting.item_bytes,
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        """Weights; keys and values, of which one layer is there twice while it grows."""
        shape = llama.SHAPES[params.size]
        kept = 2 * params.batch * (params.context + 1) * shape.cached
        return float((shape.parameters + kept + params.batch * shape.vocabulary) * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        shape = llama.SHAPES[params.size]
        model, filling = build_filled(lambda: llama.make(shape), setting)
        forward = setting.compiled(model)
        feed = setting.feed(llama.token_ids(shape, setting, params.batch, 1))
        cache, restore = _make_cache(params, setting)

        def write() -> torch.Tensor:
            restore()
            with torch.inference_mode():
                logits: torch.Tensor = forward(input_ids=feed(), past_key_values=cache, use_cache=True).logits
                return logits[:, -1]

        def reference() -> Tensors:
            ids = llama.token_ids(shape, setting, params.batch, 1)[:_CHECKED_ROWS]
            past = [(keys[:_CHECKED_ROWS], values[:_CHECKED_ROWS]) for keys, values in _kept(params, setting)]
            return llama.exact_logits(shape, filling, ids, past)[:1]

        return Step(
            run=lambda: setting.drain(write().argmax(-1)),
            work=self.work(params, setting),
            outputs=lambda: (write()[:_CHECKED_ROWS],),
            reference=reference,
            copies=lambda: FilledPairs((model, filling)),
            roundings=llama.roundings(shape),
            notes={"attention": "sdpa"},
            metrics=lambda: {"parameters": float(shape.parameters), "cached_tokens": float(cache.get_seq_length())},
        )


def _kept(params: Params, setting: Setting) -> llama.KeysAndValues:
    """Keys and values of the earlier tokens, for every layer, on the host."""
    import torch

    shape, generator = llama.SHAPES[params.size], setting.generator()
    size = (params.batch, shape.shared_heads, params.context, shape.head_width)
    return [
        (
            torch.randn(size, generator=generator).to(setting.torch_dtype),
            torch.randn(size, generator=generator).to(setting.torch_dtype),
        )
        for _ in range(shape.layers)
    ]


def _make_cache(params: Params, setting: Setting) -> tuple[Any, Any]:
    """The cache, and how to put back what it held at first.

    The cache makes new tensors when it grows and leaves the old ones alone, so nothing is copied to put them back:
    two names for each layer, some microseconds in all.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    for index, (keys, values) in enumerate(_kept(params, setting)):
        cache.update(setting.place(keys), setting.place(values), index)
    first = [(layer, layer.keys, layer.values) for layer in cache.layers]

    def restore() -> None:
        for layer, keys, values in first:
            layer.keys, layer.values = keys, values

    return cache, restore
