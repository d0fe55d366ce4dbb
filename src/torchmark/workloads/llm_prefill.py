"""A Llama-shaped language model reads a prompt: the time to the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads import llama
from torchmark.workloads.contract import Setting, Step, Tensors, Workload
from torchmark.workloads.filling import FilledPairs, build_filled

if TYPE_CHECKING:
    import torch

_CHECKED_ROWS = 2
_CHECKED_TOKENS = 8


class Params(Struct, frozen=True):
    """How large the model is, how many prompts it reads at once, and how many tokens each has."""

    size: llama.Size = "125m"
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 1
    prompt: Annotated[int, Meta(ge=1, le=1_048_575)] = 128


class LlmPrefill(Workload):
    """One step reads the whole prompt, keeps the keys and values of every token, and picks the token that follows.

    The step's time is the time to the first token. Weights are random numbers of the usual size; the model is what
    transformers builds from a configuration, with the attention that it picks.
    """

    name = "llm-prefill"
    params = Params
    tiny = Params(size="tiny", batch=2, prompt=12)
    imports = ("transformers.models.llama.modeling_llama",)
    dtypes = ("float32", "bfloat16", "float16")

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: all matrix products, attention only towards earlier tokens. Bytes: weights read once, of the table
        of tokens only the rows in use, and keys and values written once."""
        shape, tokens = llama.SHAPES[params.size], params.batch * params.prompt
        looked_up = min(tokens, shape.vocabulary) * shape.hidden
        values = shape.parameters - shape.output_weights + looked_up + tokens * shape.cached
        return Work(
            items=tokens,
            unit="token",
            flops=llama.step_flops(shape, params.batch, params.prompt, 0),
            bytes=values * setting.item_bytes,
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        """Weights, keys and values, and what one layer's widest part holds."""
        shape, tokens = llama.SHAPES[params.size], params.batch * params.prompt
        passing = tokens * (3 * shape.feed_forward + 8 * shape.hidden)
        return float((shape.parameters + tokens * shape.cached + passing) * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        shape = llama.SHAPES[params.size]
        model, filling = build_filled(lambda: llama.make(shape), setting)
        forward = setting.compiled(model)
        feed = setting.feed(llama.token_ids(shape, setting, params.batch, params.prompt))

        def read(ids: torch.Tensor) -> tuple[torch.Tensor, object]:
            with torch.inference_mode():
                answer = forward(input_ids=ids, use_cache=True, logits_to_keep=1)
                return answer.logits[:, -1], answer.past_key_values

        def outputs() -> Tensors:
            """What follows a short prompt, and of the whole prompt the first tokens: later ones do not change them."""
            short, _ = read(feed()[:_CHECKED_ROWS, :_CHECKED_TOKENS])
            last = read(feed())[1].layers[-1]  # type: ignore[attr-defined]
            return (short, *(kept[:_CHECKED_ROWS, :, :_CHECKED_TOKENS] for kept in (last.keys, last.values)))

        def reference() -> Tensors:
            ids = llama.token_ids(shape, setting, params.batch, params.prompt)
            return llama.exact_logits(shape, filling, ids[:_CHECKED_ROWS, :_CHECKED_TOKENS])

        return Step(
            run=lambda: setting.drain(read(feed())[0].argmax(-1)),
            work=self.work(params, setting),
            outputs=outputs,
            reference=reference,
            copies=lambda: FilledPairs((model, filling)),
            roundings=llama.roundings(shape),
            notes={"attention": "sdpa"},
            metrics=lambda: {"parameters": float(shape.parameters)},
        )
