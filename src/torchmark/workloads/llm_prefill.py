"""A Llama-shaped language model reads a prompt: the time to the first token."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.workloads import llama
from torchmark.workloads.contract import Setting, Tensors
from torchmark.workloads.model import Cost, Model

_CHECKED = (slice(2), slice(8))  # prompts, and tokens of each


class Params(Struct, frozen=True):
    size: llama.Size = "125m"
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 1  # prompts that are read at once
    prompt: Annotated[int, Meta(ge=1, le=1_048_575)] = 128  # tokens of each


class LlmPrefill(llama.LlamaWorkload):
    """One step reads a prompt, keeps the keys and values of its tokens, and picks the next one. Weights are random."""

    name = "llm-prefill"
    tiny = Params(size="tiny", batch=2, prompt=12)

    def cost(self, params: Params, training: bool) -> Cost:
        """Attention only towards earlier tokens. Keys and values are written once."""
        shape, tokens = llama.SHAPES[params.size], params.batch * params.prompt
        widest = tokens * (3 * shape.intermediate_size + 8 * shape.hidden_size)
        products = shape.step_products(params.batch, params.prompt, 0)
        numbers = shape.weights_read(tokens) + tokens * shape.cached
        return Cost(tokens, "token", products, numbers, memory=shape.parameters + tokens * shape.cached + widest)

    def build(self, params: Params, setting: Setting) -> Model:
        def look(run: Any, ids: Any) -> Tensors:
            """What follows a short prompt, and keys and values of the whole one's first tokens."""
            last = run(ids).past_key_values.layers[-1]
            return (run(ids[_CHECKED]).logits[:, -1], *(each[:2, :, :8] for each in (last.keys, last.values)))

        return replace(
            llama.language_model(params.size, setting, params.batch, params.prompt),
            call=lambda model, ids: model(input_ids=ids, use_cache=True, logits_to_keep=1),
            few=lambda ids, _: (ids[_CHECKED], None),
            look=look,
        )
