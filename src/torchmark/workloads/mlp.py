"""Dense layers: small matrix products at a small batch, where every overhead shows."""

from itertools import pairwise

from msgspec import Struct

from torchmark.workloads.contract import GRADIENTS, Count, Setting
from torchmark.workloads.model import Cost, Model, ModelWorkload, OptimizerSpec

_WIDTHS = (1024, 512, 512, 512)


class Params(Struct, frozen=True):
    batch: Count = 128  # rows in a step of one worker
    outputs: Count = 2  # for each row


class Mlp(ModelWorkload):
    """1024 → 512 → 512 → 512 → outputs with tanh between; the input is uniform in [0, 1). `train` uses mean squared
    error against targets in [1, 2), where nothing cancels, and plain SGD; float16 scales the loss."""

    name = "mlp"
    tiny = Params(batch=2)
    options = (GRADIENTS,)

    def cost(self, params: Params, training: bool) -> Cost:
        edges = [*pairwise((*_WIDTHS, params.outputs))]
        parameters = sum((wide + 1) * narrow for wide, narrow in edges)
        products = params.batch * sum(wide * narrow for wide, narrow in edges)
        numbers = parameters * (2 if training else 1) + params.batch * (_WIDTHS[0] + params.outputs)
        return Cost(params.batch, "sample", products, numbers, products_at_input=params.batch * _WIDTHS[0] * _WIDTHS[1])

    def build(self, params: Params, setting: Setting) -> Model:
        import torch

        nn, edges = torch.nn, pairwise((*_WIDTHS, params.outputs))
        layers = [part for edge in edges for part in (nn.Linear(*edge), nn.Tanh())]
        return Model(
            module=nn.Sequential(*layers[:-1]),
            inputs=torch.rand(params.batch, _WIDTHS[0]),
            targets=1 + torch.rand(params.batch, params.outputs),
            loss=lambda answer, _, targets: nn.functional.mse_loss(answer, targets),
            optimizer=OptimizerSpec("SGD", 0.01),
            # Near what the mean divides by, so that float16 gradients stay clear of its smallest numbers.
            loss_scale=float(2 ** min(10, (params.batch * params.outputs).bit_length() - 1)),
        )
