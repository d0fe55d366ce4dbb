"""A step of any model: forward in inference mode, or forward, loss, backward and a step of AdamW."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, UsageError
from torchmark.workloads.contract import GRADIENTS, LAYOUT, Setting, Step, Tensors, Workload
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.learning import Descent, Forward, Lesson, exact_results, prepare_training
from torchmark.workloads.own.proof import Proof, few_rows, roundings_of
from torchmark.workloads.own.tensors import Inputs, leaves_of, tensors_of
from torchmark.workloads.own.worth import find_work

if TYPE_CHECKING:
    import torch

_LEARNING_RATE = 1e-4
COUNTING = "torch._dynamo.utils"  # what takes a second to import when FLOPs are counted

Loss = Callable[..., "torch.Tensor"]


class Made(Struct, frozen=True):
    """A model and its inputs on the host, rounded to the dtype, the same for the same seed; and what is learned."""

    model: torch.nn.Module
    inputs: Inputs
    loss: Loss
    notes: dict[str, str] = {}


class AnyModel(Workload):
    """A model that is known only by what makes it."""

    modes = ("infer", "train")
    distributed = True
    imports: ClassVar[tuple[str, ...]] = (COUNTING,)
    ways = (LAYOUT, GRADIENTS)

    @abstractmethod
    def make(self, params: Any, setting: Setting) -> Made:
        """Build the model and its inputs."""

    def prepare(self, params: Any, setting: Setting) -> Step:
        made = self._rounded(params, setting)
        if setting.mode == "train":
            return _prepare_training(made, lambda: self._rounded(params, setting), setting)
        return _prepare_inference(made, setting)

    def _rounded(self, params: Any, setting: Setting) -> Made:
        made = self.make(params, setting)

        def rounded(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(setting.torch_dtype) if tensor.is_floating_point() else tensor

        return replace(made, model=made.model.to(setting.torch_dtype), inputs=made.inputs.map(rounded))


def _prepare_inference(made: Made, setting: Setting) -> Step:

    work, kept = find_work(made.model, made.inputs, None, setting), _copies(made.inputs)
    marks = fingerprints(made.model)
    model = setting.place_model(made.model).eval()
    forward, inputs = setting.compiled(model), made.inputs
    feeds = [setting.feed(tensor) for tensor in inputs.tensors]
    notes = dict(made.notes)

    def run() -> Any:
        with setting.without_gradients():
            answer = inputs.call(forward, [feed() for feed in feeds])
            if setting.transfer == "resident":
                return answer
            return [setting.drain(tensor) for tensor in leaves_of(answer)]

    proof = Proof(model, kept, run, notes)
    return Step(
        run=run,
        work=work,
        outputs=proof.outputs,
        reference=proof.reference,
        copies=lambda: tuple(zip(fingerprints(model), marks, strict=True)),
        roundings=roundings_of(model),
        notes=notes,
    )


def _prepare_training(made: Made, again: Callable[[], Made], setting: Setting) -> Step:
    if not any(weight.requires_grad for weight in made.model.parameters()):
        raise UnsupportedError("the model has no weights to train", "Measure it with --mode infer")

    def learn(forward: Forward, *batch: torch.Tensor) -> torch.Tensor:
        return made.loss(made.inputs.call(forward, batch), *batch)

    kept = _copies(made.inputs)
    lesson = Lesson(
        model=made.model,
        descent=Descent("AdamW", _LEARNING_RATE),
        loss=learn,
        feeds=[setting.feed(tensor) for tensor in made.inputs.tensors],
        few=lambda: few_rows(kept).tensors,
        start=(lambda: again().model) if _goes_by_batches(made.model) else None,
    )
    work, notes = find_work(made.model, made.inputs, learn, setting), dict(made.notes)
    step = prepare_training(setting, lesson, work, notes)
    proof = Proof(made.model, few_rows(kept), lambda: (), notes)

    def outputs() -> Tensors:
        return step.outputs() if step.outputs and proof.reference() else ()

    def reference() -> Tensors:
        return exact_results(lesson, made.model, proof.dtype) if proof.reference() else ()

    roundings = max(step.roundings, roundings_of(made.model))
    return replace(step, outputs=outputs, reference=reference, roundings=roundings)


def _copies(inputs: Inputs) -> Inputs:
    """For the check: the model may write into what it is given."""
    return inputs.map(lambda tensor: tensor.clone())


def _goes_by_batches(model: torch.nn.Module) -> bool:
    """Without a batch to go by, its later weights let values grow past all bounds: only the first can be checked."""
    return any(getattr(module, "running_mean", None) is not None for module in model.modules())


def usual_loss(answer: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """The model's own, where it gives one; else the mean of the squares of how far what it gives is from fixed numbers.

    Those are between 1 and 2 and differ: the squares alone do not change behind a normalisation, and there would be
    nothing to learn, nor any gradient to check.
    """
    import torch

    del inputs
    own = getattr(answer, "loss", None)
    if own is not None:
        return own  # type: ignore[no-any-return]  # a model's own answer
    given = [tensor if tensor.dim() else tensor[None] for tensor in tensors_of(answer)]
    goals = [torch.linspace(1, 2, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device) for tensor in given]
    squares = [(tensor - goal).square().mean() for tensor, goal in zip(given, goals, strict=True)]
    if not squares:
        raise UsageError("the model returns nothing to learn from", "Give a loss function: --loss FILE:FUNCTION")
    return sum(squares[1:], squares[0])
