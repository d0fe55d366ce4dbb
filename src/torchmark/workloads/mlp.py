"""Dense layers: small matrix products at a small batch, where every overhead shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import GRADIENTS, Setting, Step, Tensors, Workload

if TYPE_CHECKING:
    import torch

_WIDTHS = (1024, 512, 512, 512)
_LEARNING_RATE = 0.01
_CHECKED_ROWS = 2


class Params(Struct, frozen=True):
    """Rows in a step of one worker, and numbers that come out for each of them."""

    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 128
    outputs: Annotated[int, Meta(ge=1, le=1_048_576)] = 2


class Mlp(Workload):
    """1024 → 512 → 512 → 512 → outputs with tanh between; the input is uniform in [0, 1).

    `infer` is the forward pass in inference mode. `train` is forward, mean squared error against targets in [1, 2),
    backward and one step of plain SGD; float16 scales the loss by a power of two, or its gradients would underflow.
    (Targets that far from what comes out at first leave nothing to cancel, so that even short numbers can be checked.)
    """

    name = "mlp"
    modes = ("infer", "train")
    params = Params
    tiny = Params(batch=2)
    ways = (GRADIENTS,)
    distributed = True

    def work(self, params: Params, setting: Setting) -> Work:
        """Only the matrix products count as FLOPs: forward, for each weight's gradient, and for each layer's but the
        first one's input. Bytes: weights and data read once, results written once. Of all workers together."""
        edges = list(_edges(params))
        weights = sum(wide * narrow for wide, narrow in edges)
        values = parameter_count(params) + params.batch * (_WIDTHS[0] + params.outputs)
        if setting.mode == "train":
            products, values = 3 * weights - edges[0][0] * edges[0][1], values + parameter_count(params)
        else:
            products = weights
        return setting.of_all_ranks(
            Work(
                items=params.batch,
                unit="sample",
                flops=2 * params.batch * products,
                bytes=values * setting.item_bytes,
            )
        )

    def prepare(self, params: Params, setting: Setting) -> Step:
        prepare = _prepare_training if setting.mode == "train" else _prepare_inference
        return prepare(params, setting, self.work(params, setting))


def parameter_count(params: Params) -> int:
    """Weights and biases of all layers."""
    return sum((wide + 1) * narrow for wide, narrow in _edges(params))


def _edges(params: Params) -> zip[tuple[int, int]]:
    return zip(_WIDTHS, (*_WIDTHS[1:], params.outputs), strict=True)


def _prepare_inference(params: Params, setting: Setting, work: Work) -> Step:
    model, rows, _ = make(params, setting)
    forward = setting.compiled(setting.place_model(model).eval())
    feed = setting.feed(rows)

    def run() -> torch.Tensor:
        with setting.without_gradients():
            return setting.drain(forward(feed()))

    def reference() -> Tensors:
        model, rows, _ = make(params, setting)
        return (_forward(model, rows[:_CHECKED_ROWS])[-1],)

    return Step(
        run=run,
        work=work,
        outputs=lambda: (run()[:_CHECKED_ROWS],),
        reference=reference,
        copies=lambda: tuple(zip(model.parameters(), make(params, setting)[0].parameters(), strict=True)),
        roundings=7,  # four layers and the three functions between them
        magnitude=(3 * _WIDTHS[-1]) ** -0.5,  # of the last bias alone, as layers are initialised
    )


def _prepare_training(params: Params, setting: Setting, work: Work) -> Step:
    import torch

    model, rows, targets = make(params, setting)
    shared = setting.parallel(setting.place_model(model).train())
    forward = setting.compiled(shared)
    feed_rows, feed_targets = setting.feed(rows), setting.feed(targets)
    scale = _loss_scale(params, setting)
    gradient = setting.place(torch.tensor(scale))
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE / scale)

    def learn(rows: torch.Tensor, targets: torch.Tensor, gradient: torch.Tensor = gradient) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(rows), targets)
        loss.backward(gradient)  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def run() -> torch.Tensor:
        return setting.drain(learn(feed_rows(), feed_targets()))

    return Step(
        run=run,
        work=work,
        outputs=lambda: _learn_once(params, setting, model, partial(learn, gradient=gradient * setting.checked_weight)),
        reference=lambda: _learn_once_by_hand(params, setting),
        roundings=21,  # seven forward, two in the loss, three for each layer on the way back
        alone=setting.alone(shared, run),
    )


