"""Adds large square tensors: memory bandwidth, in the three readings of a published benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload

if TYPE_CHECKING:
    import torch

Variant = Literal["as-written", "as-run", "resident"]
Run = Callable[[], "torch.Tensor"]

_CHECKED_ROWS = 16

# Of each variant: tensors that must at least be read or written in a step, and additions per element.
#   as-written  two are filled on the host; both and the sum so far are read, the sum is written
#   as-run      one is read and written
#   resident    two are read, one is written
_TRAFFIC = {"as-written": 6, "as-run": 2, "resident": 3}
_ADDITIONS = {"as-written": 2, "as-run": 1, "resident": 1}


class Params(Struct, frozen=True):
    """Tensors are size × size. The source of the published figures reads `as-written`, but ran `as-run`."""

    size: Annotated[int, Meta(ge=1, le=1_048_576)] = 12288
    variant: Variant = "resident"


class TensorAdd(Workload):
    """`resident` adds two tensors into a third one, all on the device: the plain bandwidth probe.

    `as-run` doubles one tensor in place: what a compiler had made of the published code. Its values are infinite
    after some 127 doublings, as they were then; adding infinities takes as long as adding numbers does (it is
    subnormal numbers that are slow on a CPU, and doubling leads away from them).
    `as-written` fills two tensors on the host, moves them, adds them, and adds the sum to a running total.
    """

    name = "tensor-add"
    params = Params
    tiny = Params(size=32)

    def work(self, params: Params, setting: Setting) -> Work:
        elements = params.size**2
        return Work(
            items=1,
            unit="iteration",
            flops=_ADDITIONS[params.variant] * elements,
            bytes=_TRAFFIC[params.variant] * elements * setting.item_bytes,
        )

    def prepare(self, params: Params, setting: Setting) -> Step:
        prepare = {"as-written": _as_written, "as-run": _as_run, "resident": _resident}[params.variant]
        run, outputs, expected = prepare(params, setting)
        return Step(
            run=run,
            work=self.work(params, setting),
            outputs=outputs,
            reference=lambda: (expected().expand(min(_CHECKED_ROWS, params.size), -1),),
        )


Prepared = tuple[Run, Callable[[], Tensors], Run]


def _resident(params: Params, setting: Setting) -> Prepared:
    import torch

    first, second = (setting.feed(row.repeat(params.size, 1)) for row in _rows(params, setting))
    result = setting.place(torch.zeros(params.size, params.size))
    add = setting.compiled(lambda x, y: torch.add(x, y, out=result))

    def run() -> torch.Tensor:
        return setting.drain(add(first(), second()))

    def expected() -> torch.Tensor:
        one, other = (row.double().numpy() for row in _rows(params, setting))
        return torch.from_numpy(one + other)

    return run, lambda: (run()[:_CHECKED_ROWS],), expected


def _as_run(params: Params, setting: Setting) -> Prepared:
    import torch

    host = torch.full((params.size, params.size), 2.0, dtype=setting.torch_dtype)
    feed = setting.feed(host)
    state = feed if setting.transfer == "resident" else lambda: host
    double = setting.compiled(lambda values: values.add_(values))
    known = _rows(params, setting)[0]

    def run() -> torch.Tensor:
        return setting.drain(double(feed()))

    return run, lambda: _run_on(state(), known, run), lambda: torch.from_numpy(2 * known.double().numpy())


def _as_written(params: Params, setting: Setting) -> Prepared:
    import torch

    shape, dtype = (params.size, params.size), setting.torch_dtype
    total = setting.place(torch.zeros(shape))
    accumulate = setting.compiled(lambda total, x, y: total.add_(x + y))
    known = _rows(params, setting)[0]

    def run() -> torch.Tensor:
        x = torch.ones(shape, dtype=dtype)
        y = torch.ones(shape, dtype=dtype)
        return setting.drain(accumulate(total, x.to(setting.device), y.to(setting.device)))

    return run, lambda: _run_on(total, known, run), lambda: torch.from_numpy(2 + known.double().numpy())


def _rows(params: Params, setting: Setting) -> Tensors:
    """Two rows of random numbers; a tensor repeats one of them, because drawing all its values would take seconds."""
    import torch

    generator = setting.generator()
    return [torch.rand(params.size, generator=generator).to(setting.torch_dtype) for _ in range(2)]


def _run_on(state: torch.Tensor, known: torch.Tensor, run: Run) -> Tensors:
    """What a step makes of known values in the first rows; they are put back, whatever they had become by then."""
    rows = state[:_CHECKED_ROWS]
    kept = rows.clone()
    rows.copy_(known)
    result = run()[:_CHECKED_ROWS].clone()
    rows.copy_(kept)
    return (result,)
