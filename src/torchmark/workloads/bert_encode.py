"""BERT that encodes short texts: a forward pass at a small batch, where the weights have to be read every time."""

from typing import Annotated

from msgspec import Meta, Struct

from torchmark.workloads.contract import ATTENTION, GRADIENTS, Count, Setting
from torchmark.workloads.encoder import POSITIONS, SHAPES, Size, encoder_config
from torchmark.workloads.model import Cost, Model, ModelWorkload

_VOCABULARY = 30_522
ID = 100


class Params(Struct, frozen=True):
    size: Size = "base"
    batch: Count = 1  # rows in a step
    sequence: Annotated[int, Meta(ge=1, le=POSITIONS)] = 128  # tokens in a row


class BertEncode(ModelWorkload):
    """The uncased model with random weights in inference mode; every id is 100, nothing is masked."""

    name = "bert-encode"
    modes = ("infer",)
    tiny = Params(size="tiny", batch=2, sequence=8)
    options = (ATTENTION, GRADIENTS)
    imports = ("transformers.models.bert.modeling_bert",)
    distributed = False

    def cost(self, params: Params, training: bool) -> Cost:
        """Of the embeddings only the rows that are looked up are read."""
        shape, rows, tokens = SHAPES[params.size], params.batch, params.sequence
        parameters = shape.bert_parameters(_VOCABULARY, shape.hidden_size)
        products = shape.products(rows, tokens) + rows * shape.hidden_size**2
        unread = _VOCABULARY + POSITIONS - tokens
        numbers = parameters + (rows * (tokens + 1) - unread) * shape.hidden_size
        memory = parameters + shape.activations(rows, tokens, training)
        return Cost(rows, "sample", products, numbers, integers=rows * tokens, memory=memory)

    def build(self, params: Params, setting: Setting) -> Model:
        import torch
        from transformers import BertConfig, BertModel

        config = encoder_config(params.size, setting)
        module = BertModel(BertConfig(vocab_size=_VOCABULARY, max_position_embeddings=POSITIONS, **config))
        inputs = {"input_ids": torch.full((params.batch, params.sequence), ID)}
        notes = {"attention": module.config._attn_implementation}
        return Model(module, inputs, result=lambda answer: answer.last_hidden_state, notes=notes)
