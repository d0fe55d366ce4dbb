"""BERT that sorts texts into two classes: large matrix products, attention, and in training an optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import ATTENTION, Setting, Step, Tensors, Way, Workload
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
from torchmark.workloads.learning import Descent, Forward, Lesson, guessing, prepare_training
from torchmark.workloads.reference import exact_model, plain_kernels

if TYPE_CHECKING:
    import torch

_VOCABULARY = 28_996
_LABELS = 2
LEARNING_RATE = 1e-4
_CHECKED_ROWS = 2
_CHECKED_TOKENS = 16  # of training; there is no need for more to reach every weight


class Params(Struct, frozen=True):
    """The model's size, rows in a step, and tokens in a row."""

    size: Size = "base"
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 16
    sequence: Annotated[int, Meta(ge=1, le=POSITIONS)] = 128


class BertClassify(Workload):
    """One row of random ids, repeated; nothing is masked; one random label, repeated; random weights.

    Both modes copy the inputs to the device in every step, as the publication did, whatever the transfer; `per-step`
    also copies what comes out back to the host. `infer` computes the loss too. `train` drops out at random, as
    training does, and takes a step of Adam.
    """

    name = "bert-classify"
    modes = ("train", "infer")
    params = Params
    tiny = Params(size="tiny", batch=2, sequence=8)
    ways = (ATTENTION, Way("gradients", ("no-grad", "inference-mode")))
    imports = ("transformers.models.bert.modeling_bert",)
    distributed = True

    def work(self, params: Params, setting: Setting) -> Work:
        """FLOPs: matrix products only, and twice as many on the way back. Bytes: weights and rows read once; training
        reads and writes the weights and the two means that Adam keeps for each of them."""
        shape = SHAPES[params.size]
        head = params.batch * shape.hidden * (shape.hidden + _LABELS)
        products = layer_products(shape, params.batch, params.sequence) + head
        training = setting.mode == "train"
        weights = parameter_count(params) * setting.item_bytes
        rows = params.batch * (2 * params.sequence + 1) * 8 + params.batch * _LABELS * setting.item_bytes
        return setting.of_all_ranks(
            Work(
                items=params.batch,
                unit="sample",
                flops=2 * products * (3 if training else 1),
                bytes=weights * (6 if training else 1) + rows,
            )
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        training = setting.mode == "train"
        numbers = activations(SHAPES[params.size], params.batch, params.sequence, training)
        return setting.item_bytes * (parameter_count(params) * (4 if training else 1) + numbers)

    def prepare(self, params: Params, setting: Setting) -> Step:
        prepare = _prepare_training if setting.mode == "train" else _prepare_inference
        return prepare(params, setting, self.work(params, setting))


def parameter_count(params: Params) -> int:
    """Embeddings with their norm, the layers, and the two dense layers after them."""
    shape = SHAPES[params.size]
    return (
        embedding_parameters(shape, _VOCABULARY)
        + layer_parameters(shape)
        + (shape.hidden + 1) * (shape.hidden + _LABELS)
    )


def make_model(params: Params, attention: str | None = None) -> Any:
    """The model with weights drawn from torch's generator; its attention is what the library picks, unless named."""
    from transformers import BertForSequenceClassification

    more = {"num_labels": _LABELS, "problem_type": "single_label_classification"}
    chosen = {"attn_implementation": attention} if attention else {}
    return BertForSequenceClassification(bert_config(params.size, _VOCABULARY, **more, **chosen))


def make(params: Params, setting: Setting, attention: str | None = None) -> tuple[Any, Tensors]:
    """The model and its inputs on the host: ids, mask, labels."""
    with setting.seeded():
        model = make_model(params, attention or setting.ways.get("attention")).to(setting.torch_dtype)
    return model, _rows(setting, params.batch, params.sequence)


def _rows(setting: Setting, batch: int, sequence: int) -> Tensors:
    import torch

    generator = setting.generator()
    label = torch.randint(0, _LABELS, (1,), generator=generator)
    ids = torch.randint(0, _VOCABULARY, (1, POSITIONS), generator=generator)[:, :sequence].repeat(batch, 1)
    return ids, torch.ones_like(ids), label.repeat(batch)


def _other_rows(params: Params, setting: Setting) -> Tensors:
    """A few short rows with the label that is not learned: of the other one a few steps leave a loss of nearly nothing,
    which is a difference of nearly equal numbers that short formats cannot tell."""
    ids, mask, labels = _rows(setting, min(params.batch, _CHECKED_ROWS), min(params.sequence, _CHECKED_TOKENS))
    return ids, mask, 1 - labels


def _loss(forward: Forward, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = forward(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


def _prepare_inference(params: Params, setting: Setting, work: Work) -> Step:
    import torch

    model, rows = make(params, setting)
    made = fingerprints(model)
    forward = setting.compiled(setting.place_model(model).eval())

    def infer() -> Any:
        ids, mask, labels = (host.to(setting.device) for host in rows)
        with setting.without_gradients(usual="no-grad"):
            return forward(input_ids=ids, attention_mask=mask, labels=labels)

    def outputs() -> Tensors:
        found = infer()
        return found.logits[[0, -1]], found.loss

    def reference() -> Tensors:
        ids, mask, labels = _rows(setting, 1, params.sequence)  # all rows are alike
        with plain_kernels(), torch.no_grad():
            found = exact_model(model)(input_ids=ids, attention_mask=mask, labels=labels)
        return found.logits.expand(2, -1), found.loss

    return Step(
        run=lambda: setting.drain(infer().logits),
        work=work,
        outputs=outputs,
        reference=reference,
        copies=lambda: tuple(zip(fingerprints(model), made, strict=True)),
        roundings=24,  # two dense blocks and two norms in each layer; the norms keep errors from adding up
        magnitude=0.02 * SHAPES[params.size].hidden ** 0.5 / 2,  # of a sum of weights as they are drawn
        notes={"attention": model.config._attn_implementation},
    )


def _prepare_training(params: Params, setting: Setting, work: Work) -> Step:
    model, rows = make(params, setting)
    lesson = Lesson(
        model=model,
        descent=Descent("Adam", LEARNING_RATE),
        loss=_loss,
        first_loss=guessing(_LABELS),
        feeds=[lambda host=host: host.to(setting.device) for host in rows],  # type: ignore[misc]
        few=lambda: _other_rows(params, setting),
    )
    return prepare_training(setting, lesson, work, {"attention": model.config._attn_implementation})
