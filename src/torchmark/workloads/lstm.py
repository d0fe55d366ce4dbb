"""A stack of LSTM layers over a sequence: many small dependent steps, fused where a device can."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import GRADIENTS, Setting, Step, Tensors, Workload
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.reference import exact_model, plain_kernels

if TYPE_CHECKING:
    import torch
    from torch import nn

_INPUTS = 1024
_WIDTH = 512
_GATES = 4
_LEARNING_RATE = 0.1
_CHECKED_ROWS = 2
_CHECKED_STEPS = 16  # what comes later cannot change what comes out here


class Params(Struct, frozen=True):
    """Sequences in a step, their length, and layers on top of one another."""

    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 8
    sequence: Annotated[int, Meta(ge=1, le=1_048_576)] = 128
    layers: Annotated[int, Meta(ge=1, le=1024)] = 4


class Lstm(Workload):
    """1024 inputs and 512 units in each layer; the input is uniform in [0, 1), batch first.

    `infer` is the forward pass in inference mode. `train` is forward, mean squared error against targets in [1, 2),
    backward and one step of plain SGD. float16 is not offered: its gradients would underflow.
    """

    name = "lstm"
    modes = ("infer", "train")
    params = Params
    tiny = Params(batch=2, sequence=3, layers=2)
    ways = (GRADIENTS,)
    dtypes = ("float32", "float64", "bfloat16")
    distributed = True

    def work(self, params: Params, setting: Setting) -> Work:
        """Only the matrix products count as FLOPs; nothing is passed back to the first layer's input."""
        weights = sum(_GATES * _WIDTH * (inputs + _WIDTH) for inputs in _layer_inputs(params))
        rows = params.batch * params.sequence
        values = parameter_count(params) + rows * (_INPUTS + _WIDTH)
        products = weights
        if setting.mode == "train":
            products = 3 * weights - _GATES * _WIDTH * _INPUTS
            values += parameter_count(params)
        return Work(items=params.batch, unit="sequence", flops=2 * rows * products, bytes=values * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        prepare = _prepare_training if setting.mode == "train" else _prepare_inference
        return prepare(params, setting, self.work(params, setting))


def parameter_count(params: Params) -> int:
    """Weights and both biases of all gates of all layers."""
    return sum(_GATES * _WIDTH * (inputs + _WIDTH + 2) for inputs in _layer_inputs(params))


def _layer_inputs(params: Params) -> list[int]:
    return [_INPUTS, *[_WIDTH] * (params.layers - 1)]


def _make(params: Params, setting: Setting) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model, its input and its targets on the host, rounded to the dtype; the same for the same seed."""
    import torch
    from torch import nn

    with setting.seeded():
        model = nn.LSTM(_INPUTS, _WIDTH, params.layers, batch_first=True)
        rows = torch.rand(params.batch, params.sequence, _INPUTS)
        targets = 1 + torch.rand(params.batch, params.sequence, _WIDTH)
    return model.to(setting.torch_dtype), rows.to(setting.torch_dtype), targets.to(setting.torch_dtype)


def _few(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:_CHECKED_ROWS, :_CHECKED_STEPS]


def _prepare_inference(params: Params, setting: Setting, work: Work) -> Step:
    import torch

    model, rows, _ = _make(params, setting)
    forward = setting.compiled(setting.place_model(model).eval())
    feed = setting.feed(rows)

    def run() -> torch.Tensor:
        with setting.without_gradients():
            return setting.drain(forward(feed())[0])

    def reference() -> Tensors:
        model, rows, _ = _make(params, setting)
        with plain_kernels(), torch.inference_mode():
            return (exact_model(model)(_few(rows).double())[0],)

    return Step(
        run=run,
        work=work,
        outputs=lambda: (_few(run()),),
        reference=reference,
        copies=lambda: tuple(zip(model.parameters(), _make(params, setting)[0].parameters(), strict=True)),
        roundings=5 * params.layers,  # a product, three functions and a sum in each layer
    )


def _prepare_training(params: Params, setting: Setting, work: Work) -> Step:
    import torch

    model, rows, targets = _make(params, setting)
    made = fingerprints(model)
    setting.place_model(model).train()
    placed = fingerprints(model)  # now, because the first step changes them
    shared = setting.parallel(model)
    forward = setting.compiled(shared)
    feed_rows, feed_targets = setting.feed(rows), setting.feed(targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    losses: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        rows, targets = feed_rows(), feed_targets()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(rows)[0], targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses[:] = [loss.detach()]
        return setting.drain(losses[0])

    def reference() -> Tensors:
        exact = exact_model(model)
        _, rows, targets = _make(params, setting)
        with plain_kernels():
            return _gradients(exact, exact, _few(rows).double(), _few(targets).double())

    # The other ranks take no part in the check, so it must not wait for them.
    checked = forward if setting.world_size == 1 else model
    few = [_few(tensor).contiguous() for tensor in (rows, targets)]
    return Step(
        run=run,
        work=work,
        outputs=lambda: _gradients(model, checked, *(setting.place(tensor) for tensor in few)),
        reference=reference,
        copies=lambda: tuple(zip(placed, made, strict=True)),
        roundings=10 + 5 * params.layers,
        alone=setting.alone(shared, run),
        metrics=lambda: {"loss": float(losses[0])} if losses else {},
    )


def _gradients(model: nn.Module, forward: Callable[..., Any], rows: torch.Tensor, targets: torch.Tensor) -> Tensors:
    import torch

    loss = torch.nn.functional.mse_loss(forward(rows)[0], targets)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]
