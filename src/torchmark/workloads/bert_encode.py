"""BERT that encodes short texts: a forward pass at a small batch, where the weights have to be read every time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import ATTENTION, GRADIENTS, Setting, Step, Tensors, Workload
from torchmark.workloads.encoder import (
    POSITIONS,
    SHAPES,
    Size,
    activations,
    bert_config,
    embedding_parameters,
    layer_parameters,
    layer_products,
)
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.reference import exact_model, plain_kernels

if TYPE_CHECKING:
    import torch

_VOCABULARY = 30_522
_ID = 100


class Params(Struct, frozen=True):
    """The model's size, rows in a step, and tokens in a row."""

    size: Size = "base"
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 1
    sequence: Annotated[int, Meta(ge=1, le=POSITIONS)] = 128


class BertEncode(Workload):
    """The uncased model with random weights in inference mode; every id is 100, nothing is masked."""

    name = "bert-encode"
    params = Params
    tiny = Params(size="tiny", batch=2, sequence=8)
    ways = (ATTENTION, GRADIENTS)
    imports = ("transformers.models.bert.modeling_bert",)

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: matrix products only. Bytes: of the embeddings only the rows that are looked up."""
        shape = SHAPES[params.size]
        states = params.batch * params.sequence * shape.hidden
        read = parameter_count(params) - (_VOCABULARY + POSITIONS + 2 - params.sequence - 2) * shape.hidden
        return Work(
            items=params.batch,
            unit="sample",
            flops=2 * (layer_products(shape, params.batch, params.sequence) + params.batch * shape.hidden**2),
            bytes=(read + states + params.batch * shape.hidden) * setting.item_bytes
            + params.batch * params.sequence * 8,
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        numbers = activations(SHAPES[params.size], params.batch, params.sequence, training=False)
        return setting.item_bytes * (parameter_count(params) + numbers)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        with setting.seeded():
            model = make_model(params, setting.ways.get("attention")).to(setting.torch_dtype)
        made = fingerprints(model)
        forward = setting.compiled(setting.place_model(model).eval())
        feed = setting.feed(make_ids(params.batch, params))

        def run() -> torch.Tensor:
            with setting.without_gradients():
                return setting.drain(forward(input_ids=feed()).last_hidden_state)

        def reference() -> Tensors:
            with plain_kernels(), torch.inference_mode():
                states = exact_model(model)(input_ids=make_ids(1, params)).last_hidden_state
            return (states.expand(2, -1, -1),)  # all rows are alike

        return Step(
            run=run,
            work=self.work(params, setting),
            outputs=lambda: (run()[[0, -1]],),
            reference=reference,
            copies=lambda: tuple(zip(fingerprints(model), made, strict=True)),
            roundings=24,  # two dense blocks and two norms in each layer; the norms keep errors from adding up
            notes={"attention": model.config._attn_implementation},
        )


def parameter_count(params: Params) -> int:
    """Embeddings with their norm, the layers, and the dense layer after them."""
    shape = SHAPES[params.size]
    return embedding_parameters(shape, _VOCABULARY) + layer_parameters(shape) + (shape.hidden + 1) * shape.hidden


def make_model(params: Params, attention: str | None = None) -> Any:
    """The model with weights drawn from torch's generator; its attention is what the library picks, unless named."""
    from transformers import BertModel

    return BertModel(bert_config(params.size, _VOCABULARY, **({"attn_implementation": attention} if attention else {})))


def make_ids(rows: int, params: Params) -> torch.Tensor:
    """So many rows of one and the same word."""
    import torch

    return torch.full((rows, params.sequence), _ID)
