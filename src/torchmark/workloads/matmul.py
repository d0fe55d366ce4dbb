"""One product of matrices: what the machine's arithmetic can do, for each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload

if TYPE_CHECKING:
    import torch

_CHECKED_ROWS = 16
_COLUMNS_AT_ONCE = 1024


class Params(Struct, frozen=True):
    """`batch` products of size × size matrices, or of a left one that has fewer rows; 0 rows: as many as columns."""

    size: Annotated[int, Meta(ge=1, le=1_048_576)] = 2048
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 1
    rows: Annotated[int, Meta(ge=0, le=1_048_576)] = 0


class Matmul(Workload):
    """Dense random operands; the result goes into memory that is there already, so nothing but the product is timed."""

    name = "matmul"
    params = Params
    tiny = Params(size=24)

    def work(self, params: Params, setting: Setting) -> Work:
        left = result = params.batch * (params.rows or params.size) * params.size
        right = params.batch * params.size**2
        return Work(
            items=params.batch,
            unit="product",
            flops=2 * left * params.size,
            bytes=(left + right + result) * setting.item_bytes,
        )

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        left, right = (setting.feed(operand) for operand in _operands(params, setting))
        result = setting.place(torch.zeros(_shape(params)))
        multiply = setting.compiled(lambda a, b: torch.matmul(a, b, out=result))

        def run() -> torch.Tensor:
            return setting.drain(multiply(left(), right()))

        return Step(
            run=run,
            work=self.work(params, setting),
            outputs=lambda: (run().view(_shape(params))[0, :_CHECKED_ROWS],),
            reference=lambda: _first_rows(params, setting),
            copies=lambda: tuple(zip((left(), right()), _operands(params, setting), strict=True)),
        )


def _shape(params: Params) -> tuple[int, int, int]:
    """Of the left operand and the result."""
    return (params.batch, params.rows or params.size, params.size)


def _operands(params: Params, setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    generator = setting.generator()
    left = torch.randn(_shape(params), generator=generator).to(setting.torch_dtype)
    square = (params.batch, params.size, params.size)
    return left, torch.randn(square, generator=generator).to(setting.torch_dtype)


def _first_rows(params: Params, setting: Setting) -> Tensors:
    """The same rows by numpy, a few columns at a time so that a large operand is never there in float64 as a whole."""
    import numpy
    import torch

    left, right = (operand[0] for operand in _operands(params, setting))
    rows = left[:_CHECKED_ROWS].double().numpy()
    parts = [rows @ part.double().numpy() for part in torch.split(right, _COLUMNS_AT_ONCE, dim=1)]
    return (torch.from_numpy(numpy.concatenate(parts, axis=1)),)
