"""What training workloads share: the step itself, and for its check loss, gradients and moved weights of a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, WrongResultError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.reference import computing_in, exact_model

if TYPE_CHECKING:
    import torch

Forward = Callable[..., Any]
Weights = Iterable["torch.Tensor"]

_ROUNDINGS = 24  # of a deep network there and back: more follow one another, but norms between them keep errors small
_MATRICES = 8  # of which gradients are looked at
_SPREAD = 3.0  # by which random weights may make the loss other than that of guessing
_LEAST = 1e-8  # what Adam adds to what it divides by


class Descent(Struct, frozen=True):
    """How weights are moved: by which of torch's optimisers, and by which formula where that is checked."""

    kind: Literal["SGD", "Adam", "AdamW"]
    rate: float
    momentum: float = 0.0

    def optimizer(self, weights: Weights) -> torch.optim.Optimizer:
        import torch

        if self.kind == "SGD":
            return torch.optim.SGD(weights, lr=self.rate, momentum=self.momentum)
        return (torch.optim.Adam if self.kind == "Adam" else torch.optim.AdamW)(weights, lr=self.rate)

    def first_move(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of a weight that is zero. Nothing decays, there is no momentum yet, and what Adam keeps is this gradient."""
        pace = gradient if self.kind == "SGD" else gradient / (gradient.abs() + _LEAST)
        return -self.rate * pace


class Lesson(Struct, frozen=True):
    """What is learned and how. The model and the few rows of the check are on the host, rounded to the dtype."""

    model: torch.nn.Module
    descent: Descent
    loss: Callable[..., torch.Tensor]  # of the forward function and a batch
    feeds: Sequence[Callable[[], torch.Tensor]]  # what a step's batch comes from
    few: Callable[[], Tensors]  # a batch that is small enough to be computed in float64
    start: Callable[[], torch.nn.Module] | None = None  # the model as made, where only that can be checked
    first_loss: tuple[float, float] | None = None  # between which that of the first step lies, whatever the seed


def guessing(classes: int) -> tuple[float, float]:
    """Between which the cross entropy lies of a model that has learned nothing yet."""
    return max(math.log(classes) - _SPREAD, 0.0), math.log(classes) + _SPREAD


def prepare_training(setting: Setting, lesson: Lesson, work: Work, notes: dict[str, str]) -> Step:
    """A step: take the batch, clear the gradients, forward, backward, move the weights."""
    refuse_float16(setting)
    made = fingerprints(lesson.model)
    model = setting.place_model(lesson.model).train()
    placed = fingerprints(model)  # now, because the first step changes them
    shared = setting.parallel(model)
    forward = setting.compiled(shared)
    optimizer = lesson.descent.optimizer(model.parameters())
    losses: list[torch.Tensor] = []  # the first and the last one

    def run() -> torch.Tensor:
        batch = [feed() for feed in lesson.feeds]
        optimizer.zero_grad()
        loss = lesson.loss(forward, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses[1:] = [loss.detach()]
        return setting.drain(losses[-1])

    def outputs() -> Tensors:
        _check_first_loss(lesson, losses)
        return _results(setting, lesson, model, forward, optimizer)

    return Step(
        run=run,
        work=work,
        outputs=outputs,
        reference=lambda: exact_results(lesson, model),
        copies=lambda: tuple(zip(placed, made, strict=True)),
        roundings=_ROUNDINGS,
        alone=setting.alone(shared, run),
        metrics=lambda: {"loss": float(losses[-1])} if losses else {},
        notes=notes,
    )


def refuse_float16(setting: Setting) -> None:
    """Gradients and what Adam keeps of them reach below the smallest float16: weights turn to NaN in a few steps."""
    if setting.dtype == "float16" and setting.mode == "train":
        raise UnsupportedError("training in float16 alone does not stay finite", "Train in bfloat16 or float32")


def _check_first_loss(lesson: Lesson, losses: Tensors) -> None:
    """Of the timed step itself, with its whole batch, its dropout and its norms by the batch, which the check leaves
    out: too much chance to be computed another way, but a loss far from guessing is wrong."""
    if not lesson.first_loss or not losses:
        return
    (low, high), found = lesson.first_loss, float(losses[0])
    if not low < found < high:
        raise WrongResultError(
            f"the loss of the first step was {found:.3g}, where what has learned nothing is between {low:.3g} and "
            f"{high:.3g}",
            "Do not trust this device with this dtype in training before you know why",
        )


def exact_results(lesson: Lesson, model: torch.nn.Module, dtype: str = "float64") -> Tensors:
    """The same on the CPU, in another dtype and by other kernels; the optimiser by its formula."""
    import torch

    exact = exact_model(model).to(getattr(torch, dtype))
    batch = [few.to(getattr(torch, dtype)) if few.is_floating_point() else few for few in lesson.few()]
    if lesson.start:
        made = lesson.start()  # before weights would be drawn in another dtype
        lesson = replace(lesson, start=lambda: made)
    with computing_in(dtype), _steady(exact, lesson.start):
        loss = lesson.loss(exact, *batch)
        found = torch.autograd.grad(loss, _looked_at(exact), allow_unused=True)  # some may be for other tasks
        gradients = [each for each in found if each is not None]
        return _summed_up(loss, gradients, [each * lesson.descent.first_move(each) for each in gradients])


def _results(
    setting: Setting, lesson: Lesson, model: torch.nn.Module, forward: Forward, optimizer: torch.optim.Optimizer
) -> Tensors:
    """What a few rows come to by the very functions that are timed. All ranks do this together."""
    batch = [setting.place(few) for few in lesson.few()]
    optimizer.zero_grad()
    with _steady(model, lesson.start):
        loss = lesson.loss(forward, *batch)
        wanted = _looked_at(model) if setting.world_size == 1 else None  # ranks wait for one another's gradients of all
        (setting.checked_weight * loss).backward(inputs=wanted)  # type: ignore[no-untyped-call]
        found = [(weight, weight.grad) for weight in _looked_at(model) if weight.grad is not None]
        optimizer.zero_grad()
        for weight, gradient in found:
            weight.grad = gradient  # the optimiser leaves the others where they are
        descents = first_descents([optimizer], [weight for weight, _ in found])
    optimizer.zero_grad()
    return _summed_up(loss, [gradient for _, gradient in found], descents)


def _looked_at(model: torch.nn.Module) -> list[torch.Tensor]:
    """All biases and norms, and the last matrices: all those of a large model would take too long."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [*(each for each in weights if each.ndim == 1), *[each for each in weights if each.ndim > 1][-_MATRICES:]]


def _summed_up(loss: torch.Tensor, gradients: Tensors, descents: Tensors) -> Tensors:
    """Loss, lengths of the gradients, those of the last one's columns, and how far down each weight takes the loss.

    Lengths show what reaches every layer on the way back. Single elements would not do: where a value lies next to a
    kink, as of ReLU, rounding decides about a whole term; and where a gradient is nothing but rounding, Adam moves the
    weight as far as any other.
    """
    import torch

    exact = [each.cpu().double() for each in gradients]
    lengths = torch.stack([each.norm() for each in exact])
    depths = torch.stack([each.cpu().double().sum() for each in descents])
    return [loss.detach(), lengths, exact[-1].norm(dim=0), depths]


def first_descents(optimizers: Sequence[torch.optim.Optimizer], weights: Tensors) -> Tensors:
    """Gradient times movement of every weight, where these optimisers move it from zero by its gradient and know
    nothing of earlier steps.

    From zero, because a small movement of a large weight is lost in rounding. Weights and knowledge are put back.
    """
    import torch

    kept = [weight.detach().clone() for weight in weights]
    known = [{each: state.pop(each) for each in weights if each in state} for state in _states(optimizers)]
    _load(weights, [torch.zeros_like(weight) for weight in kept])
    for optimizer in optimizers:
        optimizer.step()
    moved = [weight.detach() * weight.grad for weight in weights if weight.grad is not None]
    _load(weights, kept)
    for state, before in zip(_states(optimizers), known, strict=True):
        for weight in weights:
            state.pop(weight, None)
        state.update(before)
    return moved


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[torch.Tensor, Any]]:
    return [optimizer.state for optimizer in optimizers]


@contextmanager
def _steady(model: torch.nn.Module, start: Callable[[], torch.nn.Module] | None) -> Iterator[None]:
    """Inside, nothing is dropped at random, norms do not go by the batch, and the weights are those of the start where
    they must be; afterwards all is as it was."""
    import torch

    tensors = [*model.parameters(), *model.buffers()] if start else []
    kept = [each.detach().clone() for each in tensors]
    before = model.training
    model.eval()
    for each in model.modules():
        if isinstance(each, torch.nn.RNNBase) and not each.dropout:
            each.train()  # which changes nothing about it, but on some devices there is no way back through it else
    if start:
        made = start()
        _load(tensors, [*made.parameters(), *made.buffers()])
    try:
        yield
    finally:
        model.train(before)
        _load(tensors, kept)


def _load(tensors: Tensors, values: Tensors) -> None:
    import torch

    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