def make(params: Params, setting: Setting) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The model, its input and its targets on the host, already rounded to the dtype; the same for the same seed."""
    import torch
    from torch import nn

    with setting.seeded():
        layers = [nn.Linear(wide, narrow) for wide, narrow in _edges(params)]
        tensors = torch.rand(params.batch, _WIDTHS[0]), 1 + torch.rand(params.batch, params.outputs)
    body = [module for layer in layers[:-1] for module in (layer, nn.Tanh())]
    rows, targets = (tensor.to(setting.torch_dtype) for tensor in tensors)
    return nn.Sequential(*body, layers[-1]).to(setting.torch_dtype), rows, targets


def _loss_scale(params: Params, setting: Setting) -> float:
    """A power of two near what the mean divides by, so that float16 gradients stay clear of its smallest numbers."""
    if setting.dtype != "float16":
        return 1.0
    return float(2 ** min(10, (params.batch * params.outputs).bit_length() - 1))


def _few(params: Params, tensor: torch.Tensor) -> torch.Tensor:
    """One or two rows. Repeated up to the whole batch they have the same mean loss and gradients as alone."""
    return tensor[: _CHECKED_ROWS if params.batch % _CHECKED_ROWS == 0 else 1]


def _learn_once(
    params: Params,
    setting: Setting,
    model: torch.nn.Module,
    learn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Tensors:
    """Loss, gradients and new weights of the timed step, taken from the first weights; later ones are put back."""
    import torch

    start, rows, targets = make(params, setting)
    kept = [weight.detach().clone() for weight in model.parameters()]
    _load(model, list(setting.place_model(start).parameters()))
    batch = [few.repeat(params.batch // len(few), 1) for few in (_few(params, rows), _few(params, targets))]
    loss = learn(*(setting.place(tensor) for tensor in batch))
    scale = _loss_scale(params, setting)
    gradients = [torch.zeros(()) if w.grad is None else w.grad.cpu().double() / scale for w in model.parameters()]
    weights = [weight.detach().clone() for weight in model.parameters()]
    _load(model, kept)
    return [loss, *gradients, *weights]


def _load(model: torch.nn.Module, weights: Tensors) -> None:
    import torch

    with torch.no_grad():
        for weight, value in zip(model.parameters(), weights, strict=True):
            weight.copy_(value)


def _forward(model: torch.nn.Module, rows: torch.Tensor) -> Tensors:
    """What comes out of every layer, by numpy in float64."""
    import numpy
    import torch

    values = [rows.double().numpy()]
    weights = [weight.detach().double().numpy() for weight in model.parameters()]
    for index, (matrix, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        out = values[-1] @ matrix.T + bias
        values.append(numpy.tanh(out) if index < len(_WIDTHS) - 1 else out)
    return [torch.from_numpy(value) for value in values]


def _learn_once_by_hand(params: Params, setting: Setting) -> Tensors:
    """Loss, gradients and new weights by the chain rule written out, without autograd."""
    model, rows, targets = make(params, setting)
    weights = [weight.detach().double() for weight in model.parameters()]
    values = _forward(model, _few(params, rows))
    error = values[-1] - _few(params, targets).double()
    signal = 2 * error / error.numel()
    gradients: list[torch.Tensor] = []
    for index in reversed(range(len(_WIDTHS))):
        gradients[:0] = [signal.T @ values[index], signal.sum(0)]
        signal = (signal @ weights[2 * index]) * (1 - values[index] ** 2)  # of tanh; not used below the first layer
    moved = [weight - _LEARNING_RATE * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    return [(error**2).mean(), *gradients, *moved]
