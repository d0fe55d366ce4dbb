"""What training workloads share: the step itself, and loss and gradients without dropout for its check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnsupportedError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.reference import computing_in, exact_model

if TYPE_CHECKING:
    import torch

Forward = Callable[..., Any]
Weights = Iterable["torch.nn.Parameter"]

_ROUNDINGS = 24  # of a deep network there and back: more follow one another, but norms between them keep errors small
_MATRICES = 8  # of which gradients are looked at


class Lesson(Struct, frozen=True):
    """What is learned and how. The model and the few rows of the check are on the host, rounded to the dtype."""

    model: torch.nn.Module
    optimizer: Callable[[Weights], torch.optim.Optimizer]
    loss: Callable[..., torch.Tensor]  # of the forward function and a batch
    feeds: Sequence[Callable[[], torch.Tensor]]  # what a step's batch comes from
    few: Callable[[], Tensors]  # a batch that is small enough to be computed in float64
    start: Callable[[], torch.nn.Module] | None = None  # the model as made, where only that can be checked


def prepare_training(setting: Setting, lesson: Lesson, work: Work, notes: dict[str, str]) -> Step:
    """A step: take the batch, clear the gradients, forward, backward, move the weights."""
    refuse_float16(setting)
    made = fingerprints(lesson.model)
    model = setting.place_model(lesson.model).train()
    placed = fingerprints(model)  # now, because the first step changes them
    shared = setting.parallel(model)
    forward = setting.compiled(shared)
    optimizer = lesson.optimizer(model.parameters())
    losses: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        batch = [feed() for feed in lesson.feeds]
        optimizer.zero_grad()
        loss = lesson.loss(forward, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses[:] = [loss.detach()]
        return setting.drain(losses[0])

    # The other ranks take no part in the check, so it must not wait for them.
    checked = forward if setting.world_size == 1 else model
    return Step(
        run=run,
        work=work,
        outputs=lambda: _gradients(lesson, model, checked, [setting.place(few) for few in lesson.few()]),
        reference=lambda: exact_gradients(lesson, model),
        copies=lambda: tuple(zip(placed, made, strict=True)),
        roundings=_ROUNDINGS,
        alone=setting.alone(shared, run),
        metrics=lambda: {"loss": float(losses[0])} if losses else {},
        notes=notes,
    )


def refuse_float16(setting: Setting) -> None:
    """Gradients and what Adam keeps of them reach below the smallest float16: weights turn to NaN in a few steps."""
    if setting.dtype == "float16" and setting.mode == "train":
        raise UnsupportedError("training in float16 alone does not stay finite", "Train in bfloat16 or float32")


def exact_gradients(lesson: Lesson, model: torch.nn.Module, dtype: str = "float64") -> Tensors:
    """The same on the CPU, in another dtype and by other kernels."""
    import torch

    exact = exact_model(model).to(getattr(torch, dtype))
    batch = [few.to(getattr(torch, dtype)) if few.is_floating_point() else few for few in lesson.few()]
    if lesson.start:
        made = lesson.start()  # before weights would be drawn in another dtype
        lesson = replace(lesson, start=lambda: made)
    with computing_in(dtype):
        return _gradients(lesson, exact, exact, batch)


def _gradients(lesson: Lesson, model: torch.nn.Module, forward: Forward, batch: Tensors) -> Tensors:
    """Loss, lengths of the gradients of all biases, norms and the last matrices, and those of the last one's columns.

    Lengths show what reaches every layer on the way back. Single elements would not do: where a value lies next to a
    kink, as of ReLU, rounding decides about a whole term. All matrices of a large model would take too long.
    """
    import torch

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [each for each in weights if each.ndim > 1][-_MATRICES:]
    with _steady(model, lesson.start):
        loss = lesson.loss(forward, *batch)
        chosen = [*(each for each in weights if each.ndim == 1), *matrices]
        gradients = torch.autograd.grad(loss, chosen, allow_unused=True)  # a model may have weights for other tasks
    exact = [each.cpu().double() for each in gradients if each is not None]
    return [loss.detach(), torch.stack([each.norm() for each in exact]), exact[-1].norm(dim=0)]


@contextmanager
def _steady(model: torch.nn.Module, start: Callable[[], torch.nn.Module] | None) -> Iterator[None]:
    """Inside, nothing is dropped at random, norms do not go by the batch, and the weights are those of the start where
    they must be; afterwards all is as it was."""
    tensors = [*model.parameters(), *model.buffers()] if start else []
    kept = [each.detach().clone() for each in tensors]
    before = model.training
    model.eval()
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
