"""A stack of LSTM layers over a sequence: many small dependent steps, fused where a device can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.records import Work
from torchmark.workloads.contract import GRADIENTS, Setting, Step, Tensors, Workload
from torchmark.workloads.learning import Descent, Forward, Lesson, prepare_training
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
        return setting.of_all_ranks(
            Work(items=params.batch, unit="sequence", flops=2 * rows * products, bytes=values * setting.item_bytes)
        )

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
    model, rows, targets = _make(params, setting)
    lesson = Lesson(
        model=model,
        descent=Descent("SGD", _LEARNING_RATE),
        loss=_loss,
        feeds=[setting.feed(rows), setting.feed(targets)],
        few=lambda: [_few(tensor).contiguous() for tensor in _make(params, setting)[1:]],
        first_loss=(1.5, 3.5),  # the mean square of the targets is 7/3, and what comes out at first is little
    )
    step = prepare_training(setting, lesson, work, {})
    return replace(step, roundings=10 + 5 * params.layers)


def _loss(forward: Forward, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.mse_loss(forward(rows)[0], targets)
