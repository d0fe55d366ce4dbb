"""One product of matrices: the machine's arithmetic throughput, for each dtype."""

from typing import Annotated

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Count, Setting, Step, Tensors, Workload

_CHECKED_ROWS = 16


class Params(Struct, frozen=True):
    size: Count = 2048  # matrices are size × size
    batch: Count = 1  # products in a step
    rows: Annotated[int, Meta(ge=0, le=1_048_576)] = 0  # of the left one; 0: as many as columns


class Matmul(Workload):
    """Dense random operands; the result goes into existing memory, so that only the product is timed."""

    name = "matmul"
    tiny = Params(size=24)

    def work(self, params: Params, setting: Setting) -> Work:
        left = result = params.batch * (params.rows or params.size) * params.size
        size = (left + params.batch * params.size**2 + result) * setting.item_bytes
        return Work(items=params.batch, unit="product", flops=2 * left * params.size, bytes=size)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import numpy
        import torch

        shape = (params.batch, params.rows or params.size, params.size)  # of the left operand and the result

        def operands() -> Tensors:
            generator = setting.generator()
            shapes = (shape, (params.batch, params.size, params.size))
            return [torch.randn(each, generator=generator).to(setting.torch_dtype) for each in shapes]

        left, right = map(setting.feed, operands())
        result = setting.place(torch.zeros(shape))
        multiply = setting.compiled(lambda a, b: torch.matmul(a, b, out=result))

        def run() -> torch.Tensor:
            return setting.drain(multiply(left(), right()))

        def reference() -> Tensors:
            """By numpy, some columns at a time, to hold no large operand in float64 as a whole."""
            one, other = (operand[0] for operand in operands())
            rows = one[:_CHECKED_ROWS].double().numpy()
            parts = [rows @ part.double().numpy() for part in torch.split(other, 1024, dim=1)]
            return (torch.from_numpy(numpy.concatenate(parts, axis=1)),)

        return Step(
            run,
            self.work(params, setting),
            outputs=lambda: (run().view(shape)[0, :_CHECKED_ROWS],),
            reference=reference,
            copies=lambda: tuple(zip((left(), right()), operands(), strict=True)),
        )
