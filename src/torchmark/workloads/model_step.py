"""The steps of a model, inference and training, and their numeric check against float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchmark.errors import UnsupportedError, WrongResultError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors
from torchmark.workloads.model import (
    Model,
    ModelWorkload,
    caller,
    leaves_of,
    map_tensors,
    row_count,
    tensors_of,
    usual_loss,
)
from torchmark.workloads.reference import exact_by_layer, exact_model, exactly, fingerprints

if TYPE_CHECKING:
    import torch
    from torch import nn

_CHECKED_MATRICES = 8  # the last ones: the gradients of all matrices of a large model would take too long
_ALIKE = 1e-5  # relative difference of two exact computations of the same: parts of a model may insist on float32
_HALF_RANGE = 1024.0  # the largest gradient of a weight in a check in float16, clear of its smallest numbers


class _Checked:
    """The numeric check of a model: outputs of the device's model against those of the same model in float64."""

    def __init__(self, workload: ModelWorkload, model: Model, setting: Setting) -> None:
        self.workload, self.model, self.setting = workload, model, setting
        self.call = caller(model)
        self.notes = dict(model.notes)
        self.dtype = "float64"  # of the reference
        self.fewer = model.few or _two_rows
        # The model may write into its inputs, so the check keeps its own; of independent rows only a few.
        few = (model.inputs, model.targets)
        if workload.rows_are_independent or setting.mode == "train" or model.few:
            few = self.fewer(*few)
        self.inputs, self.targets = map_tensors(lambda each: each.clone(), few)

    @contextmanager
    def exact(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module in the dtype of the reference, inside the computation of the reference."""
        import torch

        exact = exact_by_layer(module) if self.workload.filled else exact_model(module)
        exact = exact if self.dtype == "float64" else exact.to(getattr(torch, self.dtype))
        with exactly(self.dtype):
            yield exact.eval()

    def in_reference(self, values: Any) -> Any:
        import torch

        dtype = getattr(torch, self.dtype)
        return map_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each.clone(), values)

    def looked_at(self, forward: Callable[..., Any], inputs: Any) -> Tensors:
        """The tensors to compare, of what the model makes of these inputs."""
        if self.model.look:
            return self.model.look(lambda given: self.call(forward, given), inputs)
        return tensors_of(self.model.result(self.call(forward, inputs)))

    def computed(self, module: nn.Module, inputs: Any) -> Tensors:
        """The same by the reference."""
        import torch

        with self.exact(module) as exact, torch.inference_mode():
            return self.looked_at(exact, self.in_reference(inputs))

    def examine(self, module: nn.Module) -> bool:
        """Find the dtype of the reference. False if the model draws at random, so that there is nothing to check."""
        if self.workload.rows_are_independent:
            return True
        few = _two_rows(self.inputs, None)[0]
        try:
            first = self.computed(module, few)
        except RuntimeError as error:
            if "type" not in str(error):  # all complaints about a dtype contain the word
                raise
            self.dtype = "float32"
            self.notes["reference"] = "float32, which the model insists on"
            first = self.computed(module, few)
        if not first:
            raise UnsupportedError("the model returns no tensor of floating numbers", "Let it return what it computes")
        if not _alike(first, self.computed(module, few)):
            self.notes["numbers"] = "not checked: the model draws at random"
            return False
        return True


class Inference(_Checked):
    """A forward pass without gradients."""

    def __init__(self, workload: ModelWorkload, model: Model, setting: Setting) -> None:
        super().__init__(workload, model, setting)
        self.made = fingerprints(model.module)
        self.module = _placed(workload, model.module, setting).eval()
        self.forward = setting.compiled(self.module)
        self.feed = _feeder(setting, model.inputs, model.feed)
        self._by_row: bool | None = True if workload.rows_are_independent else None

    def step(self, work: Work) -> Step:
        forward, feed, call, setting = self.forward, self.feed, self.call, self.setting
        result, drain, usual = self.model.result, _drain(setting), self.workload.usual_gradients

        def run() -> Any:
            with setting.without_gradients(usual):
                return drain(result(call(forward, feed())))

        return Step(
            run=run,
            work=work,
            outputs=self.outputs,
            reference=self.reference,
            copies=lambda: tuple(zip(fingerprints(self.module), self.made, strict=True)),
            metrics=self.model.metrics,
            notes=self.notes,
        )

    def outputs(self) -> Tensors:
        """By the timed function, with the whole batch where the check does not replace it."""
        if not self.is_checked:
            return ()
        with self.setting.without_gradients(self.workload.usual_gradients):
            found = self.looked_at(self.forward, self.feed())
        rows = _row_numbers(row_count(self.model.inputs))
        if self.model.look or not self._by_row or not rows:
            return found
        return [tensor[rows] if tensor.dim() else tensor for tensor in found]

    def reference(self) -> Tensors:
        if not self.is_checked:
            return ()
        few = self.model.few or not self._by_row
        return self.computed(self.module, self.inputs if few else _two_rows(self.inputs, None)[0])

    @property
    def is_checked(self) -> bool:
        """Rows that do not depend on the others stand for all of them."""
        if self._by_row is None:
            self._by_row = False
            if self.examine(self.module):
                self._by_row = self._is_by_row()
        return "numbers" not in self.notes

    def _is_by_row(self) -> bool:
        count = row_count(self.inputs)
        if count < len(_row_numbers(count)) + 1:
            return False
        two = self.computed(self.module, _two_rows(self.inputs, None)[0])
        three = self.computed(self.module, map_tensors(lambda each: each[[0, 1, count - 1]], self.inputs))
        if not all(tensor.dim() and len(tensor) == 3 for tensor in three):
            return False
        return _alike(two, [tensor[[0, 2]] for tensor in three])


class Training(_Checked):
    """Clear the gradients, forward, loss, backward, change the weights."""

    def __init__(
        self, workload: ModelWorkload, model: Model, setting: Setting, remake: Callable[[], nn.Module]
    ) -> None:
        import torch

        super().__init__(workload, model, setting)
        self.scale = model.loss_scale if setting.dtype == "float16" else 1.0
        if not self.scale:
            raise UnsupportedError("training in float16 alone does not stay finite", "Train in bfloat16 or float32")
        if not any(weight.requires_grad for weight in model.module.parameters()):
            raise UnsupportedError("the model has no weights to train", "Measure it with --mode infer")
        # Norms without a batch to go by let values of later weights grow past all bounds: only the first are checked.
        self.remake = remake if _goes_by_batches(model.module) else None
        made = fingerprints(model.module)
        self.module = _placed(workload, model.module, setting).train()
        self.copies = tuple(zip(fingerprints(self.module), made, strict=True))  # before a step changes them
        self.shared = setting.parallel(self.module)
        self.forward = setting.compiled(self.shared)
        self.optimizer = model.optimizer.make(self.module.parameters(), self.scale)
        self.gradient = setting.place(torch.tensor(self.scale)) if self.scale != 1 else None
        self.losses: list[torch.Tensor] = []  # of the first step and the last one

    def step(self, work: Work) -> Step:
        setting, feed = self.setting, _feeder(self.setting, (self.model.inputs, self.model.targets), self.model.feed)

        def run() -> torch.Tensor:
            inputs, targets = feed()
            self.optimizer.zero_grad()
            loss = self.loss(self.forward, inputs, targets)
            loss.backward(self.gradient)  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses[1:] = [loss.detach()]
            if self.model.reads_loss:
                float(self.losses[-1])
            return setting.drain(self.losses[-1])

        return Step(
            run=run,
            work=work,
            outputs=self.outputs,
            reference=self.reference,
            copies=lambda: self.copies,
            alone=setting.alone(self.shared, run),
            metrics=lambda: ({"loss": float(self.losses[-1])} if self.losses else {}) | self.model.metrics(),
            notes=self.notes,
        )

    def loss(self, forward: Callable[..., Any], inputs: Any, targets: Any) -> torch.Tensor:
        return (self.model.loss or usual_loss)(self.call(forward, inputs), inputs, targets)

    def outputs(self) -> Tensors:
        """Loss, gradients and movements by the timed functions, of a few rows. All ranks do this together."""
        self._check_first_loss()
        if not self.is_checked:
            return ()
        module, optimizer, setting = self.module, self.optimizer, self.setting
        inputs, targets = map_tensors(setting.place, (self.inputs, self.targets))
        optimizer.zero_grad()
        with _steady(module, self.remake):
            loss = self.loss(self.forward, inputs, targets)
            checked = _checked_weights(module)
            # Several ranks wait for one another's gradients of all weights.
            wanted = checked if setting.world_size == 1 else None
            (setting.checked_weight * loss).backward(self.gradient, inputs=wanted)  # type: ignore[no-untyped-call]
            found = [(weight, weight.grad) for weight in checked if weight.grad is not None]
            optimizer.zero_grad()
            gradients, factors = [gradient.cpu().double() / self.scale for _, gradient in found], []
            for weight, gradient in found:
                # The optimizer leaves weights without a gradient alone.
                factors.append(_HALF_RANGE / float(gradient.abs().max() + 1e-7) if self.scale != 1 else 1.0)
                weight.grad = gradient * factors[-1]
            descents = first_descents([optimizer], [weight for weight, _ in found])
        optimizer.zero_grad()
        descents = [each / factor**2 / self.scale for each, factor in zip(descents, factors, strict=True)]
        return _summary(loss, gradients, descents)

    @property
    def is_checked(self) -> bool:
        if "numbers" in self.notes:
            return False
        return self.dtype != "float64" or self.examine(self.module)

    def reference(self) -> Tensors:
        """The same by the reference, with the optimizer's formula."""
        import torch

        if not self.is_checked:
            return ()
        source = self.remake() if self.remake else self.module
        with self.exact(source) as exact, _steady(exact, None):
            loss = self.loss(exact, *self.in_reference((self.inputs, self.targets)))
            found = torch.autograd.grad(loss, _checked_weights(exact), allow_unused=True)  # some may be for other tasks
            gradients = [each for each in found if each is not None]
            return _summary(loss, gradients, [each * self.model.optimizer.first_move(each) for each in gradients])

    def _check_first_loss(self) -> None:
        """The loss of the timed step itself, with its whole batch, its dropout and its norms by the batch: it cannot be
        computed another way, but one far from guessing is wrong."""
        if not self.model.first_loss or not self.losses:
            return
        (low, high), found = self.model.first_loss, float(self.losses[0])
        if not low < found < high:
            raise WrongResultError(
                f"the loss of the first step was {found:.3g}; of a model that has learned nothing it is between "
                f"{low:.3g} and {high:.3g}",
                "Do not trust this device with this dtype in training before you know why",
            )


def _checked_weights(model: nn.Module) -> list[Any]:
    """All biases and norms, and the last matrices."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [each for each in weights if each.ndim > 1]
    return [*(each for each in weights if each.ndim <= 1), *matrices[-_CHECKED_MATRICES:]]


def _summary(loss: torch.Tensor, gradients: Tensors, descents: Tensors) -> Tensors:
    """Loss, lengths of the gradients, those of the last one's columns, and how far each weight's step lowers the loss.

    Lengths show what reaches every layer on the way back. Single elements would not do: where a value lies next to a
    kink, as of ReLU, rounding decides about a whole term; and where a gradient is nothing but rounding, Adam moves the
    weight as far as any other.
    """
    import torch

    exact = [each.cpu().double() for each in gradients]
    depths = torch.stack([each.cpu().double().sum() for each in descents])
    last = exact[-1] if exact[-1].ndim else exact[-1][None]
    return [loss.detach(), torch.stack([each.norm() for each in exact]), last.norm(dim=0), depths]


def first_descents(optimizers: Sequence[torch.optim.Optimizer], weights: Sequence[Any]) -> Tensors:
    """Gradient times movement of every weight, if these optimizers move it from zero by its gradient and know nothing
    of earlier steps. From zero, because a small movement of a large weight is lost in rounding. Weights and what the
    optimizers know are restored."""
    import torch

    kept = [weight.detach().clone() for weight in weights]
    known = [{each: one.state.pop(each) for each in weights if each in one.state} for one in optimizers]
    load_values(weights, [torch.zeros_like(weight) for weight in kept])
    for optimizer in optimizers:
        optimizer.step()
    moved = [weight.detach().cpu().double() * weight.grad.cpu().double() for weight in weights]
    load_values(weights, kept)
    for optimizer, before in zip(optimizers, known, strict=True):
        for weight in weights:
            optimizer.state.pop(weight, None)
        optimizer.state.update(before)
    return moved


@contextmanager
def _steady(model: nn.Module, start: Callable[[], nn.Module] | None) -> Iterator[None]:
    """Without dropout and norms by the batch, and with the weights of the start if it is given; then all is as it
    was."""
    import torch

    tensors = [*model.parameters(), *model.buffers()] if start else []
    kept = [each.detach().clone() for each in tensors]
    before = model.training
    model.eval()
    for each in model.modules():
        if isinstance(each, torch.nn.RNNBase) and not each.dropout:
            each.train()  # it computes the same, but some devices have no backward pass otherwise
    if start:
        made = start()
        load_values(tensors, [*made.parameters(), *made.buffers()])
    try:
        yield
    finally:
        model.train(before)
        load_values(tensors, kept)


def load_values(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    """Copy values into tensors."""
    import torch

    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _goes_by_batches(model: nn.Module) -> bool:
    return any(getattr(module, "running_mean", None) is not None for module in model.modules())


def _placed(workload: ModelWorkload, module: nn.Module, setting: Setting) -> nn.Module:
    # Tables of a filled model keep their precision: bfloat16 would place far tokens wrongly.
    return module.to(setting.device) if workload.filled else setting.place_model(module)


def _feeder(setting: Setting, values: Any, feed: Callable[[], Any] | None) -> Callable[[], Any]:
    """How a step gets its inputs: from `feed`, else from device memory or by a copy, as the setting says."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    if feed:
        return lambda: map_tensors(setting.place, feed())
    if isinstance(values, torch.Tensor):
        return setting.feed(values)
    leaves, shape = tree_flatten(values)
    feeds = [setting.feed(each) if isinstance(each, torch.Tensor) else lambda each=each: each for each in leaves]
    if setting.transfer == "resident":
        resident = tree_unflatten([each() for each in feeds], shape)
        return lambda: resident
    return lambda: tree_unflatten([each() for each in feeds], shape)


def _drain(setting: Setting) -> Callable[[Any], Any]:
    import torch

    def to_host(answer: Any) -> Any:
        if isinstance(answer, torch.Tensor):
            return setting.drain(answer)
        return [setting.drain(tensor) for tensor in leaves_of(answer)]

    return (lambda answer: answer) if setting.transfer == "resident" else to_host


def _row_numbers(count: int) -> list[int]:
    return sorted({0, count - 1}) if count else []


def _two_rows(inputs: Any, targets: Any) -> tuple[Any, Any]:
    """The first row and the last."""
    rows = _row_numbers(row_count((inputs, targets)))
    return (inputs, targets) if not rows else map_tensors(lambda each: each[rows], (inputs, targets))


def _alike(first: Tensors, second: Tensors) -> bool:
    import torch

    return len(first) == len(second) and all(
        one.shape == other.shape
        and torch.allclose(one, other, rtol=_ALIKE, atol=_ALIKE * float(one.abs().max()), equal_nan=True)
        for one, other in zip(first, second, strict=True)
    )
