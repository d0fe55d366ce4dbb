"""A stack of LSTM layers over a sequence: many small dependent steps, fused where a device can."""

from typing import Annotated

from msgspec import Meta, Struct

from torchmark.workloads.contract import GRADIENTS, Count, Setting
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec

_INPUTS, _WIDTH, _GATES = 1024, 512, 4
_CHECKED = (slice(2), slice(16))  # sequences and steps; later steps cannot change earlier results


class Params(Struct, frozen=True):
    batch: Count = 8  # sequences in a step
    sequence: Count = 128  # their length
    layers: Annotated[int, Meta(ge=1, le=1024)] = 4


class Lstm(ModelWorkload):
    """1024 inputs and 512 units in each layer; the input is uniform in [0, 1), batch first. `train` uses mean squared
    error against targets in [1, 2) and plain SGD. float16 is not offered: its gradients would underflow."""

    name = "lstm"
    tiny = Params(batch=2, sequence=3, layers=2)
    options = (GRADIENTS,)
    dtypes = ("float32", "float64", "bfloat16")

    def cost(self, params: Params, training: bool) -> Cost:
        rows = params.batch * params.sequence
        weights = _GATES * _WIDTH * (_INPUTS + _WIDTH + (params.layers - 1) * 2 * _WIDTH)
        parameters = weights + _GATES * _WIDTH * 2 * params.layers
        numbers = parameters * (2 if training else 1) + rows * (_INPUTS + _WIDTH)
        at_input = rows * _GATES * _WIDTH * _INPUTS
        return Cost(params.batch, "sequence", rows * weights, numbers, products_at_input=at_input)

    def build(self, params: Params, setting: Setting) -> Model:
        import torch

        return Model(
            module=torch.nn.LSTM(_INPUTS, _WIDTH, params.layers, batch_first=True),
            inputs=torch.rand(params.batch, params.sequence, _INPUTS),
            targets=1 + torch.rand(params.batch, params.sequence, _WIDTH),
            result=lambda answer: answer[0],
            loss=lambda answer, _, targets: torch.nn.functional.mse_loss(answer[0], targets),
            optimizer=OptimizerSpec("SGD", 0.1),
            few=lambda rows, targets: (rows[_CHECKED].contiguous(), targets[_CHECKED].contiguous()),
            look=lambda run, rows: (run(rows)[0][_CHECKED],),
            first_loss=(1.5, 3.5),  # the mean square of the targets is 7/3, and the first outputs are small
        )
