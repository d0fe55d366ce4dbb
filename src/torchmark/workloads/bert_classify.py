"""BERT that sorts texts into two classes: large matrix products, attention, and in training an optimizer."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from torchmark.workloads.contract import ATTENTION, CaseOption, Count, Setting
from torchmark.workloads.encoder import POSITIONS, SHAPES, Size, encoder_config
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec, guessing

_VOCABULARY, _LABELS = 28_996, 2
_CHECKED = (slice(2), slice(16))  # rows and tokens of training, enough to reach every weight


class Params(Struct, frozen=True):
    size: Size = "base"
    batch: Count = 16  # rows in a step
    sequence: Annotated[int, Meta(ge=1, le=POSITIONS)] = 128  # tokens in a row


class BertClassify(ModelWorkload):
    """One row of random ids with a random label, repeated and unmasked; random weights. Every step copies the inputs to
    the device, as the publication did; `--transfer per-step` also copies the output to the host. `infer` computes the
    loss too. `train` uses dropout and takes a step of Adam."""

    name = "bert-classify"
    modes = ("train", "infer")
    tiny = Params(size="tiny", batch=2, sequence=8)
    options = (ATTENTION, CaseOption("gradients", ("no-grad", "inference-mode")))
    usual_gradients = "no-grad"
    imports = ("transformers.models.bert.modeling_bert",)

    def cost(self, params: Params, training: bool) -> Cost:
        shape, rows, tokens = SHAPES[params.size], params.batch, params.sequence
        outputs = shape.hidden_size + _LABELS
        parameters = shape.bert_parameters(_VOCABULARY, outputs)
        products = shape.products(rows, tokens) + rows * shape.hidden_size * outputs
        numbers = parameters * (6 if training else 1) + rows * _LABELS
        memory = parameters * (4 if training else 1) + shape.activations(rows, tokens, training)
        return Cost(rows, "sample", products, numbers, integers=rows * (2 * tokens + 1), memory=memory)

    def build(self, params: Params, setting: Setting) -> Model:
        import torch
        from transformers import BertConfig, BertForSequenceClassification

        config = encoder_config(params.size, setting) | {"num_labels": _LABELS, "max_position_embeddings": POSITIONS}
        kind = "single_label_classification"
        module = BertForSequenceClassification(BertConfig(vocab_size=_VOCABULARY, problem_type=kind, **config))
        generator, training = setting.generator(), setting.mode == "train"
        label = torch.randint(0, _LABELS, (1,), generator=generator)
        ids = torch.randint(0, _VOCABULARY, (1, POSITIONS), generator=generator)[:, : params.sequence]
        ids = ids.repeat(params.batch, 1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label.repeat(params.batch)}

        def few(inputs: Any, _: None) -> tuple[Any, None]:
            """Short rows with the label that is not learned: the other's loss is soon too small for short formats."""
            return {name: each[_CHECKED] if each.ndim > 1 else 1 - each[:2] for name, each in inputs.items()}, None

        def look(run: Any, inputs: Any) -> tuple[Any, Any]:  # all rows are alike: the loss of two is that of all
            answer = run(inputs)
            return answer.logits[[0, -1]], answer.loss

        return Model(
            module=module,
            inputs=inputs,
            result=lambda answer: answer.logits,
            optimizer=OptimizerSpec("Adam", 1e-4),
            feed=lambda: (inputs, None) if training else inputs,
            few=few if training else None,
            look=look,
            first_loss=guessing(_LABELS),
            notes={"attention": module.config._attn_implementation},
        )
